//! The header of a GGUF file: metadata and the places of its tensors.
//!
//! Not candle's reader: it copies every array element into a 32-byte value, divides by an alignment of zero,
//! and does not say which entry of a damaged file is at fault. Here arrays stay in the mapped file until they
//! are used, so that a false header can claim no memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use bundle::BundleError;

use super::dequant::Type;
use crate::PrepareError;

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// Metadata arrays nest nowhere in practice; the format allows it.
const DEEPEST: usize = 4;

const DEFAULT_ALIGNMENT: u64 = 32;

pub(crate) enum Refusal {
    NotOne,
    Architecture(BundleError),
    /// The file contradicts the format or itself.
    Damaged(String),
    Unsupported(String),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal::Damaged(reason)
    }
}

impl Refusal {
    pub(crate) fn in_file(self, path: &Path) -> PrepareError {
        let path = path.to_path_buf();
        match self {
            Refusal::NotOne => PrepareError::NotAModel { path, reason: "it is no GGUF file".into() },
            Refusal::Architecture(source) => PrepareError::Model { path, source },
            Refusal::Damaged(reason) => PrepareError::Damaged { path, reason },
            Refusal::Unsupported(reason) => PrepareError::Unsupported { path, reason },
        }
    }
}

/// A parsed header. Its ranges are all within the file that was parsed.
pub(crate) struct Header {
    pub(crate) metadata: BTreeMap<String, Value>,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float32(f32),
    Float64(f64),
    Bool(bool),
    /// Bytes, since not every file is valid UTF-8.
    Text(Vec<u8>),
    Array(Array),
}

/// An array that has not been decoded: `count` elements in `range` of the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    pub(crate) kind: u32,
    pub(crate) count: usize,
    pub(crate) range: Range<usize>,
}

pub(crate) struct TensorInfo {
    /// The part of the model that holds it.
    pub(crate) file: usize,
    /// Row-major, the slowest dimension first: GGUF's own order reversed.
    pub(crate) shape: Vec<usize>,
    /// Or the number of a type that is not known.
    pub(crate) kind: Result<&'static Type, u32>,
    /// Within the file; begins at the tensor and ends with the file for a type of unknown size.
    pub(crate) range: Range<usize>,
}

pub(crate) mod kind {
    pub(crate) const U8: u32 = 0;
    pub(crate) const I8: u32 = 1;
    pub(crate) const U16: u32 = 2;
    pub(crate) const I16: u32 = 3;
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const TEXT: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
    pub(crate) const U64: u32 = 10;
    pub(crate) const I64: u32 = 11;
    pub(crate) const F64: u32 = 12;
}

impl Header {
    pub(crate) fn parse(file: &[u8]) -> Result<Header, Refusal> {
        let mut cursor = Cursor::new(file);
        if !file.starts_with(&MAGIC) {
            return Err(Refusal::NotOne);
        }
        let version = (cursor.take(4, "its magic number").and_then(|_| cursor.u32("its version")))?;
        let unsupported = match version {
            2 | 3 => None,
            1 => Some("GGUF version 1 is not supported; convert the model anew".into()),
            // A version number with its bytes swapped.
            _ if version.swap_bytes() < 16 => Some(
                "big-endian GGUF is not supported; convert the file with gguf-py's gguf_convert_endian.py"
                    .into(),
            ),
            _ => Some(format!("GGUF version {version} is not supported; 2 and 3 are")),
        };
        if let Some(reason) = unsupported {
            return Err(Refusal::Unsupported(reason));
        }
        let tensor_count = cursor.u64("its number of tensors")?;
        let metadata_count = cursor.u64("its number of metadata entries")?;
        let mut metadata = BTreeMap::new();
        for index in 0..metadata_count {
            let key = cursor.name(&format!("metadata entry {index} of {metadata_count}"))?;
            let kind = cursor.u32(&key)?;
            let value = value(&mut cursor, kind, &key)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("metadata {key:?} is there twice").into());
            }
        }
        let mut entries = Vec::new();
        for index in 0..tensor_count {
            entries.push(TensorEntry::read(&mut cursor, &format!("tensor entry {index} of {tensor_count}"))?);
        }
        let alignment = alignment(&metadata)?;
        let data = (cursor.position() as u64).next_multiple_of(alignment);
        let mut tensors = BTreeMap::new();
        for entry in entries {
            let name = entry.name.clone();
            let info = entry.locate(data, alignment, file.len() as u64);
            let info = info.map_err(|reason| format!("tensor {name:?} {reason}"))?;
            if tensors.insert(name.clone(), info).is_some() {
                return Err(format!("tensor {name:?} is there twice").into());
            }
        }
        refuse_overlaps(&tensors)?;
        Ok(Header { metadata, tensors })
    }
}

