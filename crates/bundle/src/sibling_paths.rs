//! Files next to a bundle, in the directory of all bundles. Each such name begins with a dot; no bundle's
//! does.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

const LOCK: &str = ".lock";
const STAGING: &str = ".partial";
const USE: &str = ".used";

/// Locked by the one process that may write the bundle, or remove it.
pub fn lock(bundle: &Path) -> PathBuf {
    beside(bundle, LOCK)
}

/// Directory for new files until they are complete. If no process holds the lock, it is left over from a
/// crash.
pub fn staging(bundle: &Path) -> PathBuf {
    beside(bundle, STAGING)
}

/// Locked, shared, by every process that uses the bundle; its time of change is the bundle's last use.
pub fn used(bundle: &Path) -> PathBuf {
    beside(bundle, USE)
}

/// The bundle that `path` is the staging directory of, if it is one.
pub fn staged(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_prefix('.')?.strip_suffix(STAGING)?;
    Some(path.with_file_name(name))
}

fn beside(bundle: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(bundle.file_name().unwrap_or_default());
    name.push(end);
    bundle.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staging_directory_is_known_by_its_name_alone() {
        let bundle = Path::new("bundles/llama-1b.v2-0123");
        assert_eq!(staging(bundle), Path::new("bundles/.llama-1b.v2-0123.partial"));
        assert_eq!(staged(&staging(bundle)).as_deref(), Some(bundle));
        for other in [bundle.to_path_buf(), lock(bundle), used(bundle)] {
            assert_eq!(staged(&other), None);
        }
    }
}
