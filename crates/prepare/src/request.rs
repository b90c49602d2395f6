//! The request to prepare a model.

use std::path::PathBuf;

use bundle::Precision;

use crate::progress::Progress;
use crate::synthetic;

/// The model to prepare, and the place of the bundle.
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

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A Hugging Face directory (config.json and safetensors), or a bundle, which is returned as it is.
    Directory(PathBuf),
    /// A `.gguf` file.
    Gguf(PathBuf),
    /// An `.onnx` file.
    Onnx(PathBuf),
    /// `owner/name` on the Hugging Face hub.
    Hub(String),
    /// A model of a published shape with random weights; one of [`synthetic_names`](crate::synthetic_names).
    Synthetic(String),
}

impl Source {
    /// As people write it: `hf:owner/name`, `synthetic:NAME`, a path that ends in `.gguf` or `.onnx`, or a directory.
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
                _ => Source::Directory(path),
            },
        }
    }
}
