//! The safetensors format, read and written here rather than by the `safetensors` crate for two reasons: its
//! writer sorts tensors by name, which would separate those that engines fuse, and its reader's errors do not
//! name the tensor.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bundle::{Element, FileRecord, Precision, StoredTensor, TensorSpec};
use protocol::untrusted;
use serde::Deserialize as FromJson;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::PrepareError;
use crate::model::{SourceFile, encode};
use crate::quantise::quantise;

/// The header of a safetensors file, every entry checked against the file's size and against
/// the other entries.
pub(crate) struct Header {
    pub(crate) tensors: BTreeMap<String, Entry>,
}

pub(crate) struct Entry {
    /// As the file spells it, for example `BF16`.
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    /// Within the file.
    pub(crate) range: Range<usize>,
}

/// Most bytes of a header: the limit of the `safetensors` crate.
const MOST_OF_HEADER: u64 = 100_000_000;

struct RawHeader(BTreeMap<String, RawEntry>);

#[derive(FromJson)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    /// Nothing is kept of the metadata, which may have any form.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawHeader, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let entry = map.next_value();
                    let entry = entry.map_err(|e| {
                        A::Error::custom(format!("tensor {name:?} has an invalid entry: {e}"))
                    })?;
                    if entries.insert(name.clone(), entry).is_some() {
                        return Err(A::Error::custom(format!("tensor {name:?} is there twice")));
                    }
                }
                Ok(RawHeader(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

impl Header {
    pub(crate) fn parse(file: &SourceFile) -> Result<Header, PrepareError> {
        let (bytes, path) = (file.bytes(), file.path());
        let damaged = |reason: String| match untrusted::file::other_format(bytes) {
            Some(_) => file.not(""),
            None => PrepareError::damaged(path, reason),
        };
        let size = bytes.len();
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
            return Err(damaged(format!("a safetensors file has at least 8 bytes, this one has {size}")));
        };
        let length = u64::from_le_bytes(*length);
        if length > rest.len() as u64 {
            let reason = format!("its header claims {length} bytes, but the whole file has {size}");
            return Err(damaged(reason));
        }
        if length > MOST_OF_HEADER {
            return Err(damaged(format!("its header has {length} bytes; at most {MOST_OF_HEADER} are read")));
        }
        let (header, data) = rest.split_at(length as usize);
        let RawHeader(raw) = serde_json::from_slice(header)
            .map_err(|e| damaged(format!("its safetensors header does not parse: {e}")))?;
        let mut tensors = BTreeMap::new();
        for (name, raw) in raw {
            let entry = raw
                .check(data.len(), size - data.len())
                .map_err(|reason| PrepareError::tensor(path, &name, reason))?;
            tensors.insert(name, entry);
        }
        cover(&tensors, size - data.len()..size, path)?;
        Ok(Header { tensors })
    }
}

impl RawEntry {
    fn check(self, data: usize, start: usize) -> Result<Entry, String> {
        let (begin, end) = self.data_offsets;
        if begin > end || end > data as u64 {
            return Err(format!(
                "claims bytes {begin}..{end} of the data, of which there are {data}: the file is truncated or its header is wrong"
            ));
        }
        let elements = self.shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n));
        let expected = match element_bits(&self.dtype) {
            Some(bits) => elements.and_then(|n| n.checked_mul(bits)).map(|bits| bits / 8),
            None => Some(end - begin), // an element type of the future; refused only if it is needed
        };
        if expected != Some(end - begin) {
            let expected = expected.map_or("more than any file".into(), |n| n.to_string());
            let (dtype, shape, found) = (&self.dtype, &self.shape, end - begin);
            return Err(format!("has {found} bytes, but {dtype} {shape:?} takes {expected}"));
        }
        Ok(Entry {
            shape: self.shape.iter().map(|&n| n as usize).collect(),
            dtype: self.dtype,
            range: start + begin as usize..start + end as usize,
        })
    }
}

impl Entry {
    /// The element type, if it is one that a source's weights may have.
    pub(crate) fn element(&self) -> Option<Element> {
        Element::from_name(&self.dtype).filter(|element| !matches!(element, Element::I8 | Element::U8))
    }
}

/// The format wants the tensors to fill the data without gap or overlap.
fn cover(tensors: &BTreeMap<String, Entry>, data: Range<usize>, path: &Path) -> Result<(), PrepareError> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_by_key(|(_, entry)| (entry.range.start, entry.range.end));
    let mut position = data.start;
    for (name, entry) in in_order {
        let (begin, expected) = (entry.range.start - data.start, position - data.start);
        if begin != expected {
            let how =
                if begin < expected { "overlaps the tensor before it" } else { "leaves a gap before it" };
            let reason = format!("{how}: it begins at byte {begin} of the data, not at {expected}");
            return Err(PrepareError::tensor(path, name, reason));
        }
        position = entry.range.end;
    }
    if position != data.end {
        let (claimed, held) = (position - data.start, data.len());
        let reason = format!("its tensors take {claimed} bytes, but {held} follow the header");
        return Err(PrepareError::damaged(path, reason));
    }
    Ok(())
}

fn element_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// The data begins at a multiple of this, so that a mapped tensor can be read by aligned vector loads.
const ALIGNMENT: usize = 64;

/// Elements that are converted, hashed and written at a time.
const CHUNK: usize = 1 << 18;

/// Writes tensors one after another, in the order given at the start.
pub(crate) struct Writer {
    path: PathBuf,
    file: File,
    precision: Precision,
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
    /// The same in the source's own blocks, if precision `file` has them.
    pub(crate) blocks: &'a [u8],
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

    pub(crate) fn append(&mut self, piece: &Piece<'_>) -> Result<(), PrepareError> {
        let Piece { spec, values, .. } = piece;
        let next = self.expected.front().expect("a tensor for every one that was announced");
        assert_eq!(next.name, spec.name, "tensors come in the order in which they were announced");
        let (precision, keeps) = (self.precision, next.blocks.is_some());
        // Of a matrix among blocks that the source has in floats.
        let element = if keeps { Element::F32 } else { next.element };
        if keeps && !piece.blocks.is_empty() {
            self.buffer = piece.blocks.to_vec();
        } else if matches!(element, Element::I8 | Element::U8) {
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
    use crate::model::matrix;

    use super::*;

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
                writer.append(&Piece { spec: &spec, start, values, blocks: &[], source: &path }).unwrap();
            }
        }
        writer.finish(String::new()).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn pieces_make_the_same_file_as_whole_tensors() {
        for precision in Precision::MADE {
            let whole = written(precision, 1000);
            for rows in [2, 6, 10] {
                assert_eq!(written(precision, rows), whole, "{precision}, pieces of {rows} rows");
            }
        }
    }
}
