//! The place of bundles, and how a bundle is written there whole or not at all.
//!
//! Everything new is written into a staging directory next to the bundle, on the same file system, and
//! renamed into place; the manifest is last. A lock, which the operating system releases when its holder
//! dies, makes one process at a time the writer of a bundle. So any file in the staging directory when the
//! lock is taken is left over from a crash, and is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bundle::{self, FileIdentity, FileRecord, MANIFEST, MANIFEST_FORMAT, Manifest, Precision, hexadecimal};
use protocol::untrusted;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::model::{CONFIG, Document, Model, SourceFile, TOKENIZER, matrix};
use crate::safetensors::{Piece, Writer};
use crate::{PrepareError, Reporter, Request};

/// Part of every bundle's address. Must be raised if the same source starts to give other bytes.
const RECIPE: u32 = 3;

/// Makes the bundle of `model` contain everything that `request` needs.
pub(crate) fn store(
    request: &Request,
    model: &Model,
    reporter: &mut Reporter,
) -> Result<PathBuf, PrepareError> {
    let name = model_name(request.name.as_deref(), &model.name)?;
    let sha256 = compute(model, &request.bundles, reporter);
    let directory = request.bundles.join(format!("{name}-{}", address(model, &sha256)));
    // Without the lock, so that bundles can also be used where nothing can be written.
    if State::read(&directory, model, &request.precisions).missing.is_empty() {
        return Ok(directory);
    }

    fs::create_dir_all(&request.bundles).map_err(PrepareError::writing(&request.bundles))?;
    let _lock = lock(&bundle::lock(&directory), reporter)?;
    // The holder of the lock until now may have done the work.
    let State { is_bundle, intact, missing } = State::read(&directory, model, &request.precisions);
    if missing.is_empty() {
        return Ok(directory);
    }
    let staging = Staging::create(bundle::staging(&directory))?;
    crate::check(&model.config, &weights_in(&missing), &request.bundles)?;
    let mut files = write_files(model, &missing, &staging.0, reporter)?;
    files.extend(intact);
    let source =
        bundle::Source { kind: model.kind.into(), seed: model.seed, stored: model.tensors.stored(), sha256 };
    let no_tokenizer = model.tokenizer.as_ref().err().cloned();
    let manifest = Manifest { format: MANIFEST_FORMAT, name, source, no_tokenizer, files };
    write_file(&staging.0.join(MANIFEST), &Document::pretty(&manifest, "").bytes, "")?;
    publish(&staging.0, &directory, &missing, is_bundle)?;
    Ok(directory)
}

/// The intact files of a bundle's directory, and the missing ones.
struct State {
    is_bundle: bool,
    intact: BTreeMap<String, FileRecord>,
    missing: BTreeSet<String>,
}

impl State {
    fn read(directory: &Path, model: &Model, precisions: &[Precision]) -> State {
        let manifest = Manifest::read(directory).ok();
        let is_bundle = manifest.is_some();
        let mut files = manifest.map(|manifest| manifest.files).unwrap_or_default();
        let documents = documents(model).map(|(file, _)| file.to_owned());
        let mut missing: BTreeSet<String> = documents.collect();
        // Files that the bundle already had are made again if they are damaged.
        let wanted = Precision::ALL.into_iter().map(|precision| (precision, precision.file_name()));
        let wanted = wanted.filter(|(p, file)| precisions.contains(p) || files.contains_key(file));
        match model.verbatim.as_slice() {
            [] => missing.extend(wanted.map(|(_, file)| file)),
            verbatim => missing.extend(verbatim.iter().map(|(file, _)| file.clone())),
        }
        files.retain(|file, record| is_intact(&directory.join(file), record));
        missing.retain(|file| !files.contains_key(file));
        State { is_bundle, intact: files, missing }
    }
}

fn documents(model: &Model) -> impl Iterator<Item = (&'static str, &Document)> {
    let tokenizer = model.tokenizer.as_ref().ok().map(|document| (TOKENIZER, document));
    let others = model.others.iter().map(|(file, document)| (*file, document));
    [(CONFIG, &model.config_json)].into_iter().chain(tokenizer).chain(others)
}

fn is_intact(path: &Path, record: &FileRecord) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == record.bytes)
}

