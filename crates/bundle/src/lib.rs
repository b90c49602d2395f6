//! A *bundle* is a prepared model: an immutable directory that every engine reads, so that "the same weights"
//! is a hash and not a promise.
//!
//! ```text
//! config.json      Hugging Face field names      tokenizer.json   Hugging Face tokenizers format (optional)
//! pooling.json     how the vectors of an encoder are pooled (optional)
//! tokenizer_config.json            the chat template and the special tokens that it may name (optional)
//! f32.safetensors  bf16.safetensors  f16.safetensors              (the requested ones)
//! graph.onnx and its external files, instead of weights, if the model is an ONNX file
//! manifest.json    source and sha256; for each file its sha256 and how it was derived
//! ```
//!
//! Three things are fixed here for all engines: linear weights are `[out, in]` whatever the source's layout;
//! tensors that engines fuse (q·k·v, gate·up) are adjacent in the file, so that a fused weight is a view
//! ([`Weights::stacked`]) and not a copy; and the rotary tables are computed in one place ([`rotary`]).
//!
//! This crate reads bundles. `prepare` writes them.

mod config;
mod described;
mod error;
mod hashed;
mod manifest;
mod pooling;
mod precision;
pub mod quantised;
pub mod rotary;
pub mod sibling_paths;
mod tensor;
mod weights;

use std::path::{Path, PathBuf};

pub use config::{
    Activation, Architecture, Dense, Dtype, Encoder, Feature, Form, GRAPH_FILE, Graph, GraphInput,
    GraphOutput, Head, HeadActivation, HeadNames, LayerAttention, LayerNames, LinearNames, Llama3Scaling,
    LongRope, ModelConfig, NormNames, NormPlacement, Position, RelativePositions, Rotary, Scored, Size,
    StoredTensor, TensorSpec,
};
pub use error::BundleError;
pub use hashed::{FileIdentity, hexadecimal, sha256_of};
pub use manifest::{FileRecord, MANIFEST, MANIFEST_FORMAT, Manifest, Source};
pub use pooling::{POOLING, Pooled, Pooling};
pub use precision::{Element, Precision};
pub use quantised::{Quantised, scale_name};
pub use tensor::TensorView;
pub use weights::Weights;

/// An opened bundle: its configuration and its manifest. No weights are read until asked for.
#[derive(Debug, Clone)]
pub struct Bundle {
    directory: PathBuf,
    config: ModelConfig,
    manifest: Manifest,
}

impl Bundle {
    pub fn open(directory: impl AsRef<Path>) -> Result<Bundle, BundleError> {
        let directory = directory.as_ref().to_path_buf();
        let manifest = Manifest::read(&directory)?;
        let config = ModelConfig::read(&directory.join("config.json"))?;
        Ok(Bundle { directory, config, manifest })
    }

    /// The same weights as a token-by-token decoder ([`ModelConfig::autoregressive`]).
    pub fn autoregressive(self) -> Bundle {
        Bundle { config: self.config.autoregressive(), ..self }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The precisions of the weights in this bundle.
    pub fn precisions(&self) -> Vec<Precision> {
        let is_held = |precision: &Precision| self.manifest.files.contains_key(&self.file_name(*precision));
        Precision::ALL.into_iter().filter(is_held).collect()
    }

    /// Path of `tokenizer.json`, if the source had a tokenizer.
    pub fn tokenizer(&self) -> Option<PathBuf> {
        self.manifest.files.contains_key("tokenizer.json").then(|| self.directory.join("tokenizer.json"))
    }

    /// Path of `tokenizer_config.json`, if the source had a chat template.
    pub fn chat_template(&self) -> Option<PathBuf> {
        let is_there = self.manifest.files.contains_key("tokenizer_config.json");
        is_there.then(|| self.directory.join("tokenizer_config.json"))
    }

    /// How an encoder's vectors are pooled; `None` if its source does not say.
    pub fn pooled(&self) -> Result<Option<Pooled>, BundleError> {
        if !self.manifest.files.contains_key(POOLING) {
            return Ok(None);
        }
        let path = self.directory.join(POOLING);
        let text =
            untrusted::file::read_text(&path, untrusted::file::CONFIG).map_err(BundleError::io(&path))?;
        let pooled = serde_json::from_str(&text);
        pooled.map(Some).map_err(|e| BundleError::Config(format!("{} does not parse: {e}", path.display())))
    }

    /// Path of the weights at `precision`; the error lists the available precisions.
    pub fn weights_path(&self, precision: Precision) -> Result<PathBuf, BundleError> {
        let held = self.precisions();
        if !held.contains(&precision) {
            let held = held.iter().map(|p| p.name()).collect::<Vec<_>>().join(", ");
            return Err(BundleError::PrecisionNotHeld {
                path: self.directory.clone(),
                wanted: precision,
                held: if held.is_empty() { "none".into() } else { held },
            });
        }
        Ok(self.directory.join(self.file_name(precision)))
    }

    /// The file with the weights at `precision`. An ONNX file has a precision of its own, and is found under
    /// f32.
    fn file_name(&self, precision: Precision) -> String {
        match &self.config.graph {
            Some(_) if precision == Precision::F32 => GRAPH_FILE.to_owned(),
            _ => precision.file_name(),
        }
    }

    /// Rejects incomplete weights: checks every tensor's presence, shape and type, without reading their
    /// pages. An ONNX file describes itself.
    pub fn check_weights(&self, precision: Precision) -> Result<(), BundleError> {
        match &self.config.graph {
            Some(_) => self.weights_path(precision).map(drop),
            None => self.weights(precision).map(drop),
        }
    }

    /// Compares the hash of every file of the weights at `precision` with the manifest's.
    pub fn verify_weights(&self, precision: Precision) -> Result<(), BundleError> {
        if self.config.graph.is_none() {
            return self.verify(&precision.file_name()).map(drop);
        }
        self.manifest.files.keys().try_for_each(|file| self.verify(file).map(drop))
    }

    /// Maps the weights at `precision` and checks every tensor's presence, shape and element type
    /// against the configuration. Pages are not touched: see [`Weights::touch`].
    pub fn weights(&self, precision: Precision) -> Result<Weights, BundleError> {
        let stored = self.config.stored(precision)?;
        Weights::map(&self.weights_path(precision)?, precision, &stored)
    }

    /// Reads a file of the bundle and compares its sha256 with the manifest's.
    pub fn verify(&self, file: &str) -> Result<String, BundleError> {
        let path = self.directory.join(file);
        let expected = match self.manifest.files.get(file) {
            Some(record) => &record.sha256,
            None => {
                let reason = format!("its manifest does not list {file}");
                return Err(BundleError::NotABundle { path: self.directory.clone(), reason });
            }
        };
        let found = sha256_of(&path).map_err(BundleError::io(&path))?;
        if &found != expected {
            return Err(BundleError::HashMismatch { path, found, expected: expected.clone() });
        }
        Ok(found)
    }
}
