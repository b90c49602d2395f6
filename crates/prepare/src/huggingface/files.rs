//! The files of a Hugging Face directory that hold weights.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::error::PrepareError;
use crate::model::SourceFile;

pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Names of the weights' files, and the index that lists them if there is one. As in transformers:
/// `model.safetensors` alone, else the files of the index, else every safetensors file.
pub(super) fn shards(directory: &Path) -> Result<(Vec<String>, Option<SourceFile>), PrepareError> {
    if directory.join(WEIGHTS).is_file() {
        return Ok((vec![WEIGHTS.to_owned()], None));
    }
    if directory.join(INDEX).is_file() {
        let index = SourceFile::within(directory, INDEX)?;
        let names = indexed_files(&index)?;
        for name in &names {
            if !directory.join(name).is_file() {
                let reason = format!("{INDEX} lists {name}, which is not there");
                return Err(PrepareError::NotAModel { path: directory.to_path_buf(), reason });
            }
        }
        return Ok((names.into_iter().collect(), Some(index)));
    }
    let shards = files_with(directory, &["safetensors"])?;
    if shards.is_empty() {
        let mut reason = "it has no safetensors weights".to_owned();
        if let Some(other) = files_with(directory, &["bin", "pt", "pth", "h5", "msgpack"])?.first() {
            let other = other.file_name().unwrap_or_default().to_string_lossy();
            reason = format!("{reason}, only {other}; convert it with transformers' save_pretrained");
        }
        return Err(PrepareError::NotAModel { path: directory.to_path_buf(), reason });
    }
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((shards.iter().map(name).collect(), None))
}

/// The files of a directory with one of `extensions`, sorted.
pub(super) fn files_with(directory: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, PrepareError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(PrepareError::reading(directory))? {
        let path = entry.map_err(PrepareError::reading(directory))?.path();
        if path.extension().is_some_and(|found| extensions.iter().any(|wanted| found == *wanted)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Names of the files that an index maps tensors to. Only plain names: an index must not lead out
/// of its directory.
pub(crate) fn indexed_files(index: &SourceFile) -> Result<BTreeSet<String>, PrepareError> {
    let damaged = |reason: String| PrepareError::damaged(index.path(), reason);
    let value: Value =
        serde_json::from_slice(index.bytes()).map_err(|e| damaged(format!("it does not parse: {e}")))?;
    let map = value.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| damaged("it has no \"weight_map\"".into()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let name = file.as_str().unwrap_or_default();
        let components: Vec<_> = Path::new(name).components().collect();
        if !matches!(components[..], [Component::Normal(_)]) {
            return Err(damaged(format!("it maps tensor {tensor:?} to {file}, which is not a file name")));
        }
        names.insert(name.to_owned());
    }
    if names.is_empty() {
        return Err(damaged("its \"weight_map\" is empty".into()));
    }
    Ok(names)
}