fn write_files(
    model: &Model,
    files: &BTreeSet<String>,
    directory: &Path,
    reporter: &mut Reporter,
) -> Result<BTreeMap<String, FileRecord>, PrepareError> {
    let mut records = BTreeMap::new();
    for (file, document) in documents(model).filter(|(file, _)| files.contains(*file)) {
        // Every reader of a bundle has this bound.
        if file != TOKENIZER && document.bytes.len() as u64 > untrusted::file::CONFIG {
            let (bytes, most) = (document.bytes.len(), untrusted::file::CONFIG);
            return Err(PrepareError::unsupported(
                directory.join(file),
                format!(
                    "its {file} would have {bytes} bytes, and at most {most} are read: it is no usual model"
                ),
            ));
        }
        let record = write_file(&directory.join(file), &document.bytes, &document.derived)?;
        records.insert(file.to_owned(), record);
    }
    for (file, source) in model.verbatim.iter().filter(|(file, _)| files.contains(file)) {
        let record = write_file(&directory.join(file), source.bytes(), "the source's, as it is")?;
        records.insert(file.clone(), record);
    }
    let precisions = weights_in(files);
    if let Err(reason) = &model.tokenizer
        && !precisions.is_empty()
        && model.seed.is_none()
    {
        reporter.note(&format!(
            "warning: the model has no tokenizer, so token ids are all that can be fed to it: {reason}"
        ));
    }
    records.extend(write_weights(model, &precisions, directory, reporter)?);
    Ok(records)
}

fn weights_in(files: &BTreeSet<String>) -> Vec<Precision> {
    Precision::ALL.into_iter().filter(|precision| files.contains(&precision.file_name())).collect()
}

/// Writes all of `precisions` in one pass, so that each tensor is read and converted once.
fn write_weights(
    model: &Model,
    precisions: &[Precision],
    directory: &Path,
    reporter: &mut Reporter,
) -> Result<BTreeMap<String, FileRecord>, PrepareError> {
    let specs = model.config.tensors();
    let mut writers = Vec::new();
    for &precision in precisions {
        let path = directory.join(precision.file_name());
        writers.push((precision, Writer::create(&path, precision, model.config.stored(precision)?)?));
    }
    if writers.is_empty() {
        return Ok(BTreeMap::new());
    }
    let keeps_blocks = precisions.contains(&Precision::File);
    let elements = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    let names = precisions.iter().map(|p| p.name()).collect::<Vec<_>>().join(", ");
    reporter.start(format!("writing {names}"), 4 * specs.iter().map(|s| elements(&s.shape)).sum::<u64>());
    for spec in &specs {
        let (all, columns) = matrix(spec);
        let step = rows_at_a_time(columns);
        for first in (0..all).step_by(step) {
            let rows = first..all.min(first + step);
            let values = model.tensors.read(spec, rows.clone())?;
            let source = model.tensors.path_of(&spec.name);
            let blocks = match model.config.blocks.contains_key(&spec.name) && keeps_blocks {
                true => model.tensors.blocks(spec, rows),
                false => Vec::new(),
            };
            let piece = Piece { spec, start: first * columns, values: &values, blocks: &blocks, source };
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return Err(piece.cannot(at, "is not finite"));
            }
            for (_, writer) in &mut writers {
                writer.append(&piece)?;
            }
            reporter.advance(4 * values.len() as u64);
        }
    }
    reporter.finish();
    let mut records = BTreeMap::new();
    for (precision, writer) in writers {
        records.insert(precision.file_name(), writer.finish(derived(model, precision))?);
    }
    Ok(records)
}

/// Rows that are in memory at a time. Their number is even, so that blocks of 64 weights are whole in rows of 32, 96, ….
fn rows_at_a_time(columns: usize) -> usize {
    const ELEMENTS: usize = 1 << 20;
    (ELEMENTS / columns.max(1)).max(2).next_multiple_of(2)
}

fn derived(model: &Model, precision: Precision) -> String {
    let rounding = match precision {
        Precision::F32 => "",
        Precision::Bf16 | Precision::F16 => " by way of f32, rounded to nearest even",
        Precision::Int8 => ": linear layers in codes by rounding to nearest, a scale for each row",
        Precision::Int4 => ": linear layers in codes by rounding to nearest, a scale for each group of 32",
        Precision::File => {
            return format!(
                "linear layers in the source's own blocks, the rest {}, stored as f32",
                model.derived
            );
        }
        Precision::Nf4 => ": linear layers in codes by rounding to nearest, a scale for each block of 64",
    };
    format!("weights {}, stored as {precision}{rounding}", model.derived)
}

