use std::io;
use std::path::{Path, PathBuf};

use bundle::BundleError;

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
            "; nothing was kept of it: make room, for instance by `photofinish cache prune`, and try again"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_what_to_do() {
        let told =
            |kind| PrepareError::writing(Path::new("b/f32.safetensors"))(io::Error::from(kind)).to_string();
        let full = told(io::ErrorKind::StorageFull);
        assert!(
            full.starts_with("cannot write b/f32.safetensors: ") && full.contains("cache prune"),
            "{full}"
        );
        assert!(!told(io::ErrorKind::PermissionDenied).contains("prune"));
    }
}
