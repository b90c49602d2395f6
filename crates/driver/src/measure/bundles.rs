//! The prepared models in the cache: which exist, which are in use, and which may be removed.
//!
//! A process that uses a bundle holds a shared lock on the file `.NAME.used` next to it; that file's time of
//! change is the last use. A bundle is removed under that lock and `prepare`'s, both exclusive, so neither a
//! reader nor a writer loses it.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use bundle::{MANIFEST, Manifest, Precision};
use comparison::plan::{Failure, Result};
use protocol::untrusted;

use crate::measure::places::Places;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A directory of the cache that `prepare` made.
#[derive(Debug, Clone)]
pub struct CachedBundle {
    pub directory: PathBuf,
    pub contents: Contents,
    pub bytes: u64,
    /// The end of its preparation, if it has not been used since.
    pub last_used: SystemTime,
    pub in_use: bool,
}

#[derive(Debug, Clone)]
pub enum Contents {
    Bundle(Manifest),
    /// Damaged, or of another version; the reason. `prepare` makes it again.
    Unreadable(String),
    /// Leftovers of an interrupted preparation.
    Unfinished,
}

#[derive(Debug, Clone)]
pub struct Rule {
    /// Days without use after which a bundle is removed.
    pub unused_for: u32,
    /// Names of models or directories that are always kept.
    pub keep: Vec<String>,
}

/// Whether a directory is removed, and why it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Goes,
    InUse,
    Named,
    UsedLately,
}

/// Every bundle in the directory `bundles`, and leftovers of interrupted preparations.
pub fn list(bundles: &Path) -> Result<Vec<CachedBundle>> {
    let entries = match fs::read_dir(bundles) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| cannot("read", bundles, &error))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| cannot("read", bundles, &error))?.path();
        found.extend(CachedBundle::read(&path));
    }
    found.sort_by(|a, b| a.directory.cmp(&b.directory));
    Ok(found)
}

impl CachedBundle {
    /// `None` for directories that `prepare` did not make.
    fn read(directory: &Path) -> Option<CachedBundle> {
        let contents = if bundle::staged(directory).is_some() {
            Contents::Unfinished
        } else if directory.join(MANIFEST).is_file() {
            Manifest::read(directory).map_or_else(|e| Contents::Unreadable(e.to_string()), Contents::Bundle)
        } else {
            return None;
        };
        let mut bytes = 0;
        for file in fs::read_dir(directory).ok()? {
            bytes += file.ok()?.metadata().map_or(0, |metadata| metadata.len());
        }
        let bundle = bundle::staged(directory).unwrap_or_else(|| directory.to_path_buf());
        let times = [directory.join(MANIFEST), bundle::used(&bundle)];
        let last_used = times.iter().filter_map(|path| time(path)).max().or_else(|| time(directory))?;
        let in_use = [bundle::lock(&bundle), bundle::used(&bundle)].iter().any(|path| is_locked(path));
        Some(CachedBundle { directory: directory.to_path_buf(), contents, bytes, last_used, in_use })
    }

    /// Name of the directory.
    pub fn address(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The precisions of its weights.
    pub fn precisions(&self) -> Vec<Precision> {
        let Contents::Bundle(manifest) = &self.contents else { return Vec::new() };
        Precision::ALL.into_iter().filter(|p| manifest.files.contains_key(&p.file_name())).collect()
    }

    /// Whole days since its last use.
    pub fn idle_days(&self, now: SystemTime) -> u64 {
        now.duration_since(self.last_used).unwrap_or_default().as_secs() / DAY.as_secs()
    }

    /// Whether `name` is its name: of the model or of the directory.
    fn is_called(&self, name: &str) -> bool {
        let model = matches!(&self.contents, Contents::Bundle(manifest) if manifest.name == name);
        model || self.address() == name
    }

    /// Its fate by `rule`.
    pub fn fate(&self, rule: &Rule, now: SystemTime) -> Fate {
        if self.in_use {
            return Fate::InUse;
        }
        if rule.keep.iter().any(|name| self.is_called(name)) {
            return Fate::Named;
        }
        let is_litter = matches!(self.contents, Contents::Unfinished);
        if !is_litter && self.idle_days(now) < u64::from(rule.unused_for) {
            return Fate::UsedLately;
        }
        Fate::Goes
    }

    /// Removes it, unless another process has begun to use or to write it: then it is kept, and `false` is
    /// returned.
    pub fn remove(&self) -> Result<bool> {
        let removed = match bundle::staged(&self.directory) {
            Some(bundle) => remove_litter(&bundle),
            None => remove_bundle(&self.directory),
        };
        removed.map_err(|error| cannot("remove", &self.directory, &error))
    }
}

fn remove_litter(bundle: &Path) -> io::Result<bool> {
    let Some(_writing) = exclusive(&bundle::lock(bundle))? else { return Ok(false) };
    fs::remove_dir_all(bundle::staging(bundle)).map(|()| true)
}

fn remove_bundle(bundle: &Path) -> io::Result<bool> {
    // The file of this lock stays: another process may already wait for it.
    let Some(_writing) = exclusive(&bundle::lock(bundle))? else { return Ok(false) };
    let used = bundle::used(bundle);
    let Some(_using) = exclusive(&used)? else { return Ok(false) };
    let staging = bundle::staging(bundle);
    if staging.exists() {
        fs::remove_dir_all(&staging)?;
    }
    // A crash here leaves files that the next run recognises and deletes.
    fs::rename(bundle, &staging)?;
    fs::remove_dir_all(&staging)?;
    fs::remove_file(used).map(|()| true)
}

impl Rule {
    /// Rejects names that no bundle has: a typing error must not cost a bundle.
    pub fn check(&self, bundles: &[CachedBundle]) -> Result<()> {
        let unknown = |name: &&String| !bundles.iter().any(|bundle| bundle.is_called(name));
        let Some(name) = self.keep.iter().find(unknown) else { return Ok(()) };
        let names: Vec<_> = bundles.iter().map(CachedBundle::address).collect();
        let there = match names.as_slice() {
            [] => "there is no bundle at all".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        Err(Failure::usage(format!("--keep: no bundle is called {name:?}; {there}")))
    }
}

/// Marks a bundle of the cache as used now, and as in use until this process ends.
pub(crate) fn hold(places: &Places, bundle: &Path) {
    static HELD: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());
    let is_cached = || Some(bundle.parent()?.canonicalize().ok()? == places.bundles().canonicalize().ok()?);
    if is_cached() != Some(true) {
        return;
    }
    let used = bundle::used(bundle);
    let mut held = HELD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let marked = || {
        let file = File::options().create(true).truncate(false).write(true).open(&used)?;
        file.lock_shared()?;
        file.set_modified(SystemTime::now())?;
        Ok::<_, io::Error>(file)
    };
    // A cache that is not writable cannot be pruned either.
    if let Ok(file) = marked() {
        held.insert(used, file);
    }
}

fn time(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Whether another process, or another part of this one, holds a lock on `path`.
fn is_locked(path: &Path) -> bool {
    untrusted::file::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// The lock on `path`, exclusive; `None` if it is taken.
fn exclusive(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot {what} {}: {error}", path.display()))
}
