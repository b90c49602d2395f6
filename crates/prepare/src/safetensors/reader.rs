use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bundle::Element;
use serde::Deserialize;

use crate::error::PrepareError;

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

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Header {
    pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Header, PrepareError> {
        let damaged = |reason: String| PrepareError::damaged(path, reason);
        let size = bytes.len();
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
            return Err(damaged(format!("a safetensors file has at least 8 bytes, this one has {size}")));
        };
        let length = u64::from_le_bytes(*length);
        if length > rest.len() as u64 {
            let reason = format!("its header claims {length} bytes, but the whole file has {size}");
            return Err(damaged(reason));
        }
        let (header, data) = rest.split_at(length as usize);
        let raw: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header)
            .map_err(|e| damaged(format!("its safetensors header does not parse: {e}")))?;
        let mut tensors = BTreeMap::new();
        for (name, value) in raw {
            if name == "__metadata__" {
                continue;
            }
            let raw: RawEntry = serde_json::from_value(value)
                .map_err(|e| PrepareError::tensor(path, &name, format!("has an invalid entry: {e}")))?;
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
