//! Makes a *bundle* (see the `bundle` crate) from a Hugging Face directory, a directory of CTranslate2, a GGUF file, an
//! ONNX file, a repository on the Hugging Face hub, or from a published shape alone, with weights drawn at random.
//!
//! A bundle is content-addressed: its directory is named after the model and a hash over the source's files.
//! It appears whole or not at all, and making it a second time only checks the source; only a changed source
//! is hashed again.

mod ctranslate2;
mod elsewhere;
mod gguf;
mod hub;
mod huggingface;
mod model;
mod modules;
mod mxfp4;
mod names;
mod quantise;
mod safetensors;
mod store;
mod synthetic;
#[doc(hidden)]
pub mod testing;
mod tokenizer_files;
mod vocabulary;

use std::io;
use std::path::{Path, PathBuf};

use bundle::{Bundle, BundleError, MANIFEST, ModelConfig, Precision};
use indicatif::{ProgressBar, ProgressStyle};
use model::Model;
use serde_json::Value;
pub use synthetic::names as synthetic_names;

/// Makes the bundle for `request`, or its missing parts, and returns its directory.
pub fn prepare(request: &Request) -> Result<PathBuf, PrepareError> {
    if request.precisions.is_empty() {
        return Err(PrepareError::Request(format!(
            "no precision was asked for; there are {}",
            Precision::names()
        )));
    }
    if let Source::Directory(directory) = &request.source
        && directory.join(MANIFEST).is_file()
    {
        // A bundle that is the source is used as it is: its own source may not exist any more.
        let bundle = Bundle::open(directory)?;
        request.precisions.iter().try_for_each(|&precision| bundle.check_weights(precision))?;
        return Ok(directory.clone());
    }
    let model = open(&request.source, request.progress)?;
    if model.config.graph.is_some() && request.precisions.iter().any(|&precision| precision != Precision::F32)
    {
        return Err(PrepareError::Request(
            "an ONNX file runs in the precision that it is stored in: leave out --precision".into(),
        ));
    }
    if request.precisions.contains(&Precision::File) {
        model.tensors.check_blocks(&model.config)?;
    }
    let mut reporter = Reporter::new(request.progress);
    store::store(request, &model, &mut reporter)
}

fn open(source: &Source, progress: Progress) -> Result<Model, PrepareError> {
    match source {
        Source::Directory(directory) if ctranslate2::is_in(directory) => ctranslate2::open(directory),
        Source::Directory(directory) => huggingface::open(directory),
        Source::Gguf(path) => gguf::open(path),
        Source::Onnx(path) => model::open(path),
        Source::Synthetic(name) => synthetic::open(name),
        Source::Hub(repository) => {
            let mut model = huggingface::open(&hub::fetch(repository, progress)?)?;
            // The snapshot's directory is named after a commit.
            model.name = repository.split('/').next_back().unwrap_or(repository).to_owned();
            Ok(model)
        }
    }
}

/// The config.json of a model, in Hugging Face's field names, without reading or fetching any weights.
pub fn config(source: &Source, progress: Progress) -> Result<Value, PrepareError> {
    match source {
        Source::Directory(directory) if directory.join(MANIFEST).is_file() => {
            Bundle::open(directory)?;
            huggingface::config_json(directory)
        }
        Source::Hub(repository) => huggingface::config_json(&hub::fetch_config(repository, progress)?),
        _ => {
            let bytes = open(source, progress)?.config_json.bytes;
            Ok(serde_json::from_slice(&bytes).expect("it was parsed when the model was opened"))
        }
    }
}

