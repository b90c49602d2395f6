//! Sources that are held in memory: read as `prepare` reads them from files, and written nowhere. Fuzzers call this.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bundle::{ModelConfig, Precision, Weights};

use crate::error::PrepareError;
use crate::huggingface::{self, Files, INDEX, WEIGHTS};
use crate::model::{CONFIG, Model, SourceFile, TOKENIZER};
use crate::safetensors::Writer;
use crate::{gguf, store};

/// What a source comes to.
#[derive(Debug)]
pub struct Held {
    pub config: ModelConfig,
    pub config_json: Vec<u8>,
    /// Or the reason why there is none.
    pub tokenizer: Result<Vec<u8>, String>,
    /// The files of weights, by precision.
    pub weights: BTreeMap<Precision, Vec<u8>>,
}

/// A GGUF file, of which every tensor is dequantised and written at every precision that its shape allows.
pub fn gguf(bytes: Vec<u8>) -> Result<Held, PrepareError> {
    whole(&gguf::read(SourceFile::held(Path::new("model.gguf"), bytes))?)
}

/// A Hugging Face directory with its weights in one file, likewise.
pub fn huggingface(
    config: Vec<u8>,
    weights: Vec<u8>,
    tokenizer: Option<Vec<u8>>,
) -> Result<Held, PrepareError> {
    let file = |name: &str, bytes| SourceFile::held(Path::new(name), bytes);
    let files = Files {
        config: file(CONFIG, config),
        tokenizer: tokenizer.map(|bytes| file(TOKENIZER, bytes)),
        shards: vec![file(WEIGHTS, weights)],
        index: None,
    };
    whole(&huggingface::read(files, Path::new("model"))?)
}

/// Names of the files that an index of several safetensors files lists.
pub fn index(bytes: Vec<u8>) -> Result<BTreeSet<String>, PrepareError> {
    huggingface::indexed_files(&SourceFile::held(Path::new(INDEX), bytes))
}

/// Writes the weights at every precision that their shapes allow, and holds what was written against what is read.
fn whole(model: &Model) -> Result<Held, PrepareError> {
    let mut written = Vec::new();
    for precision in Precision::ALL {
        // Rows that do not divide into groups are refused, and other precisions are not.
        let Ok(stored) = model.config.stored(precision) else { continue };
        let path = PathBuf::from(precision.file_name());
        written.push((precision, Writer::begin(&path, Vec::new(), precision, stored)?));
    }
    for spec in model.config.tensors() {
        store::append(model, &spec, written.iter_mut().map(|(_, writer)| writer))?;
    }
    let mut weights = BTreeMap::new();
    for (precision, writer) in written {
        let (bytes, _) = writer.finish(String::new())?;
        let stored = model.config.stored(precision)?;
        Weights::check(Path::new(&precision.file_name()), &bytes, &stored)?;
        weights.insert(precision, bytes);
    }
    Ok(Held {
        config: model.config.clone(),
        config_json: model.config_json.bytes.clone(),
        tokenizer: model.tokenizer.as_ref().map(|document| document.bytes.clone()).map_err(Clone::clone),
        weights,
    })
}