fn value(cursor: &mut Cursor<'_>, kind: u32, key: &str) -> Result<Value, String> {
    Ok(match kind {
        kind::U8 => Value::Unsigned(cursor.u8(key)?.into()),
        kind::I8 => Value::Signed((cursor.u8(key)? as i8).into()),
        kind::U16 => Value::Unsigned(cursor.u16(key)?.into()),
        kind::I16 => Value::Signed((cursor.u16(key)? as i16).into()),
        kind::U32 => Value::Unsigned(cursor.u32(key)?.into()),
        kind::I32 => Value::Signed((cursor.u32(key)? as i32).into()),
        kind::U64 => Value::Unsigned(cursor.u64(key)?),
        kind::I64 => Value::Signed(cursor.u64(key)? as i64),
        kind::F32 => Value::Float32(f32::from_bits(cursor.u32(key)?)),
        kind::F64 => Value::Float64(f64::from_bits(cursor.u64(key)?)),
        kind::BOOL => Value::Bool(cursor.u8(key)? != 0),
        kind::TEXT => Value::Text(cursor.text(key)?.to_vec()),
        kind::ARRAY => Value::Array(array(cursor, key, DEEPEST)?),
        other => return Err(format!("metadata {key:?} has the unknown type {other}")),
    })
}

fn array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array, String> {
    let kind = cursor.u32(key)?;
    let count = cursor.u64(key)?;
    let start = cursor.position();
    let element = match kind {
        kind::U8 | kind::I8 | kind::BOOL => 1,
        kind::U16 | kind::I16 => 2,
        kind::U32 | kind::I32 | kind::F32 => 4,
        kind::U64 | kind::I64 | kind::F64 => 8,
        kind::TEXT => {
            for _ in 0..count {
                cursor.text(key)?;
            }
            0
        }
        kind::ARRAY if depth > 0 => {
            for _ in 0..count {
                array(cursor, key, depth - 1)?;
            }
            0
        }
        other => return Err(format!("metadata {key:?} is an array of the unknown type {other}")),
    };
    cursor.take(count.saturating_mul(element), key)?;
    Ok(Array { kind, count: count as usize, range: start..cursor.position() })
}

fn alignment(metadata: &BTreeMap<String, Value>) -> Result<u64, String> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        // The format requires a multiple of 8; the dequantisers need at least 4.
        Some(&Value::Unsigned(n)) if n != 0 && n % 8 == 0 && n <= 1 << 20 => Ok(n),
        Some(other) => Err(format!("general.alignment is {other:?}, not a multiple of 8")),
    }
}

