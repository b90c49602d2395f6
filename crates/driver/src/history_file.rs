//! The file of the history: JSON lines, appended under a lock. It is never rewritten.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use comparison::history::{History, Record};
use protocol::untrusted;

use crate::measure::results::open_itself;

#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {path}: {cause}{}", advice(.cause), path = .path.display())]
pub struct Error {
    verb: &'static str,
    path: PathBuf,
    #[source]
    cause: io::Error,
}

/// Advice for errors that the system's message alone does not explain.
fn advice(cause: &io::Error) -> &'static str {
    match cause.kind() {
        ErrorKind::Unsupported => {
            "; its file system has no locks, without which two runs would spoil it: choose another place"
        }
        _ => "",
    }
}

/// Appends records. Once this returns, they are on the disk. They are written together under an exclusive
/// lock, for which this waits. If they do not all fit, none is kept. A process that is killed meanwhile
/// leaves an incomplete line; the next append ends that line first, so no other record is damaged.
///
/// # Errors
///
/// The file cannot be opened, locked or written; or a record holds a value that JSON cannot (infinity, NaN)
/// and would not be read again.
pub fn append(path: &Path, records: &[Record]) -> Result<(), Error> {
    let failed = |cause| Error { verb: "append to", path: path.to_path_buf(), cause };
    let mut text = lines(records).map_err(failed)?;
    if text.is_empty() {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    let mut file = open_itself(&mut options, path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")));
    }
    file.lock().map_err(|cause| failed(lock_failure(cause)))?;
    let end = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let torn = end > 0 && last_byte(&mut file).map_err(failed)? != b'\n';
    if torn {
        text.insert(0, '\n');
    }
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
    if let Err(error) = written {
        // Remove the part that did fit. If that fails, too, the next append ends its last line.
        let _ = file.set_len(end);
        return Err(failed(error));
    }
    if end == 0 {
        // A new file outlives a crash of the machine only once its directory is on the disk, too.
        untrusted::file::sync_directory(path.parent().unwrap_or(path)).map_err(failed)?;
    }
    Ok(())
}

/// Reads every record, under a shared lock where the file system has locks. A missing history is empty.
///
/// # Errors
///
/// The file exists and cannot be read.
pub fn read(path: &Path) -> Result<History, Error> {
    let failed = |cause| Error { verb: "read", path: path.to_path_buf(), cause };
    let file = match untrusted::file::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(History::default()),
        Err(cause) => return Err(failed(cause)),
    };
    // Without the lock, a line that is being written would look cut off. Without locks there are no writers.
    if let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
        file.lock_shared().map_err(failed)?;
    }
    let mut bytes = Vec::new();
    file.take(untrusted::file::RESULTS).read_to_end(&mut bytes).map_err(failed)?;
    Ok(History::parse(&bytes))
}

fn lines(records: &[Record]) -> io::Result<String> {
    let mut text = String::new();
    for record in records {
        let line = serde_json::to_string(record)?;
        serde_json::from_str::<Record>(&line)?;
        text += &line;
        text.push('\n');
    }
    Ok(text)
}

/// flock(2) on a file system without locks fails with an error that has no `ErrorKind` of its own everywhere:
/// on NFS, ENOLCK.
fn lock_failure(cause: io::Error) -> io::Error {
    #[cfg(target_os = "linux")]
    const ENOLCK: i32 = 37;
    #[cfg(target_os = "linux")]
    if cause.raw_os_error() == Some(ENOLCK) {
        return io::Error::new(ErrorKind::Unsupported, cause);
    }
    cause
}

fn last_byte(file: &mut File) -> io::Result<u8> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_locks_is_named_as_the_cause() {
        for cause in [io::Error::from(ErrorKind::Unsupported), io::Error::from_raw_os_error(37)] {
            let error = Error { verb: "append to", path: "x".into(), cause: lock_failure(cause) };
            assert!(error.to_string().contains("has no locks"), "{error}");
        }
        let full = Error { verb: "append to", path: "x".into(), cause: ErrorKind::StorageFull.into() };
        assert!(!full.to_string().contains("locks"), "{full}");
    }
}
