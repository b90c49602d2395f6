//! Temporary directories in the cache directory, and the lock that protects them.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tooling::Reporter;

const PREFIX: &str = ".setup-";

/// The lock of the one set-up that may write to the cache directory. The system releases it when the process
/// ends, however that happens.
pub(crate) struct Lock {
    _file: File,
}

pub(crate) fn lock(cache: &Path, reporter: Reporter) -> Result<Lock> {
    let file = open(cache)?;
    match file.try_lock() {
        Ok(()) => return Ok(Lock { _file: file }),
        Err(TryLockError::WouldBlock) => reporter.begin("waiting for another set-up to finish"),
        Err(TryLockError::Error(error)) => return Err(error).context(unlockable(cache)),
    }
    file.lock().with_context(|| unlockable(cache))?;
    Ok(Lock { _file: file })
}

/// A new directory on the file system of the cache, removed when dropped.
pub(crate) fn directory(cache: &Path, _lock: &Lock) -> Result<TempDir> {
    // The processes that made these have ended: a running one would hold the lock.
    remove_stale(cache)?;
    tempfile::Builder::new()
        .prefix(PREFIX)
        .tempdir_in(cache)
        .with_context(|| format!("cannot create a directory in {}", cache.display()))
}

/// Removes leftovers of interrupted set-ups, unless a set-up is running.
pub(crate) fn sweep(cache: &Path) -> Result<()> {
    if !cache.is_dir() {
        return Ok(());
    }
    match open(cache).ok().map(|file| (file.try_lock().is_ok(), file)) {
        Some((true, _lock)) => remove_stale(cache),
        // Busy, or a read-only cache: nothing of ours to remove.
        _ => Ok(()),
    }
}

fn open(cache: &Path) -> Result<File> {
    std::fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let file = cache.join(".setup.lock");
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&file)
        .with_context(|| format!("cannot write {}", file.display()))
}

fn remove_stale(cache: &Path) -> Result<()> {
    for entry in std::fs::read_dir(cache).with_context(|| format!("cannot read {}", cache.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            // A pip that outlived its killed set-up may still write there; the next removal succeeds.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

fn unlockable(cache: &Path) -> String {
    format!("cannot lock {}; set XDG_CACHE_HOME to a directory on a local file system", cache.display())
}
