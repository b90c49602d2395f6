//! A file that was hashed: its sha256 and its identity.

use std::fs::Metadata;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Distinguishes a file from every other, and from itself after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
    pub bytes: u64,
    /// Last change of its contents, in nanoseconds since 1970.
    pub modified_ns: i64,
}

impl FileIdentity {
    /// `None` where the system has no such numbers.
    #[cfg(unix)]
    pub fn new(found: &Metadata) -> Option<FileIdentity> {
        use std::os::unix::fs::MetadataExt;
        let modified_ns = found.mtime() * 1_000_000_000 + found.mtime_nsec();
        Some(FileIdentity { device: found.dev(), inode: found.ino(), bytes: found.len(), modified_ns })
    }

    #[cfg(not(unix))]
    pub fn new(_: &Metadata) -> Option<FileIdentity> {
        None
    }
}

/// The sha256 of a file, in lower-case hexadecimal.
pub fn sha256_of(path: &Path) -> std::io::Result<String> {
    let mut file = untrusted::file::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
    }
    Ok(hexadecimal(&hasher.finalize()))
}

/// Bytes in lower-case hexadecimal.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
