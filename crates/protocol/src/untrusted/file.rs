//! Files from others. Any path is opened here: a regular file of bounded size, or an error at once.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Most bytes of a configuration, a manifest, or a model's description.
pub const CONFIG: u64 = 16 << 20;
/// Most bytes of prompts, plans, tokens or a tokenizer.
pub const INPUT: u64 = 64 << 20;
/// Most bytes of a journal, a report or a history.
pub const RESULTS: u64 = 4 << 30;

/// Opens a regular file, by way of links or not. A pipe, a device or a directory is an error, and nothing waits for the
/// other end of a pipe.
///
/// # Errors
/// Any error of the system, and [`ErrorKind::InvalidInput`] for anything but a regular file.
pub fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, NONBLOCK);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// `O_NONBLOCK` of Linux on all processors that Rust's standard library has, but MIPS and SPARC (open(2)).
#[cfg(target_os = "linux")]
const NONBLOCK: i32 = 0o4000;

/// Flushes a directory, so that new names survive a crash of the machine. No effect outside Unix.
///
/// # Errors
/// Any error of the system.
pub fn sync_directory(directory: &Path) -> Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// The bytes of a regular file of at most `most` bytes.
///
/// # Errors
/// As of [`open`], and [`ErrorKind::FileTooLarge`].
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {} MiB", most >> 20)));
    }
    Ok(bytes)
}

/// The text of such a file.
///
/// # Errors
/// As for [`read`], and [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?).map_err(|error| Error::new(ErrorKind::InvalidData, error))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_that_size_is_refused_at_once() {
        let directory = std::env::temp_dir().join(format!("photofinish-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("file");
        std::fs::write(&file, "four").unwrap();
        assert_eq!(read_text(&file, 4).unwrap(), "four");
        let kind = |path: &Path, most| read(path, most).map(drop).unwrap_err().kind();
        assert_eq!(kind(&file, 3), ErrorKind::FileTooLarge);
        for path in [directory.as_path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            assert_eq!(kind(path, 4), ErrorKind::InvalidInput, "{}", path.display());
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
