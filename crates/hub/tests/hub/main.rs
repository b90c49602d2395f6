//! `hub` alone and as `prepare` starts it, against a small part of the Hugging Face hub that runs here.

mod fetching;
mod preparing;
mod server;

use std::path::{Path, PathBuf};

/// A file of the repository that the server has.
fn content(file: &str) -> Vec<u8> {
    let tiny = || conformance::fixtures().join("qwen2-bias");
    match file {
        "tokenizer.json" => b"{}".to_vec(),
        "model-00001-of-00001.safetensors" => std::fs::read(tiny().join("model.safetensors")).unwrap(),
        "model.safetensors.index.json" => {
            br#"{"weight_map":{"model.norm.weight":"model-00001-of-00001.safetensors"}}"#.to_vec()
        }
        file => std::fs::read(tiny().join(file)).unwrap(),
    }
}

/// Names of the files in a directory, sorted.
fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Where a commit of the repository lies in the cache under `home`.
fn snapshot(home: &Path) -> PathBuf {
    home.join("hub/models--owner--tiny/snapshots").join(server::COMMIT)
}