/// Why a bundle could not be made. Each message is one sentence for users: the fault, its place, and the
/// remedy.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The request itself makes no sense: a model name that cannot name a directory, no precisions.
    #[error("{0}")]
    Request(String),
    /// The source is not there, or is not a model.
    #[error("{path} is not a model: {reason}")]
    NotAModel { path: PathBuf, reason: String },
    /// The file contradicts its format or itself.
    #[error("{path} is damaged: {reason}")]
    Damaged { path: PathBuf, reason: String },
    #[error("{path}: {reason}")]
    Unsupported { path: PathBuf, reason: String },
    /// A tensor is missing, or differs from config.json.
    #[error("{path}: tensor {name:?} {reason}")]
    Tensor { path: PathBuf, name: String, reason: String },
    #[error("{path}: {source}")]
    Model { path: PathBuf, source: BundleError },
    /// A Hugging Face repository could not be fetched, or is not in the local cache.
    #[error("hf:{repository}: {reason}")]
    Hub { repository: String, reason: String },
    /// More than the disk has room for.
    #[error("{path}: {reason}")]
    NoRoom { path: PathBuf, reason: String },
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}: {source}{}", remedy(source))]
    Write { path: PathBuf, source: io::Error },
}

/// What to do about a disk that filled up while a bundle was written. Nothing of the bundle is left by then.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; nothing was kept of it: make room, for instance by `photofinish list cache --prune`, and try again"
        }
        _ => "",
    }
}

impl PrepareError {
    /// Whether the source or the request is at fault, rather than the machine (a full disk, a
    /// permission).
    pub fn is_bad_input(&self) -> bool {
        match self {
            PrepareError::Read { .. } | PrepareError::Write { .. } => false,
            PrepareError::Model { source, .. } | PrepareError::Bundle(source) => {
                !matches!(source, BundleError::Io { .. })
            }
            _ => true,
        }
    }

    /// For `map_err` on reading `path`. A path that does not exist is the caller's mistake.
    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> PrepareError {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            io::ErrorKind::NotFound => PrepareError::not_a_model(path, "there is no such file"),
            _ => PrepareError::Read { path, source },
        }
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> PrepareError {
        let path = path.to_path_buf();
        move |source| PrepareError::Write { path, source }
    }

