//! The receipt of an installed piece: its pin, and every file with its sha256.
//!
//! A piece without a matching receipt counts as missing. Files were verified when they were unpacked from an
//! archive of the pinned sha256. They are checked before each use: a file with another size, time of change or
//! inode than in the receipt is hashed again. A file that was changed with its old size and time restored is
//! found by `doctor --deep`, which hashes all files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, TryLockError};
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use flate2::bufread::GzDecoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use zip::ZipArchive;

use crate::pins::{self, Pin, Wheel};
use crate::tooling::{BadInput, Reporter};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) pin: Pin,
    /// By path, relative to the piece's directory.
    files: BTreeMap<String, Installed>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Installed {
    bytes: u64,
    sha256: String,
    // Values that change when a file is replaced or written to.
    modified_ns: i64,
    inode: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Files that seem to have changed are hashed.
    Usual,
    Deep,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Whole,
    /// There is no receipt, or it has another pin.
    Missing,
    /// A file is wrong: which one, and how.
    Damaged(String),
}

/// Within the piece's directory; named for the piece, because pieces may share a directory.
pub(crate) fn file_name(piece: &str) -> String {
    format!("{piece}.receipt.json")
}

impl Receipt {
    /// The receipt of these files below `directory`.
    pub(crate) fn of_files(pin: Pin, directory: &Path, names: BTreeSet<String>) -> Result<Receipt> {
        let mut files = BTreeMap::new();
        for name in names {
            let file = directory.join(&name);
            let installed = Installed::read(&file);
            files.insert(name, installed.with_context(|| format!("cannot read {}", file.display()))?);
        }
        Ok(Receipt { pin, files })
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
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }
}

impl Installed {
    fn read(file: &Path) -> std::io::Result<Installed> {
        Ok(Installed { sha256: sha256(file)?, ..Installed::unread(&fs::metadata(file)?) })
    }

    /// Without its hash.
    fn unread(found: &Metadata) -> Installed {
        let since = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified_ns = since.and_then(|since| since.as_nanos().try_into().ok()).unwrap_or_default();
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(found);
        #[cfg(not(unix))]
        let inode = 0;
        Installed { bytes: found.len(), sha256: String::new(), modified_ns, inode }
    }

    /// The file as it is now, if its contents are unchanged; otherwise the problem.
    fn examined(&self, file: &Path, look: Look) -> Result<Installed, String> {
        let cannot = |error: std::io::Error| format!("cannot be read: {error}");
        let found = fs::metadata(file).map_err(cannot)?;
        if !found.is_file() {
            return Err("is not a file".into());
        }
        if found.len() != self.bytes {
            return Err(format!("has {} bytes, and {} were installed", found.len(), self.bytes));
        }
        let same = Installed { sha256: self.sha256.clone(), ..Installed::unread(&found) };
        if same == *self && look == Look::Usual {
            return Ok(same);
        }
        let now = Installed::read(file).map_err(cannot)?;
        if now.sha256 != self.sha256 {
            return Err(format!("has sha256 {}, and {} was installed", now.sha256, self.sha256));
        }
        Ok(now)
    }
}

