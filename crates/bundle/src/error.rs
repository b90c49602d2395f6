//! What can be wrong.

use std::path::PathBuf;

use crate::precision::{Element, Precision};

/// What can be wrong with a bundle, or with a `config.json` on its way into one.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("cannot read {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a prepared model: {reason}")]
    NotABundle { path: PathBuf, reason: String },
    #[error("architecture {0:?} is not supported; supported are llama, mistral, qwen2, qwen3 and gpt2")]
    UnsupportedArchitecture(String),
    #[error("config.json: {0}")]
    Config(String),
    #[error("{path} is not a valid safetensors file: {reason}")]
    Malformed { path: PathBuf, reason: String },
    #[error("{path} has no tensor {name:?}, which config.json calls for")]
    MissingTensor { path: PathBuf, name: String },
    #[error("tensor {name:?} in {path} has shape {found:?}, but config.json calls for {expected:?}")]
    Shape { path: PathBuf, name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {name:?} in {path} is stored as {found}, not as {expected}")]
    ElementType { path: PathBuf, name: String, found: String, expected: Element },
    #[error("{precision} needs rows of a multiple of {multiple}, but tensor {name:?} has rows of {columns}")]
    Quantisation { precision: Precision, name: String, columns: usize, multiple: usize },
    #[error("{path} holds no {wanted} weights; it holds {held}")]
    PrecisionNotHeld { path: PathBuf, wanted: Precision, held: String },
    #[error("{path} has sha256 {found}, but the bundle's manifest says {expected}: delete {} and prepare the model again", path.parent().unwrap_or(path).display())]
    HashMismatch { path: PathBuf, found: String, expected: String },
}

impl BundleError {
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> BundleError {
        let path = path.into();
        move |source| BundleError::Io { path, source }
    }
}