/// Moves the files of `staging` into the bundle.
fn publish(
    staging: &Path,
    directory: &Path,
    files: &BTreeSet<String>,
    is_bundle: bool,
) -> Result<(), PrepareError> {
    let moved = |from: &Path, to: &Path| fs::rename(from, to).map_err(PrepareError::writing(to));
    if is_bundle {
        for file in files {
            moved(&staging.join(file), &directory.join(file))?;
        }
        // Until here the old manifest has described files that are the same, or that it does not list yet.
        moved(&staging.join(MANIFEST), &directory.join(MANIFEST))?;
        return sync_directory(directory);
    }
    if directory.exists() {
        // A directory without a readable manifest is no bundle.
        fs::remove_dir_all(directory).map_err(PrepareError::writing(directory))?;
    }
    sync_directory(staging)?;
    moved(staging, directory)?;
    sync_directory(directory.parent().unwrap_or(directory))
}

/// Renames are durable once the directory is.
fn sync_directory(directory: &Path) -> Result<(), PrepareError> {
    untrusted::file::sync_directory(directory).map_err(PrepareError::writing(directory))
}

/// Writes a file and returns its record.
fn write_file(path: &Path, bytes: &[u8], derived: &str) -> Result<FileRecord, PrepareError> {
    let mut file = File::create_new(path).map_err(PrepareError::writing(path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(PrepareError::writing(path))?;
    let sha256 = hexadecimal(&Sha256::digest(bytes));
    Ok(FileRecord { sha256, bytes: bytes.len() as u64, derived: derived.to_owned() })
}

/// A directory that is removed when this value is dropped, unless it was renamed.
struct Staging(PathBuf);

impl Staging {
    fn create(path: PathBuf) -> Result<Staging, PrepareError> {
        if path.exists() {
            fs::remove_dir_all(&path).map_err(PrepareError::writing(&path))?;
        }
        fs::create_dir(&path).map_err(PrepareError::writing(&path))?;
        Ok(Staging(path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // If this fails, the next preparation of this model removes the directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Held until the file is dropped.
fn lock(path: &Path, reporter: &Reporter) -> Result<File, PrepareError> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(PrepareError::writing(path))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::Error(source)) => return Err(PrepareError::writing(path)(source)),
        Err(TryLockError::WouldBlock) => {}
    }
    reporter.note("another process is preparing this model; waiting for it");
    file.lock().map_err(PrepareError::writing(path))?;
    Ok(file)
}

/// The name is part of a path and is read by people, hence its limits.
fn model_name(given: Option<&str>, default: &str) -> Result<String, PrepareError> {
    const LONGEST: usize = 100;
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    match given {
        Some(name) => {
            let fits = name.len() <= LONGEST && !name.is_empty() && !name.starts_with('.');
            if !fits || !name.chars().all(plain) {
                return Err(PrepareError::Request(format!(
                    "{name:?} cannot name a model: use up to {LONGEST} letters, digits, '.', '_' and '-', not a leading '.'"
                )));
            }
            Ok(name.to_owned())
        }
        None => {
            let name: String = default.chars().map(|c| if plain(c) { c } else { '-' }).collect();
            let mut name = name.trim_start_matches('.').to_owned();
            name.truncate(name.floor_char_boundary(LONGEST));
            Ok(if name.is_empty() { "model".into() } else { name })
        }
    }
}

/// Distinguishes sources by their contents, not by the names of their files.
fn address(model: &Model, sha256: &BTreeMap<String, String>) -> String {
    let mut hasher = Sha256::new();
    hasher.update(format!("{MANIFEST_FORMAT} {RECIPE} {}\n", model.kind));
    if let Some(seed) = model.seed {
        hasher.update(format!("seed {seed}\n"));
    }
    // Their bundles have had no list of blocks before.
    if !model.config.blocks.is_empty() {
        hasher.update("blocks\n");
    }
    for hash in sha256.values() {
        hasher.update(format!("{hash}\n"));
    }
    hexadecimal(&hasher.finalize())[..16].to_owned()
}

// sha256 of a source's files. A file that was hashed before and has not changed since is not read again.
//
// `.sources.json`, next to the bundles, has for each file its device, inode, size and time of change, and
// its digest. A file that is changed without a change of any of the four goes unnoticed, as with `make`.

const REMEMBERED: &str = ".sources.json";

/// The coarsest step of a file system's times: a file that changed this recently may change again at the same time.
const STEP: Duration = Duration::from_secs(2);

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
