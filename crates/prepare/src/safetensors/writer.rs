use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use bundle::{Element, FileRecord, Precision, StoredTensor, TensorSpec};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::encode::encode;
use crate::error::PrepareError;
use crate::hash::hexadecimal;
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
    /// What is still to be written, in order.
    expected: VecDeque<StoredTensor>,
    /// Scales of the run of quantised tensors that is being written, which come behind it.
    scales: VecDeque<Vec<f32>>,
    hasher: Sha256,
    bytes: u64,
    buffer: Vec<u8>,
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

    /// Appends the next tensor. `source` is the file it comes from, for errors.
    pub(crate) fn append(
        &mut self,
        spec: &TensorSpec,
        values: &[f32],
        source: &Path,
    ) -> Result<(), PrepareError> {
        let next = self.expected.pop_front().expect("a tensor for every one that was announced");
        assert_eq!(next.name, spec.name, "tensors come in the order in which they were announced");
        let cannot = |at: usize, what: String| {
            let reason = format!("holds {} at element {at}, which {what}", values[at]);
            PrepareError::tensor(source, &spec.name, reason)
        };
        let precision = self.precision;
        if matches!(next.element, Element::I8 | Element::U8) {
            let columns = spec.shape.last().copied().unwrap_or(1);
            let coded = quantise(values, columns, precision)
                .map_err(|at| cannot(at, format!("no scale of {precision} can express")))?;
            self.buffer.extend(coded.codes);
            self.scales.push_back(coded.scales);
        } else {
            for (index, chunk) in values.chunks(CHUNK).enumerate() {
                encode(chunk, next.element, &mut self.buffer)
                    .map_err(|at| cannot(index * CHUNK + at, format!("{precision} cannot represent")))?;
                self.flush()?;
            }
        }
        self.flush()?;
        self.scales_of_the_run()
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