    pub(crate) fn not_a_model(path: impl Into<PathBuf>, reason: impl Into<String>) -> PrepareError {
        PrepareError::NotAModel { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn unsupported(path: impl Into<PathBuf>, reason: impl Into<String>) -> PrepareError {
        PrepareError::Unsupported { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn model(path: &Path) -> impl FnOnce(BundleError) -> PrepareError {
        let path = path.to_path_buf();
        move |source| PrepareError::Model { path, source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> PrepareError {
        PrepareError::Damaged { path: path.to_path_buf(), reason: reason.into() }
    }

    pub(crate) fn tensor(path: &Path, name: &str, reason: impl Into<String>) -> PrepareError {
        PrepareError::Tensor { path: path.to_path_buf(), name: name.to_owned(), reason: reason.into() }
    }
}

// The display while a bundle is made.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing but errors, and those are returned.
    Silent,
    /// Bars and warnings on stderr. Bars are drawn only where stderr is a terminal.
    Bar,
}

struct Reporter {
    progress: Progress,
    bar: ProgressBar,
}

impl Reporter {
    pub(crate) fn new(progress: Progress) -> Reporter {
        Reporter { progress, bar: ProgressBar::hidden() }
    }

    /// Begins a stretch of work over `bytes` bytes.
    pub(crate) fn start(&mut self, what: String, bytes: u64) {
        if self.progress == Progress::Silent {
            return;
        }
        let style = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style).expect("a constant template");
        self.bar = ProgressBar::new(bytes).with_style(style).with_message(what);
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    pub(crate) fn note(&self, text: &str) {
        if self.progress == Progress::Bar {
            self.bar.suspend(|| protocol::say!("{text}"));
        }
    }
}

// Whether the disk has room for the files to write.

/// Refuses weights for which the disk of `directory` has no room, before hours of writing.
fn check(config: &ModelConfig, precisions: &[Precision], directory: &Path) -> Result<(), PrepareError> {
    let Some(free) = free(directory) else { return Ok(()) };
    let mut parts = Vec::new();
    for &precision in precisions {
        let bytes = config.stored(precision)?.iter().map(|tensor| tensor.bytes()).sum::<u64>();
        parts.push((precision, bytes));
    }
    objection(&parts, free)
        .map_or(Ok(()), |reason| Err(PrepareError::NoRoom { path: directory.to_path_buf(), reason }))
}

fn objection(parts: &[(Precision, u64)], free: u64) -> Option<String> {
    let needed = parts.iter().map(|(_, bytes)| bytes).sum::<u64>();
    if needed <= free {
        return None;
    }
    let terms: Vec<_> = parts.iter().map(|(p, bytes)| format!("{} at {p}", gigabytes(*bytes))).collect();
    let sum = if parts.len() > 1 { format!(" = {}", gigabytes(needed)) } else { String::new() };
    Some(format!(
        "the weights take {}{sum}, but its disk has {} free; make room, or ask for another precision or a smaller model",
        terms.join(" + "),
        gigabytes(free)
    ))
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

/// Bytes that this user may still write; `None` where the system does not report.
fn free(directory: &Path) -> Option<u64> {
    #[cfg(unix)]
    return rustix::fs::statvfs(directory).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    #[cfg(not(unix))]
    None
}

// The request to prepare a model.

#[derive(Debug, Clone)]
pub struct Request {
    pub source: Source,
    /// The name of the model; by default it is named after the source.
    pub name: Option<String>,
    /// The precisions that the bundle must hold in the end.
    pub precisions: Vec<Precision>,
    /// The directory in which all bundles are; made if it is not there.
    pub bundles: PathBuf,
    pub progress: Progress,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A Hugging Face directory (config.json and safetensors), one of CTranslate2 (model.bin), or a bundle, which is
    /// returned as it is.
    Directory(PathBuf),
    /// A GGUF file, or a part of a model in several.
    Gguf(PathBuf),
    Onnx(PathBuf),
    Hub(String),
    /// A model of a published shape with random weights; one of [`synthetic_names`](synthetic_names).
    Synthetic(String),
}

impl Source {
    /// As people write it: `hf:owner/name`, `synthetic:NAME`, a path that ends in `.onnx`, a GGUF file of any name, or a
    /// directory.
    pub fn parse(text: &str) -> Source {
        if let Some(name) = text.strip_prefix(synthetic::PREFIX) {
            return Source::Synthetic(name.to_owned());
        }
        let path = PathBuf::from(text);
        match text.strip_prefix("hf:") {
            Some(repository) => Source::Hub(repository.to_owned()),
            None => match path.extension().map(|extension| extension.to_ascii_lowercase()) {
                Some(extension) if extension == "gguf" => Source::Gguf(path),
                Some(extension) if extension == "onnx" && !path.is_dir() => Source::Onnx(path),
                _ if gguf::is_one(&path) => Source::Gguf(path),
                _ => Source::Directory(path),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_what_to_do() {
        let told =
            |kind| PrepareError::writing(Path::new("b/f32.safetensors"))(io::Error::from(kind)).to_string();
        let full = told(io::ErrorKind::StorageFull);
        assert!(
            full.starts_with("cannot write b/f32.safetensors: ") && full.contains("list cache --prune"),
            "{full}"
        );
        assert!(!told(io::ErrorKind::PermissionDenied).contains("prune"));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_arithmetic() {
        let parts = [(Precision::F32, 4_400_000_000), (Precision::Int8, 1_100_000_000)];
        assert_eq!(objection(&parts, 5_500_000_000), None);
        let reason = objection(&parts, 5_499_999_999).unwrap();
        assert!(reason.contains("4.40 GB at f32 + 1.10 GB at int8 = 5.50 GB"), "{reason}");
        assert!(
            objection(&parts[1..], 7).unwrap().contains("take 1.10 GB at int8, but its disk has 0.00 GB")
        );
    }
}
