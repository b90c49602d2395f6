//! Accepted means safe to run: models that were changed, and runs of those that `prepare` accepts.
//!
//! A worker may refuse a model in a sentence, or compute any result. It may not crash, hang, or use more
//! memory than it is given.

mod changes;
mod worker;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bundle::Precision;
use prepare::{PrepareError, Progress, Request, Source, prepare};
use rand_chacha::ChaCha8Rng;
pub use worker::{Ended, Worker};

/// A model that is held in memory: a Hugging Face directory, or a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub enum Model {
    Directory(BTreeMap<String, Vec<u8>>),
    Gguf(Vec<u8>),
}

/// The models that changes begin with: the tiny reference models, and the seeds of the target `gguf`.
pub fn originals() -> Result<Vec<(String, Model)>> {
    let mut models = Vec::new();
    let tiny = crate::root().join("../crates/conformance/fixtures/tiny");
    for name in sorted(&tiny)? {
        let file = |file: &str| Ok::<_, anyhow::Error>((file.to_owned(), fs::read(name.join(file))?));
        let files = [file("config.json")?, file("model.safetensors")?];
        models.push((title(&name), Model::Directory(files.into())));
    }
    for file in sorted(&crate::root().join("corpus/gguf"))? {
        models.push((title(&file), Model::Gguf(fs::read(&file)?)));
    }
    Ok(models)
}

fn sorted(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut paths: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

fn title(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Model {
    /// The model with one to three changes.
    pub fn changed(&self, random: &mut ChaCha8Rng) -> Model {
        changes::changed(self, random)
    }

    /// Writes it, and returns the source for `prepare`.
    pub fn write(&self, directory: &Path) -> Result<Source> {
        fs::create_dir_all(directory)?;
        match self {
            Model::Gguf(bytes) => {
                let path = directory.join("model.gguf");
                fs::write(&path, bytes)?;
                Ok(Source::Gguf(path))
            }
            Model::Directory(files) => {
                for (name, bytes) in files {
                    fs::write(directory.join(name), bytes)?;
                }
                Ok(Source::Directory(directory.to_owned()))
            }
        }
    }
}

/// The bundle of a model, in a directory below `scratch`, or the sentence with which it is refused.
///
/// # Errors
///
/// The machine is at fault: a full disk.
pub fn prepared(
    model: &Model,
    precision: Precision,
    scratch: &Path,
) -> Result<std::result::Result<PathBuf, String>> {
    let request = Request {
        source: model.write(&scratch.join("model"))?,
        name: None,
        precisions: vec![precision],
        bundles: scratch.join("bundles"),
        progress: Progress::Silent,
    };
    match prepare(&request) {
        Ok(bundle) => Ok(Ok(bundle)),
        Err(error @ (PrepareError::Read { .. } | PrepareError::Write { .. })) => Err(error.into()),
        Err(error) => Ok(Err(error.to_string())),
    }
}
