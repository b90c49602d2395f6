//! `manifest.json`: the origin of a bundle and the description of its files.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::BundleError;

pub const MANIFEST: &str = "manifest.json";
/// Version of the layout of a bundle. A bundle of another version is prepared again.
pub const MANIFEST_FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// The model's usual name, for example `SmolLM2-135M-Instruct.Q4_1`.
    pub name: String,
    pub source: Source,
    /// By file name within the bundle.
    pub files: BTreeMap<String, FileRecord>,
}

/// The origin of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// `gguf`, `huggingface` or `synthetic`.
    pub kind: String,
    /// The seed of random weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The type that the source stores most of its weights in, such as `Q4_1` or `bf16`. `None` for random
    /// weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
    /// sha256 by name of every source file that was read.
    pub sha256: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    pub sha256: String,
    pub bytes: u64,
    /// One sentence for people: how this file was derived from the source.
    pub derived: String,
}

impl Manifest {
    pub fn read(directory: &Path) -> Result<Manifest, BundleError> {
        let path = directory.join(MANIFEST);
        let text =
            untrusted::file::read_text(&path, untrusted::file::CONFIG).map_err(BundleError::io(&path))?;
        Manifest::parse(directory, &text)
    }

    /// The manifest of the bundle in `directory`, from its text.
    pub fn parse(directory: &Path, text: &str) -> Result<Manifest, BundleError> {
        let not_a_bundle = |reason: String| BundleError::NotABundle { path: directory.to_path_buf(), reason };
        let manifest: Manifest = serde_json::from_str(text)
            .map_err(|e| not_a_bundle(format!("its {MANIFEST} does not parse: {e}")))?;
        if manifest.format != MANIFEST_FORMAT {
            return Err(not_a_bundle(format!(
                "its {MANIFEST} has format {}, this build reads format {MANIFEST_FORMAT}",
                manifest.format
            )));
        }
        Ok(manifest)
    }
}
