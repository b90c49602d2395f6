//! Why a file is not derived.

use std::path::PathBuf;

use bundle::BundleError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// This model cannot be written as GGUF; the text says why.
    #[error("{0}")]
    Unsupported(String),
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
}
