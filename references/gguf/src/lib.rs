//! A bundle's weights as a GGUF file, bit for bit: llama.cpp and candle's quantised models read nothing else.
//!
//! Nothing is rounded on the way. f32, bf16 and f16 are copied; an int8 row becomes Q8_0 blocks that repeat the
//! row's scale, and int4 groups become Q4_0 blocks, whose f16 scales hold the bundle's exactly, or Q4_K where the
//! bundle's scales allow it and the reader is faster with them; blocks of a file are copied. The rows of q and k are put
//! in GGUF's order for interleaved rotation. What a file was derived from is in the record beside it
//! ([`Record`]), so that "same weights" can be verified (fairness rule R1).

mod blocks;
mod error;
mod file;
mod model;

use std::path::{Path, PathBuf};

use bundle::{Bundle, Precision};
pub use error::Error;
use serde::{Deserialize, Serialize};

/// What a derived file was made from: `FILE.json` beside it, as docs/reference/frameworks.md describes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The bundle's file, by name.
    pub from: String,
    pub from_sha256: String,
    /// sha256 of the derived file.
    pub sha256: String,
    /// What derived it.
    pub by: String,
    /// Whether it holds the very numbers of the bundle's file.
    pub same_values: bool,
}

/// Where the record of a derived file is.
pub fn record_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".json");
    PathBuf::from(name)
}

/// The type of int4's blocks. The weights are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FourBits {
    Q4_0,
    /// For tensors whose rows and scales allow it; the others are Q4_0.
    Q4K,
}

/// Path of the GGUF file of `bundle` at `precision` in `directory`. It is written unless it is there: then
/// nothing is read or hashed, for a worker asks again while its load is timed. What the file holds is verified
/// after the last sample, against its record.
pub fn derive(
    bundle: &Bundle,
    precision: Precision,
    four_bits: FourBits,
    directory: &Path,
) -> Result<PathBuf, Error> {
    let path = directory.join(name(bundle, precision, four_bits)?);
    // The record comes last: a file without one was left by an interruption.
    if path.is_file() && record_path(&path).is_file() {
        return Ok(path);
    }
    let from = precision.file_name();
    let from_sha256 = bundle.verify(&from)?;
    let write = |error| Error::Write { path: path.clone(), source: error };
    std::fs::create_dir_all(directory).map_err(write)?;
    let mut staged = tempfile::NamedTempFile::new_in(directory).map_err(write)?;
    let weights = bundle.weights(precision)?;
    file::write(model::contents(&weights, bundle.config(), four_bits)?, staged.as_file_mut())
        .map_err(write)?;
    let sha256 = bundle::sha256_of(staged.path()).map_err(write)?;
    staged.persist(&path).map_err(|error| write(error.error))?;
    let by = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned();
    let record = Record { from, from_sha256, sha256, by, same_values: true };
    let text = serde_json::to_string_pretty(&record).map_err(|error| write(error.into()))?;
    std::fs::write(record_path(&path), text).map_err(write)?;
    Ok(path)
}

/// Addressed by what it holds: weights and configuration.
fn name(bundle: &Bundle, precision: Precision, four_bits: FourBits) -> Result<String, Error> {
    if precision == Precision::Nf4 {
        return Err(Error::Unsupported("nf4: GGUF has no such type".into()));
    }
    bundle.weights_path(precision)?; // says what there is where it is not held
    let files = &bundle.manifest().files;
    let start = |file: &str| files.get(file).map(|record| record.sha256.chars().take(12).collect::<String>());
    let (weights, config) = (start(&precision.file_name()), start("config.json"));
    let type_of_blocks = if precision == Precision::Int4 && four_bits == FourBits::Q4K { "-k" } else { "" };
    let (weights, config) = (weights.unwrap_or_default(), config.unwrap_or_default());
    Ok(format!("{precision}{type_of_blocks}-{weights}-{config}.gguf"))
}