struct TensorEntry {
    name: String,
    shape: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl TensorEntry {
    fn read(cursor: &mut Cursor<'_>, what: &str) -> Result<TensorEntry, String> {
        let name = cursor.name(what)?;
        let dimensions = cursor.u32(&name)?;
        if dimensions > 4 {
            return Err(format!("tensor {name:?} has {dimensions} dimensions; GGUF allows 4"));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(cursor.u64(&name)?);
        }
        shape.reverse();
        Ok(TensorEntry { shape, kind: cursor.u32(&name)?, offset: cursor.u64(&name)?, name })
    }

    fn locate(self, data: u64, alignment: u64, file: u64) -> Result<TensorInfo, String> {
        let (shape, offset) = (self.shape, self.offset);
        let too_large = || format!("has shape {shape:?} at offset {offset}, more than any file can hold");
        if offset % alignment != 0 {
            return Err(format!("begins at offset {offset}, which is not a multiple of {alignment}"));
        }
        let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n));
        let elements = elements.ok_or_else(too_large)?;
        let kind = Type::numbered(self.kind).ok_or(self.kind);
        let start = data.checked_add(offset).ok_or_else(too_large)?;
        let size = match kind {
            Err(_) => file.saturating_sub(start),
            Ok(kind) => {
                let block = kind.elements as u64;
                let columns = shape.last().copied().unwrap_or(1);
                if columns % block != 0 {
                    let name = kind.name;
                    return Err(format!(
                        "has rows of {columns}, which {name} cannot divide into blocks of {block}"
                    ));
                }
                (elements / block).checked_mul(kind.bytes as u64).ok_or_else(too_large)?
            }
        };
        let end = start.checked_add(size).ok_or_else(too_large)?;
        if start > file || end > file {
            return Err(format!(
                "lies at bytes {start}..{end}, but the file ends at {file}: it is truncated or its header is wrong"
            ));
        }
        let shape = shape.iter().map(|&n| n as usize).collect();
        Ok(TensorInfo { file: 0, shape, kind, range: start as usize..end as usize })
    }
}

fn refuse_overlaps(tensors: &BTreeMap<String, TensorInfo>) -> Result<(), String> {
    let mut in_order: Vec<_> = tensors.iter().filter(|(_, info)| info.kind.is_ok()).collect();
    in_order.sort_by_key(|(_, info)| (info.range.start, info.range.end));
    for pair in in_order.windows(2) {
        let [(first, a), (second, b)] = pair else { continue };
        if b.range.start < a.range.end {
            return Err(format!("tensors {first:?} and {second:?} overlap"));
        }
    }
    Ok(())
}

// A position in bytes that may end at any moment.

pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

/// Every read names its purpose, for the error when the bytes run out.
impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, position: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], String> {
        let rest = &self.bytes[self.position..];
        if count > rest.len() as u64 {
            let (end, at) = (self.bytes.len(), self.position);
            return Err(format!(
                "{what} takes {count} bytes from byte {at}, but the file ends at {end}: it is truncated or its header is wrong"
            ));
        }
        self.position += count as usize;
        Ok(&rest[..count as usize])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, what: &str) -> Result<u8, String> {
        self.array(what).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self, what: &str) -> Result<u16, String> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self, what: &str) -> Result<&'a [u8], String> {
        let length = self.u64(what)?;
        self.take(length, what)
    }

    /// A string that names something, hence must be readable.
    pub(crate) fn name(&mut self, what: &str) -> Result<String, String> {
        let bytes = self.text(what)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| format!("{what} has a name that is not UTF-8"))
    }
}

// Typed access to a GGUF's metadata, with errors that name the key.

