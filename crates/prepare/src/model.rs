//! A source, opened and checked: the common parts of all kinds.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bundle::{ModelConfig, TensorSpec};
use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

use crate::error::PrepareError;

/// The text files of a bundle, called as Hugging Face calls them.
pub(crate) const CONFIG: &str = "config.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// A model; every tensor is known to exist in the shape that the configuration requires.
/// No weights have been read yet.
pub(crate) struct Model {
    /// Its name, unless the request gives another.
    pub(crate) name: String,
    /// The manifest's word for this kind of source.
    pub(crate) kind: &'static str,
    /// Every file that the bundle is made from; none where it is made from nothing but its shape.
    pub(crate) files: Vec<SourceFile>,
    /// The seed, where weights are drawn.
    pub(crate) seed: Option<u64>,
    pub(crate) config: ModelConfig,
    pub(crate) config_json: Document,
    /// Or the reason why there is none.
    pub(crate) tokenizer: Result<Document, String>,
    /// The chat template, of models that have one.
    pub(crate) chat: Option<Document>,
    /// How an encoder's vectors are pooled, where the source says so.
    pub(crate) pooling: Option<Document>,
    pub(crate) tensors: Box<dyn Tensors>,
    /// Files that are copied unchanged instead of weights, with their names in the bundle; none of a
    /// transformer.
    pub(crate) verbatim: Vec<(String, SourceFile)>,
    /// For the manifest: the origin of the weights and their changes before rounding.
    pub(crate) derived: String,
}

/// A text file of the bundle.
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    /// For the manifest.
    pub(crate) derived: String,
}

/// The weights of a source, in pieces: a tensor may be larger than the memory.
pub(crate) trait Tensors {
    /// These rows of the bundle's tensor called `spec.name`, row-major, in the bundle's layout. A vector is one row.
    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError>;

    /// The type that most weights are stored in, as `Q4_1` or `bf16`; `None` if they are stored nowhere.
    fn stored(&self) -> Option<String> {
        None
    }

    /// The file that holds it, for errors.
    fn path_of(&self, name: &str) -> &Path;
}

/// Number of rows of a tensor, and elements of each.
pub(crate) fn matrix(spec: &TensorSpec) -> (usize, usize) {
    match spec.shape.split_last() {
        Some((&columns, rows)) => (rows.iter().product(), columns),
        None => (1, 1),
    }
}

/// A mapped file of the source.
pub(crate) struct SourceFile {
    path: PathBuf,
    /// As it was when the file was opened.
    metadata: Metadata,
    map: std::sync::Arc<Mmap>,
}

impl SourceFile {
    /// Opens a file of a model's directory. A link out of the directory is refused: otherwise a model could
    /// name any file of this machine, which would become part of the bundle.
    pub(crate) fn within(directory: &Path, name: &str) -> Result<SourceFile, PrepareError> {
        let path = directory.join(name);
        let home = directory.canonicalize().map_err(PrepareError::reading(directory))?;
        let target = path.canonicalize().map_err(PrepareError::reading(&path))?;
        let of_hub = blobs_of(&home).is_some_and(|blobs| target.starts_with(blobs));
        if !target.starts_with(&home) && !of_hub {
            let target = target.display();
            let reason = format!(
                "it is a link that leaves the model's directory, to {target}; put the file itself there"
            );
            return Err(PrepareError::NotAModel { path, reason });
        }
        SourceFile::open(&path)
    }

    /// A file that a model may have. A dangling link counts as a file, and is refused.
    pub(crate) fn optional(directory: &Path, name: &str) -> Result<Option<SourceFile>, PrepareError> {
        let is_there = directory.join(name).symlink_metadata().is_ok();
        is_there.then(|| SourceFile::within(directory, name)).transpose()
    }

    pub(crate) fn open(path: &Path) -> Result<SourceFile, PrepareError> {
        let file = untrusted::file::open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => {
                PrepareError::NotAModel { path: path.to_path_buf(), reason: error.to_string() }
            }
            _ => PrepareError::reading(path)(error),
        })?;
        let metadata = file.metadata().map_err(PrepareError::reading(path))?;
        // SAFETY: a source that someone truncates while it is being read would fault; reading it
        // into memory instead would cost the size of the model.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(PrepareError::reading(path))?;
        Ok(SourceFile { path: path.to_path_buf(), metadata, map: std::sync::Arc::new(map) })
    }

    /// The same mapping once more.
    pub(crate) fn share(&self) -> SourceFile {
        SourceFile { path: self.path.clone(), metadata: self.metadata.clone(), map: self.map.clone() }
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Lets the system reclaim the memory of these bytes, which are read from the file again if they are used
    /// again.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            // SAFETY: the mapping is shared and never written to, so that a page that is read again is the
            // same.
            #[allow(unsafe_code)]
            let released = unsafe {
                self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len())
            };
            // It is advice: if the system ignores it, the pages stay.
            let _ = released;
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// File name without its directory.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Where the hub's cache has the files of a snapshot, which itself contains links: `snapshots/COMMIT/FILE` is
/// a link to `../../blobs/HASH`.
fn blobs_of(snapshot: &Path) -> Option<PathBuf> {
    let snapshots = snapshot.parent()?;
    (snapshots.file_name()? == "snapshots").then(|| snapshots.with_file_name("blobs"))
}

/// Refuses a configuration with more layers than the source could hold, before a list of all their
/// tensors is made.
pub(crate) fn check_layers(config: &ModelConfig, path: &Path, held: usize) -> Result<(), PrepareError> {
    if config.layers > held {
        let layers = config.layers;
        let reason = format!("the configuration has {layers} layers, but there are only {held} tensors");
        return Err(PrepareError::damaged(path, reason));
    }
    Ok(())
}

/// The type of most elements, given each tensor's type and number of elements.
pub(crate) fn most_common(tensors: impl Iterator<Item = (String, usize)>) -> Option<String> {
    let mut elements = BTreeMap::new();
    for (stored, count) in tensors {
        *elements.entry(stored).or_insert(0) += count;
    }
    elements.into_iter().max_by_key(|(_, count)| *count).map(|(stored, _)| stored)
}
