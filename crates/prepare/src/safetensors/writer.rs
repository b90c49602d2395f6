use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use bundle::{Element, FileRecord, Precision, StoredTensor, TensorSpec};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::encode::encode;
use crate::error::PrepareError;
use crate::quantise::quantise;

/// The data begins at a multiple of this, so that a mapped tensor can be read by aligned vector loads.
const ALIGNMENT: usize = 64;
/// Elements that are converted, hashed and written at a time.
const CHUNK: usize = 1 << 18;

/// Writes tensors one after another, in the order given at the start.
pub(crate) struct Writer {
    path: PathBuf,
    file: File,
    precision: Precision,
    /// The tensors left to write, in order.
    expected: VecDeque<StoredTensor>,
    /// Scales of the current run of quantised tensors, which are written after it.
    scales: VecDeque<Vec<f32>>,
    hasher: Sha256,
    bytes: u64,
    buffer: Vec<u8>,
}

/// Whole rows of a tensor; a vector is one row.
pub(crate) struct Piece<'a> {
    pub(crate) spec: &'a TensorSpec,
    /// The index of its first element within the tensor.
    pub(crate) start: usize,
    pub(crate) values: &'a [f32],
    /// The file of origin, for errors.
    pub(crate) source: &'a Path,
}

impl Piece<'_> {
    fn is_last(&self) -> bool {
        self.start + self.values.len() == self.spec.shape.iter().product::<usize>()
    }

    /// The error about its element `at`; `what` describes the element.
    pub(crate) fn cannot(&self, at: usize, what: &str) -> PrepareError {
        let reason = format!("holds {} at element {}, which {what}", self.values[at], self.start + at);
        PrepareError::tensor(self.source, &self.spec.name, reason)
    }
}

impl Writer {
    pub(crate) fn create(
        path: &Path,
        precision: Precision,
        stored: Vec<StoredTensor>,
    ) -> Result<Writer, PrepareError> {
        let file = File::create_new(path).map_err(PrepareError::writing(path))?;
        let mut writer = Writer {
            path: path.to_path_buf(),
            file,
            precision,
            scales: VecDeque::new(),
            hasher: Sha256::new(),
            bytes: 0,
            buffer: header(&stored),
            expected: stored.into(),
        };
        writer.flush()?;
        Ok(writer)
    }

    /// Appends a piece of the next tensor.
    pub(crate) fn append(&mut self, piece: &Piece<'_>) -> Result<(), PrepareError> {
        let Piece { spec, values, .. } = piece;
        let next = self.expected.front().expect("a tensor for every one that was announced");
        assert_eq!(next.name, spec.name, "tensors come in the order in which they were announced");
        let (precision, element) = (self.precision, next.element);
        if matches!(element, Element::I8 | Element::U8) {
            let columns = spec.shape.last().copied().unwrap_or(1);
            let coded = quantise(values, columns, precision)
                .map_err(|at| piece.cannot(at, &format!("no scale of {precision} can express")))?;
            if piece.start == 0 {
                self.scales.push_back(Vec::new());
            }
            self.scales.back_mut().expect("begun with the tensor").extend(coded.scales);
            self.buffer = coded.codes;
        } else {
            for (index, chunk) in values.chunks(CHUNK).enumerate() {
                encode(chunk, element, &mut self.buffer).map_err(|at| {
                    piece.cannot(index * CHUNK + at, &format!("{precision} cannot represent"))
                })?;
                self.flush()?;
            }
        }
        self.flush()?;
        if piece.is_last() {
            self.expected.pop_front();
            self.scales_of_the_run()?;
        }
        Ok(())
    }

    /// The scales of the quantised tensors just written, if these are due.
    fn scales_of_the_run(&mut self) -> Result<(), PrepareError> {
        let is_code = |tensor: &StoredTensor| matches!(tensor.element, Element::I8 | Element::U8);
        if self.scales.is_empty() || self.expected.front().is_some_and(is_code) {
            return Ok(());
        }
        for scales in std::mem::take(&mut self.scales) {
            self.expected.pop_front().expect("scales are announced");
            self.buffer.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
            self.flush()?;
        }
        Ok(())
    }

    /// Makes the file durable and returns its record for the manifest.
    pub(crate) fn finish(self, derived: String) -> Result<FileRecord, PrepareError> {
        self.file.sync_all().map_err(PrepareError::writing(&self.path))?;
        Ok(FileRecord { sha256: bundle::hexadecimal(&self.hasher.finalize()), bytes: self.bytes, derived })
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
fn header(stored: &[StoredTensor]) -> Vec<u8> {
    let mut offset = 0;
    let mut entries = vec![r#""__metadata__":{"format":"pt"}"#.to_owned()];
    for tensor in stored {
        let end = offset + tensor.bytes();
        let entry =
            json!({ "dtype": tensor.element.name(), "shape": tensor.shape, "data_offsets": [offset, end] });
        entries.push(format!("{}:{entry}", json!(tensor.name)));
        offset = end;
    }
    let mut json = format!("{{{}}}", entries.join(","));
    let padded = (8 + json.len()).next_multiple_of(ALIGNMENT);
    json.extend(std::iter::repeat_n(' ', padded - 8 - json.len()));
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.into_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::matrix;

    /// The bytes of a file of two tensors, that was written in pieces of `rows` rows.
    fn written(precision: Precision, rows: usize) -> Vec<u8> {
        let config = bundle::ModelConfig::from_json(&json!({
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 10, "max_position_embeddings": 16
        }));
        let config = config.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weights");
        let mut writer = Writer::create(&path, precision, config.stored(precision).unwrap()).unwrap();
        for spec in config.tensors() {
            let (all, columns) = matrix(&spec);
            let values: Vec<f32> = (0..all * columns).map(|i| (i as f32 * 0.37).sin()).collect();
            for (index, values) in values.chunks(rows * columns).enumerate() {
                let start = index * rows * columns;
                writer.append(&Piece { spec: &spec, start, values, source: &path }).unwrap();
            }
        }
        writer.finish(String::new()).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn pieces_make_the_same_file_as_whole_tensors() {
        for precision in Precision::ALL {
            let whole = written(precision, 1000);
            for rows in [2, 6, 10] {
                assert_eq!(written(precision, rows), whole, "{precision}, pieces of {rows} rows");
            }
        }
    }
}
