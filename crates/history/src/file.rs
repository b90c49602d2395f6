//! The file: JSON lines, appended under a lock, read past what was cut off.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::record::Record;

#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {path}: {cause}", path = .path.display())]
pub struct Error {
    verb: &'static str,
    path: PathBuf,
    cause: std::io::Error,
}

/// What a history holds.
#[derive(Debug, Default)]
pub struct Read {
    pub records: Vec<Record>,
    /// Lines that are no record, with the reason: numbered from 1.
    pub skipped: Vec<(usize, String)>,
}

/// Appends records, all of them or none: one write under an exclusive lock, then on the disk. What a killed
/// process left of a line is ended first, so that it spoils nothing but itself.
pub fn append(path: &Path, records: &[Record]) -> Result<(), Error> {
    let failed = |cause| Error { verb: "append to", path: path.to_path_buf(), cause };
    let mut text = String::new();
    for record in records {
        text += &serde_json::to_string(record).map_err(|e| failed(e.into()))?;
        text.push('\n');
    }
    let options = OpenOptions::new().create(true).truncate(false).read(true).write(true).clone();
    let mut file = options.open(path).map_err(failed)?;
    file.lock().map_err(failed)?;
    let end = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let torn = end > 0 && last_byte(&mut file).map_err(failed)? != b'\n';
    if torn {
        text.insert(0, '\n');
    }
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
    if let Err(error) = written {
        // Take back the part that did fit.
        let _ = file.set_len(end);
        return Err(failed(error));
    }
    Ok(())
}

fn last_byte(file: &mut File) -> std::io::Result<u8> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last[0])
}

/// Reads every record. A history that is not there yet is empty.
pub fn read(path: &Path) -> Result<Read, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Read::default()),
        Err(cause) => return Err(Error { verb: "read", path: path.to_path_buf(), cause }),
    };
    let mut read = Read::default();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice(line) {
            Ok(record) => read.records.push(record),
            Err(error) => read.skipped.push((index + 1, error.to_string())),
        }
    }
    Ok(read)
}