/// Checks an installed piece. Files that were hashed and are intact are recorded, so that they are hashed
/// once.
pub(crate) fn state(cache: &Path, piece: &str, pin: &Pin, look: Look) -> State {
    let directory = cache.join(&pin.directory);
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

pub(crate) fn is_whole(cache: &Path, piece: &str, pin: &Pin) -> bool {
    state(cache, piece, pin, Look::Usual) == State::Whole
}

// Extracts members of a wheel, or of npm's archive, into files, once its hash is known to be the pinned one.

/// Rejects a wheel that is not the pinned one. Returns its sha256, which is not known before for a release
/// that a user names.
pub(crate) fn verify(file: &Path, wheel: &Wheel) -> Result<String> {
    let found = sha256(file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(
        wheel.sha256.is_empty() || found == wheel.sha256,
        "{}: the file that came has sha256 {found}, pinned in configs is {}; check which index {} is \
         configured to use",
        wheel.requirement,
        wheel.sha256,
        if wheel.of_npm().is_some() { "npm" } else { "pip" }
    );
    Ok(found)
}

/// Unpacks the members that the pin names into `directory`, and adds each file's name to `files`.
pub(crate) fn extract(
    file: &Path,
    wheel: &Wheel,
    directory: &Path,
    files: &mut BTreeSet<String>,
) -> Result<()> {
    let archive = BufReader::new(File::open(file)?);
    let mut missing: BTreeSet<&str> = wheel.extract.keys().map(String::as_str).collect();
    let mut unpack = |name: String, mode: Option<u32>, member: &mut dyn Read| -> Result<()> {
        let Some((rule, target)) = target_of(&name, &wheel.extract) else { return Ok(()) };
        ensure!(pins::is_inside(&target), "member {name:?} leaves the directory it is unpacked into");
        missing.remove(rule);
        let path = directory.join(&target);
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        File::create(&path)
            .and_then(|mut file| std::io::copy(member, &mut file))
            .with_context(|| format!("cannot unpack {name} to {}", path.display()))?;
        make_executable(&path, mode)?;
        files.insert(target);
        Ok(())
    };
    if wheel.of_npm().is_some() {
        for member in tar::Archive::new(GzDecoder::new(archive)).entries()? {
            let mut member = member?;
            if member.header().entry_type().is_file() {
                let name = member.path()?.to_string_lossy().into_owned();
                unpack(name, member.header().mode().ok(), &mut member)?;
            }
        }
    } else {
        let mut archive = ZipArchive::new(archive)?;
        for index in 0..archive.len() {
            let mut member = archive.by_index(index)?;
            if !member.is_dir() {
                unpack(member.name()?.into_owned(), member.unix_mode(), &mut member)?;
            }
        }
    }
    if let Some(name) = missing.first() {
        bail!("holds no {name}");
    }
    Ok(())
}

/// Makes a program executable: zip archives store that permission separately.
fn make_executable(path: &Path, mode: Option<u32>) -> Result<()> {
    #[cfg(unix)]
    if mode.is_some_and(|mode| mode & 0o100 != 0) {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot make {} a program", path.display()))?;
    }
    #[cfg(not(unix))]
    let _ = (path, mode);
    Ok(())
}

/// The rule that a member matches, and the file it becomes.
fn target_of<'a>(name: &str, rules: &'a BTreeMap<String, String>) -> Option<(&'a str, String)> {
    rules.iter().find_map(|(rule, target)| {
        let rest = name.strip_prefix(rule.as_str())?;
        let applies = rest.is_empty() || rule.ends_with('/');
        applies.then(|| (rule.as_str(), format!("{target}{rest}")))
    })
}

/// The sha256 of a file, in lower-case hexadecimal digits.
pub fn sha256(file: &Path) -> std::io::Result<String> {
    let mut file = File::open(file)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
    }
    Ok(hexadecimal(&hasher.finalize()))
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// Temporary directories in the cache directory, and the lock that protects them.

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
        Some((true, _lock)) => {
            remove_abandoned(&cache.join(DOWNLOADS));
            remove_stale(cache)
        }
        // Busy, or a read-only cache: nothing of ours to remove.
        _ => Ok(()),
    }
}

/// In the cache directory: downloads as far as they came.
pub(crate) const DOWNLOADS: &str = "downloads";

/// Age from which on a download counts as abandoned.
pub(crate) const ABANDONED: Duration = Duration::from_secs(7 * 24 * 3600);

/// Removes abandoned downloads.
fn remove_abandoned(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|found| found.modified()).ok();
        let age = age.and_then(|time| SystemTime::now().duration_since(time).ok());
        if age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_file(entry.path());
        }
    }
    // Unless it holds something.
    let _ = fs::remove_dir(directory);
}

fn open(cache: &Path) -> Result<File> {
    let refused = |path: &Path, error: std::io::Error| {
        BadInput(format!(
            "cannot write {} ({error}): set XDG_CACHE_HOME to a directory that can be written to",
            path.display()
        ))
    };
    fs::create_dir_all(cache).map_err(|error| refused(cache, error))?;
    let file = cache.join(".setup.lock");
    let opened = File::options().create(true).truncate(false).write(true).open(&file);
    Ok(opened.map_err(|error| refused(&file, error))?)
}

fn remove_stale(cache: &Path) -> Result<()> {
    for entry in fs::read_dir(cache).with_context(|| format!("cannot read {}", cache.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            // A pip that outlived its killed set-up may still write there; the next removal succeeds.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

fn unlockable(cache: &Path) -> String {
    format!("cannot lock {}; set XDG_CACHE_HOME to a directory on a local file system", cache.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_rule_takes_that_file_and_a_directory_rule_what_is_below() {
        let rules = BTreeMap::from([
            ("t/lib/a.so".to_owned(), "lib/a.so".to_owned()),
            ("t/include/".to_owned(), "include/".to_owned()),
        ]);
        let target = |name| target_of(name, &rules).map(|(_, target)| target);
        assert_eq!(target("t/lib/a.so").as_deref(), Some("lib/a.so"));
        assert_eq!(target("t/include/x/y.h").as_deref(), Some("include/x/y.h"));
        assert_eq!(target("t/lib/a.so.1"), None);
        assert_eq!(target("t/include.h"), None);
    }
}
