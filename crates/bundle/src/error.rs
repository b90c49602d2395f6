//! Errors of bundles.

use std::path::PathBuf;

use crate::precision::{Element, Precision};

/// An error of a bundle, or of a `config.json` to be prepared.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("cannot read {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a prepared model: {reason}")]
    NotABundle { path: PathBuf, reason: String },
    #[error("architecture {name:?} is not supported; supported are {known}{nearest}")]
    UnsupportedArchitecture { name: String, known: String, nearest: String },
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

/// Least similarity (Jaro and Winkler's, 1 for equal names) at which another name is suggested.
const LIKE: f64 = 0.7;

impl BundleError {
    /// An architecture that is none of `known`, with the most similar one of them.
    pub fn unknown_architecture(name: &str, known: &[&str]) -> BundleError {
        let likeness = |known: &str| strsim::jaro_winkler(&name.to_lowercase(), &known.to_lowercase());
        let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let nearest = nearest.filter(|known| likeness(known) >= LIKE);
        BundleError::UnsupportedArchitecture {
            name: name.to_owned(),
            known: known.join(", "),
            nearest: nearest.map_or(String::new(), |known| format!("; the nearest is {known}")),
        }
    }

    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> BundleError {
        let path = path.into();
        move |source| BundleError::Io { path, source }
    }
}
