//! Makes a *bundle* (see the `bundle` crate) from a Hugging Face directory, a GGUF file, an ONNX file, a
//! repository on the Hugging Face hub, or from a published shape alone, with weights drawn at random.
//!
//! A bundle is content-addressed: its directory is named after the model and a hash over the source's files.
//! It appears whole or not at all, and making it a second time only checks the source; only a changed source
//! is hashed again.

mod chat;
mod digests;
mod encode;
mod error;
mod gguf;
mod hub;
mod huggingface;
mod model;
mod onnx_file;
mod pooling;
mod progress;
mod quantise;
mod request;
mod room;
mod safetensors;
mod store;
mod synthetic;
#[doc(hidden)]
pub mod testing;

use std::path::{Path, PathBuf};

use bundle::{Bundle, MANIFEST, Precision};
use serde_json::Value;

pub use error::PrepareError;
pub use progress::Progress;
pub use request::{Request, Source};
pub use synthetic::names as synthetic_names;

use progress::Reporter;

/// Makes the bundle for `request`, or its missing parts, and returns its directory.
pub fn prepare(request: &Request) -> Result<PathBuf, PrepareError> {
    if request.precisions.is_empty() {
        return Err(PrepareError::Request(format!(
            "no precision was asked for; there are {}",
            Precision::names()
        )));
    }
    let model = match &request.source {
        Source::Directory(directory) if directory.join(MANIFEST).is_file() => {
            return existing_bundle(directory, &request.precisions);
        }
        Source::Directory(directory) => huggingface::open(directory)?,
        Source::Gguf(path) => gguf::open(path)?,
        Source::Onnx(path) => onnx_file::open(path)?,
        Source::Synthetic(name) => synthetic::open(name)?,
        Source::Hub(repository) => {
            let mut model = huggingface::open(&hub::fetch(repository, request.progress)?)?;
            // The snapshot's directory is named after a commit.
            model.name = repository.split('/').next_back().unwrap_or(repository).to_owned();
            model
        }
    };
    if model.config.graph.is_some() && request.precisions.iter().any(|&precision| precision != Precision::F32)
    {
        return Err(PrepareError::Request(
            "an ONNX file runs in the precision that it is stored in: leave out --precision".into(),
        ));
    }
    let mut reporter = Reporter::new(request.progress);
    store::store(request, &model, &mut reporter)
}

/// The config.json of a model, in Hugging Face's field names, without reading or fetching any weights.
pub fn config(source: &Source, progress: Progress) -> Result<Value, PrepareError> {
    let model = match source {
        Source::Directory(directory) if directory.join(MANIFEST).is_file() => {
            Bundle::open(directory)?;
            return huggingface::config_json(directory);
        }
        Source::Hub(repository) => {
            return huggingface::config_json(&hub::fetch_config(repository, progress)?);
        }
        Source::Directory(directory) => huggingface::open(directory)?,
        Source::Gguf(path) => gguf::open(path)?,
        Source::Onnx(path) => onnx_file::open(path)?,
        Source::Synthetic(name) => synthetic::open(name)?,
    };
    Ok(serde_json::from_slice(&model.config_json.bytes).expect("it was parsed when the model was opened"))
}

/// A bundle that is the source is used as it is: its own source may not exist any more.
fn existing_bundle(directory: &Path, precisions: &[Precision]) -> Result<PathBuf, PrepareError> {
    let bundle = Bundle::open(directory)?;
    for &precision in precisions {
        bundle.check_weights(precision)?;
    }
    Ok(directory.to_path_buf())
}
