//! The container: GGUF version 3, little-endian (gguf.md in the ggml project's docs).

use std::io::{BufWriter, Error, Result, Write};

use crate::blocks::Kind;

const ALIGNMENT: usize = 32;

/// A metadata value. The numbers are those of `gguf_metadata_value_type`.
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Text(String),
}

/// A tensor, read when it is written: a model need not fit in memory twice.
pub(crate) struct Tensor<'a> {
    pub(crate) name: String,
    /// Row-major, outermost first.
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: Kind,
    /// Its bytes, row by row; `None` for a row that cannot be written exactly.
    pub(crate) rows: Box<dyn Iterator<Item = Option<Vec<u8>>> + 'a>,
}

pub(crate) struct Contents<'a> {
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor<'a>>,
}

impl Tensor<'_> {
    fn bytes(&self) -> usize {
        self.kind.bytes(self.shape.iter().product())
    }
}

pub(crate) fn write(contents: Contents<'_>, output: impl Write) -> Result<()> {
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((contents.tensors.len() as u64).to_le_bytes());
    header.extend((contents.metadata.len() as u64).to_le_bytes());
    for (key, value) in &contents.metadata {
        text(&mut header, key);
        match value {
            Value::U32(number) => {
                header.extend(4u32.to_le_bytes());
                header.extend(number.to_le_bytes());
            }
            Value::F32(number) => {
                header.extend(6u32.to_le_bytes());
                header.extend(number.to_le_bytes());
            }
            Value::Text(value) => {
                header.extend(8u32.to_le_bytes());
                text(&mut header, value);
            }
        }
    }
    let mut offset = 0u64;
    for tensor in &contents.tensors {
        text(&mut header, &tensor.name);
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        // Innermost first.
        header.extend(tensor.shape.iter().rev().flat_map(|&size| (size as u64).to_le_bytes()));
        header.extend(tensor.kind.number().to_le_bytes());
        header.extend(offset.to_le_bytes());
        offset += tensor.bytes().next_multiple_of(ALIGNMENT) as u64;
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    let mut output = BufWriter::new(output);
    output.write_all(&header)?;
    for tensor in contents.tensors {
        let bytes = tensor.bytes();
        let mut written = 0;
        for row in tensor.rows {
            let inexact = || Error::other(format!("a scale of {} does not fit f16", tensor.name));
            let row = row.ok_or_else(inexact)?;
            output.write_all(&row)?;
            written += row.len();
        }
        if written != bytes {
            return Err(Error::other(format!("{} has {written} bytes, not {bytes}", tensor.name)));
        }
        output.write_all(&vec![0; bytes.next_multiple_of(ALIGNMENT) - bytes])?;
    }
    output.flush()
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
