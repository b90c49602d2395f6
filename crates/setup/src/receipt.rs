//! The receipt of an installed piece: its pin, and every file with its sha256.
//!
//! A piece without a matching receipt counts as missing. Files were verified when they were unpacked from a
//! wheel of the pinned sha256. They are checked before each use: a file with another size, time of change or
//! inode than in the receipt is hashed again. A file that was changed with its old size and time restored is
//! found by `doctor --deep`, which hashes all files.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::Piece;
use crate::extract::sha256;
use crate::pins::Pin;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) pin: Pin,
    /// By path, relative to the piece's directory.
    files: BTreeMap<String, Installed>,
}

/// A file of a piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Installed {
    Known {
        bytes: u64,
        sha256: String,
        #[serde(flatten)]
        stamp: Stamp,
    },
    /// The form of receipts of version 0.1; the hash is added at the next check.
    Bytes(u64),
}

/// Values that change when a file is replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    modified_ns: i64,
    inode: u64,
}

/// How thoroughly files are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Files that seem to have changed are hashed.
    Usual,
    /// All are hashed.
    Deep,
}

/// The state of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Whole,
    /// There is no receipt, or it has another pin.
    Missing,
    /// A file is wrong: which one, and how.
    Damaged(String),
}

/// Within the piece's directory; named for the piece, because pieces may share a directory.
pub(crate) fn file_name(piece: Piece) -> String {
    format!("{piece}.receipt.json")
}

impl Receipt {
    /// The receipt of these files below `directory`.
    pub(crate) fn of_files(pin: &Pin, directory: &Path, names: &[String]) -> Result<Receipt> {
        let installed = |name: &String| {
            let file = directory.join(name);
            let installed =
                Installed::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            Ok((name.clone(), installed))
        };
        Ok(Receipt { pin: pin.clone(), files: names.iter().map(installed).collect::<Result<_>>()? })
    }

    /// Writes it completely or not at all.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let mut whole = tempfile::NamedTempFile::new_in(file.parent().unwrap_or(Path::new(".")))?;
            whole.write_all(serde_json::to_string(self)?.as_bytes())?;
            // Temporary files are private; a cache may be shared.
            #[cfg(unix)]
            whole.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
            whole.persist(file).map_err(|error| error.error)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", file.display()))
    }

    fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(file).ok()?).ok()
    }
}

impl Installed {
    fn read(file: &Path) -> std::io::Result<Installed> {
        let found = std::fs::metadata(file)?;
        Ok(Installed::Known { bytes: found.len(), sha256: sha256(file)?, stamp: Stamp::new(&found) })
    }

    /// The file as it is now, if its contents are unchanged; otherwise the problem.
    fn examined(&self, file: &Path, look: Look) -> Result<Installed, String> {
        let cannot = |error: std::io::Error| format!("cannot be read: {error}");
        let found = match std::fs::metadata(file) {
            Ok(found) if found.is_file() => found,
            Ok(_) => return Err("is not a file".into()),
            Err(error) => return Err(cannot(error)),
        };
        let (&bytes, known) = match self {
            Installed::Known { bytes, sha256, stamp } => (bytes, Some((sha256, stamp))),
            Installed::Bytes(bytes) => (bytes, None),
        };
        if found.len() != bytes {
            return Err(format!("has {} bytes, and {bytes} were installed", found.len()));
        }
        if known.is_some_and(|(_, stamp)| *stamp == Stamp::new(&found)) && look == Look::Usual {
            return Ok(self.clone());
        }
        let now = Installed::read(file).map_err(cannot)?;
        match (known, &now) {
            (Some((expected, _)), Installed::Known { sha256, .. }) if expected != sha256 => {
                Err(format!("has sha256 {sha256}, and {expected} was installed"))
            }
            _ => Ok(now),
        }
    }
}

impl Stamp {
    fn new(found: &Metadata) -> Stamp {
        let since = found.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let modified_ns = since.and_then(|since| since.as_nanos().try_into().ok()).unwrap_or_default();
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(found);
        #[cfg(not(unix))]
        let inode = 0;
        Stamp { modified_ns, inode }
    }
}

/// Checks an installed piece. Files that were hashed and are intact are recorded, so that they are hashed
/// once.
pub(crate) fn state(cache: &Path, piece: Piece, pin: &Pin, look: Look) -> State {
    let directory: PathBuf = cache.join(&pin.directory);
    let place = directory.join(file_name(piece));
    let Some(receipt) = Receipt::read(&place).filter(|receipt| pin.is_that_of(&receipt.pin)) else {
        return State::Missing;
    };
    let mut files = BTreeMap::new();
    for (name, installed) in &receipt.files {
        match installed.examined(&directory.join(name), look) {
            Ok(now) => files.insert(name.clone(), now),
            Err(what) => return State::Damaged(format!("{} {what}", directory.join(name).display())),
        };
    }
    if files != receipt.files {
        // If the cache cannot be written, files are hashed again next time.
        let _ = Receipt { files, ..receipt }.write(&place);
    }
    State::Whole
}

pub(crate) fn is_whole(cache: &Path, piece: Piece, pin: &Pin) -> bool {
    state(cache, piece, pin, Look::Usual) == State::Whole
}
