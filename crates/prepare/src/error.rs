use std::io;
use std::path::{Path, PathBuf};

use bundle::BundleError;

/// Why a bundle could not be made. Each message is one sentence for people: what, where, what to do.
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
    /// A tensor is missing, or is not what config.json calls for.
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
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
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
            io::ErrorKind::NotFound => {
                PrepareError::NotAModel { path, reason: "there is no such file".into() }
            }
            _ => PrepareError::Read { path, source },
        }
    }

    /// For `map_err` on writing `path`.
    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> PrepareError {
        let path = path.to_path_buf();
        move |source| PrepareError::Write { path, source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> PrepareError {
        PrepareError::Damaged { path: path.to_path_buf(), reason: reason.into() }
    }

    pub(crate) fn tensor(path: &Path, name: &str, reason: impl Into<String>) -> PrepareError {
        PrepareError::Tensor { path: path.to_path_buf(), name: name.to_owned(), reason: reason.into() }
    }
}
