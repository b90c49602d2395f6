//! sha256 of a source's files. A file that was hashed before and has not changed since is not read again.
//!
//! `.sources.json`, next to the bundles, has for each file its device, inode, size and time of change, and
//! its digest. A file that is changed without a change of any of the four goes unnoticed, as with `make`.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bundle::{FileIdentity, hexadecimal};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::model::{CONFIG, Model, SourceFile};
use crate::progress::Reporter;

const REMEMBERED: &str = ".sources.json";
/// The coarsest step of a file system's times: a file that changed this recently may change again at the same time.
const STEP: Duration = Duration::from_secs(2);
/// Bytes that are hashed at a time.
const CHUNK: usize = 1 << 22;

/// sha256 by name of every file of the source; without files, of the configuration, which then is the source.
pub(crate) fn compute(model: &Model, bundles: &Path, reporter: &mut Reporter) -> BTreeMap<String, String> {
    if model.files.is_empty() {
        let digest = hexadecimal(&Sha256::digest(&model.config_json.bytes));
        return BTreeMap::from([(CONFIG.to_owned(), digest)]);
    }
    let mut remembered = Remembered::read(bundles);
    let known: Vec<_> = model.files.iter().map(|file| (file, remembered.digest(file))).collect();
    let unknown = known.iter().filter(|(_, digest)| digest.is_none());
    let bytes = unknown.map(|(file, _)| file.bytes().len() as u64).sum();
    if bytes > 0 {
        reporter.start("hashing the source".into(), bytes);
    }
    let mut digests = BTreeMap::new();
    for (file, digest) in known {
        let digest = digest.unwrap_or_else(|| {
            let started = SystemTime::now();
            let digest = hash(file, reporter);
            remembered.note(file, &digest, started);
            digest
        });
        digests.insert(file.name(), digest);
    }
    reporter.finish();
    remembered.write();
    digests
}

fn hash(file: &SourceFile, reporter: &Reporter) -> String {
    let mut hasher = Sha256::new();
    for (index, chunk) in file.bytes().chunks(CHUNK).enumerate() {
        hasher.update(chunk);
        file.release(index * CHUNK..index * CHUNK + chunk.len());
        reporter.advance(chunk.len() as u64);
    }
    hexadecimal(&hasher.finalize())
}

/// Digests of earlier runs. Without them only time is lost, so that errors in reading or writing them are
/// ignored.
struct Remembered {
    path: PathBuf,
    /// By absolute path of the file.
    digests: BTreeMap<PathBuf, Entry>,
    has_changed: bool,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    identity: FileIdentity,
    sha256: String,
}

impl Remembered {
    fn read(bundles: &Path) -> Remembered {
        let path = bundles.join(REMEMBERED);
        let digests = untrusted::file::read(&path, untrusted::file::CONFIG)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Remembered { path, digests: digests.unwrap_or_default(), has_changed: false }
    }

    fn digest(&self, file: &SourceFile) -> Option<String> {
        let entry = self.digests.get(&std::path::absolute(file.path()).ok()?)?;
        (FileIdentity::new(file.metadata())? == entry.identity).then(|| entry.sha256.clone())
    }

    /// Notes the digest of a file that was hashed from `started` on, unless it may have changed meanwhile.
    fn note(&mut self, file: &SourceFile, digest: &str, started: SystemTime) {
        let settled = |metadata: &Metadata| {
            let age = started.duration_since(metadata.modified().ok()?).ok()?;
            (age > STEP).then_some(())
        };
        let identity = FileIdentity::new(file.metadata());
        let now = std::fs::metadata(file.path()).ok().as_ref().and_then(FileIdentity::new);
        let (Some(()), Some(identity)) = (settled(file.metadata()), identity) else { return };
        let Ok(path) = std::path::absolute(file.path()) else { return };
        if now.as_ref() == Some(&identity) {
            self.digests.insert(path, Entry { identity, sha256: digest.to_owned() });
            self.has_changed = true;
        }
    }

    /// Replaces the file as a whole. Of two processes that write at once one's digests are lost, and found again.
    fn write(mut self) {
        if !self.has_changed {
            return;
        }
        self.digests.retain(|path, _| path.exists());
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let written = || {
            std::fs::create_dir_all(directory)?;
            let mut file = NamedTempFile::new_in(directory)?;
            file.write_all(&serde_json::to_vec_pretty(&self.digests)?)?;
            file.persist(&self.path)?;
            Ok::<_, std::io::Error>(())
        };
        let _ = written();
    }
}
