//! The repository owner/tiny of the tests of `hf:`, in this crate and in `hub`, and messages of `prepare`
//! about it.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file of the repository.
pub(crate) fn content(file: &str) -> Vec<u8> {
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

/// The directory of its commit in the cache under `home`.
pub(crate) fn snapshot(home: &Path) -> PathBuf {
    home.join("hub/models--owner--tiny/snapshots").join(COMMIT)
}

pub(crate) fn success(command: &mut Command) -> Value {
    let output = command.assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

pub(crate) fn failure(command: &mut Command) -> String {
    let output = command.assert().code(2).stdout("").get_output().stderr.clone();
    let error = String::from_utf8(output).unwrap();
    assert!(error.starts_with("error: hf:owner/tiny: ") && error.lines().count() == 1, "{error}");
    error
}
