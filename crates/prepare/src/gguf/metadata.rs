//! Typed access to a GGUF's metadata, with errors that name the key.

use super::cursor::Cursor;
use super::reader::{Array, Header, Value, kind};

pub(crate) struct Metadata<'a> {
    header: &'a Header,
    file: &'a [u8],
}

impl<'a> Metadata<'a> {
    pub(crate) fn new(header: &'a Header, file: &'a [u8]) -> Metadata<'a> {
        Metadata { header, file }
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.header.metadata.get(key)
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
