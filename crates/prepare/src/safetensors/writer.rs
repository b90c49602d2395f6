use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use bundle::{FileRecord, Precision, TensorSpec};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::PrepareError;
use crate::encode::encode;
use crate::store::hexadecimal;

/// The data begins at a multiple of this, so that a mapped tensor can be read by aligned vector loads.
const ALIGNMENT: usize = 64;
/// Elements that are converted, hashed and written at a time.
const CHUNK: usize = 1 << 18;

/// Writes tensors one after another, in the order of the specs given at the start.
pub(crate) struct Writer {
    path: PathBuf,
    file: File,
    precision: Precision,
    hasher: Sha256,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Writer {
    pub(crate) fn create(
        path: &Path,
        precision: Precision,
        specs: &[TensorSpec],
    ) -> Result<Writer, PrepareError> {
        let file = File::create_new(path).map_err(PrepareError::writing(path))?;
        let mut writer = Writer {
            path: path.to_path_buf(),
            file,
            precision,
            hasher: Sha256::new(),
            bytes: 0,
            buffer: header(precision, specs),
        };
        writer.flush()?;
        Ok(writer)
    }

    /// Appends the next tensor. `source` is the file it comes from, for errors.
    pub(crate) fn append(&mut self, name: &str, values: &[f32], source: &Path) -> Result<(), PrepareError> {
        for (index, chunk) in values.chunks(CHUNK).enumerate() {
            encode(chunk, self.precision, &mut self.buffer).map_err(|at| {
                let (value, at, precision) = (chunk[at], index * CHUNK + at, self.precision);
                let reason = format!("holds {value} at element {at}, which {precision} cannot represent");
                PrepareError::tensor(source, name, reason)
            })?;
            self.flush()?;
        }
        Ok(())
    }

    /// Makes the file durable and returns its record for the manifest.
    pub(crate) fn finish(self, derived: String) -> Result<FileRecord, PrepareError> {
        self.file.sync_all().map_err(PrepareError::writing(&self.path))?;
        Ok(FileRecord { sha256: hexadecimal(self.hasher), bytes: self.bytes, derived })
    }

    fn flush(&mut self) -> Result<(), PrepareError> {
        self.hasher.update(&self.buffer);
        self.file.write_all(&self.buffer).map_err(PrepareError::writing(&self.path))?;
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// The length and the JSON of the header, padded with spaces as the format allows.
fn header(precision: Precision, specs: &[TensorSpec]) -> Vec<u8> {
    let dtype = precision.name().to_uppercase();
    let mut offset = 0;
    let mut entries = vec![r#""__metadata__":{"format":"pt"}"#.to_owned()];
    for spec in specs {
        let end = offset + spec.shape.iter().product::<usize>() * precision.bytes();
        let entry = json!({ "dtype": dtype, "shape": spec.shape, "data_offsets": [offset, end] });
        entries.push(format!("{}:{entry}", json!(spec.name)));
        offset = end;
    }
    let mut json = format!("{{{}}}", entries.join(","));
    let padded = (8 + json.len()).next_multiple_of(ALIGNMENT);
    json.extend(std::iter::repeat_n(' ', padded - 8 - json.len()));
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.into_bytes());
    bytes
}
