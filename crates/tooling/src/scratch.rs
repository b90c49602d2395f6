//! Temporary directories that outlive no program: those of a program that was killed are removed by the next one.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

const PREFIX: &str = "photofinish-scratch-";
/// A file that the owner holds a lock on. The system drops the lock with the process, however that ends.
const LOCK: &str = ".lock";
/// Age from which on a directory without such a file is abandoned: its owner was killed before it made the
/// file.
const ORPHANED: Duration = Duration::from_secs(3600);

/// A temporary directory, removed when this value is dropped.
pub struct Scratch {
    directory: TempDir,
    _lock: File,
}

impl Scratch {
    /// A new directory in the system's temporary directory. Abandoned ones are removed first.
    pub fn new() -> Result<Scratch> {
        Scratch::inside(&std::env::temp_dir())
    }

    fn inside(parent: &Path) -> Result<Scratch> {
        sweep(parent);
        let cannot = || format!("cannot make a temporary directory in {}", parent.display());
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent).with_context(cannot)?;
        let lock = File::create(directory.path().join(LOCK)).with_context(cannot)?;
        lock.try_lock().with_context(cannot)?;
        Ok(Scratch { directory, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes our abandoned directories. If that fails, the next program tries again.
fn sweep(parent: &Path) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for path in ours.map(|entry| entry.path()).filter(|path| is_own_directory(path)) {
        if let Some(_held) = abandoned(&path) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// The lock of an abandoned directory, or `Some(None)` if it has none.
fn abandoned(path: &Path) -> Option<Option<File>> {
    match File::open(path.join(LOCK)) {
        Ok(lock) => match lock.try_lock() {
            Ok(()) => Some(Some(lock)),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => None,
        },
        Err(_) => {
            let age = path.metadata().and_then(|metadata| metadata.modified()).ok()?.elapsed().ok()?;
            (age >= ORPHANED).then_some(None)
        }
    }
}

/// Whether it is a directory, no link to one, and this user's: others may put anything into a shared
/// directory.
fn is_own_directory(path: &Path) -> bool {
    let Ok(metadata) = path.symlink_metadata() else { return false };
    #[cfg(unix)]
    let is_own = std::os::unix::fs::MetadataExt::uid(&metadata) == rustix::process::geteuid().as_raw();
    #[cfg(not(unix))]
    let is_own = true;
    metadata.is_dir() && is_own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_program_left_is_removed_by_the_next_and_what_lives_stays() {
        let parent = tempfile::tempdir().unwrap();
        let living = Scratch::inside(parent.path()).unwrap();
        let dead = parent.path().join(format!("{PREFIX}dead"));
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join(LOCK), "").unwrap();
        let begun = parent.path().join(format!("{PREFIX}begun"));
        std::fs::create_dir(&begun).unwrap();
        let results = parent.path().join("photofinish-results-kept");
        std::fs::create_dir(&results).unwrap();
        let next = Scratch::inside(parent.path()).unwrap();
        let there = [living.path(), next.path(), &begun, &results, &dead].map(Path::exists);
        assert_eq!(there, [true, true, true, true, false], "only the dead one goes");
        let place = next.path().to_path_buf();
        drop(next);
        assert!(!place.exists());
    }
}