pub(crate) struct Metadata<'a> {
    header: &'a Header,
    file: &'a [u8],
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Metadata<'a> {
    pub(crate) fn new(header: &'a Header, file: &'a [u8]) -> Metadata<'a> {
        Metadata { header, file, read: RefCell::default() }
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        let value = self.header.metadata.get(key)?;
        self.read.borrow_mut().insert(key.to_owned());
        Some(value)
    }

    /// The first key of `prefix` that nothing has looked up, that is not harmless, and that switches something on: 0 and
    /// false do not.
    pub(crate) fn left_over(&self, prefix: &str, harmless: &[&str]) -> Option<&'a str> {
        let read = self.read.borrow();
        let is_off = |value: &Value| match *value {
            Value::Unsigned(number) => number == 0,
            Value::Signed(number) => number == 0,
            Value::Float32(number) => number == 0.0,
            Value::Float64(number) => number == 0.0,
            Value::Bool(flag) => !flag,
            Value::Text(_) | Value::Array(_) => false,
        };
        let keys =
            self.header.metadata.iter().filter(|(_, value)| !is_off(value)).map(|(key, _)| key.as_str());
        let is_left = |key: &&str| {
            let below = key.strip_prefix(prefix);
            below.is_some_and(|name| !read.contains(*key) && !harmless.contains(&name))
        };
        keys.into_iter().find(is_left)
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(bytes)) => {
                std::str::from_utf8(bytes).map(Some).map_err(|_| format!("metadata {key:?} is not UTF-8"))
            }
            Some(_) => Err(wrong(key, "a string")),
        }
    }

    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(&Value::Unsigned(n)) => Ok(Some(n as usize)),
            Some(&Value::Signed(n)) if n >= 0 => Ok(Some(n as usize)),
            Some(_) => Err(wrong(key, "a whole number")),
        }
    }

    pub(crate) fn required_count(&self, key: &str) -> Result<usize, String> {
        self.count(key)?.ok_or_else(|| missing(key))
    }

    /// A number. One that was stored as f32 becomes the shortest decimal that rounds to it: the intended
    /// 1e-5, not 0.00000999999974737875.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let number = match self.get(key) {
            None => return Ok(None),
            Some(&Value::Float32(x)) => x.to_string().parse().unwrap_or(f64::from(x)),
            Some(&Value::Float64(x)) => x,
            Some(&Value::Unsigned(n)) => n as f64,
            Some(&Value::Signed(n)) => n as f64,
            Some(_) => return Err(wrong(key, "a number")),
        };
        if !number.is_finite() {
            return Err(wrong(key, "a finite number"));
        }
        Ok(Some(number))
    }

    pub(crate) fn required_number(&self, key: &str) -> Result<f64, String> {
        self.number(key)?.ok_or_else(|| missing(key))
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(&Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(wrong(key, "true or false")),
        }
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, String> {
        let Some((array, mut cursor)) = self.array(key)? else { return Ok(None) };
        if array.kind != kind::TEXT {
            return Err(wrong(key, "a list of strings"));
        }
        let text = |index| {
            let bytes = cursor.text(key)?;
            std::str::from_utf8(bytes).map_err(|_| format!("metadata {key:?} is not UTF-8 at entry {index}"))
        };
        (0..array.count).map(text).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, String> {
        let Some((array, mut cursor)) = self.array(key)? else { return Ok(None) };
        let integer = |_| match array.kind {
            kind::I32 => cursor.u32(key).map(|n| i64::from(n as i32)),
            kind::U32 => cursor.u32(key).map(i64::from),
            kind::I8 => cursor.u8(key).map(|n| i64::from(n as i8)),
            kind::U8 => cursor.u8(key).map(i64::from),
            _ => Err(wrong(key, "a list of whole numbers")),
        };
        (0..array.count).map(integer).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, String> {
        let Some((array, mut cursor)) = self.array(key)? else { return Ok(None) };
        if array.kind != kind::F32 {
            return Err(wrong(key, "a list of 32-bit floats"));
        }
        (0..array.count).map(|_| cursor.u32(key).map(f32::from_bits)).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn is_list(&self, key: &str) -> bool {
        matches!(self.get(key), Some(Value::Array(_)))
    }

    pub(crate) fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, String> {
        let Some((array, mut cursor)) = self.array(key)? else { return Ok(None) };
        if array.kind != kind::BOOL {
            return Err(wrong(key, "a list of true and false"));
        }
        (0..array.count).map(|_| cursor.u8(key).map(|flag| flag != 0)).collect::<Result<_, _>>().map(Some)
    }

    fn array(&self, key: &str) -> Result<Option<(&'a Array, Cursor<'a>)>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some((array, Cursor::new(&self.file[array.range.clone()])))),
            Some(_) => Err(wrong(key, "a list")),
        }
    }
}

pub(crate) fn missing(key: &str) -> String {
    format!("metadata {key:?} is missing")
}

fn wrong(key: &str, wanted: &str) -> String {
    format!("metadata {key:?} is not {wanted}")
}
