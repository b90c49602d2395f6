//! Weights below 16 bits: codes and scales, computed once by `prepare`, so that "same weights" holds for them
//! too.
//!
//! A quantised tensor `NAME` of shape `[out, in]` is stored as its codes under its own name and its scales,
//! f32, under `NAME.scale`. Every framework's kernels can use these forms unchanged:
//!
//! | precision | codes | scales | weight |
//! |---|---|---|---|
//! | int8 | I8 `[out, in]`, −127 … 127 | `[out]` | code · scale |
//! | int4 | U8 `[out, in / 2]`, two to a byte, the even column in the low half, 0 … 15 | `[out, in / 32]` | (code − 8) · scale |
//! | nf4 | U8 `[out, in / 2]`, two to a byte, the even column in the high half | `[out · in / 64]`, over the row-major weight | [`NF4`]`[code]` · scale |
//! | file | the blocks of a GGUF, of one type or several ([`crate::BlockKind`]) | within the blocks | as the type has it |
//!
//! Scales of int8 and int4 have eight significant bits and fit f16 and bf16 exactly, so that a kernel may
//! hold them in either. Their products with a code are exact in f32; so is the result of
//! [`Quantised::dequantised`], and engines can be required to match it bit for bit. The layout of nf4 is that
//! of bitsandbytes, and of ONNX Runtime's `MatMulBnb4`.

use crate::{BlockKind, Precision, TensorView};

/// Consecutive inputs of a row that share a scale in int4. Rows of every quantised tensor are a multiple of it.
pub const INT4_GROUP: usize = 32;
/// Consecutive weights that share a scale in nf4.
pub const NF4_BLOCK: usize = 64;
/// Added to an integer of 4 bits to store it.
pub const INT4_OFFSET: i8 = 8;

/// The sixteen values of NormalFloat: quantiles of the normal distribution, scaled to ±1, with an exact zero.
/// Dettmers, Pagnoni, Holtzman and Zettlemoyer, "QLoRA: Efficient Finetuning of Quantized LLMs" (2023),
/// appendix E.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Name of the tensor that holds the scales of `name`.
pub fn scale_name(name: &str) -> String {
    format!("{name}.scale")
}

/// Shape of the scales of a tensor of `[rows, columns]`.
pub(crate) fn scale_shape(precision: Precision, rows: usize, columns: usize) -> Vec<usize> {
    match precision {
        Precision::Int4 => vec![rows, columns / INT4_GROUP],
        Precision::Nf4 => vec![rows * columns / NF4_BLOCK],
        _ => vec![rows],
    }
}

/// A quantised tensor, or several adjacent ones.
#[derive(Debug, Clone)]
pub struct Quantised<'a> {
    pub precision: Precision,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    pub codes: TensorView<'a>,
    /// f32.
    pub scales: TensorView<'a>,
    /// The types of a file's own blocks, from the first row on, with the number of rows of each; empty for other weights.
    pub blocks: Vec<(BlockKind, usize)>,
}

impl Quantised<'_> {
    /// Scale `index`, in the order in which they are stored.
    pub fn scale(&self, index: usize) -> f32 {
        let bytes = &self.scales.bytes[4 * index..];
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// All scales, in the order in which they are stored.
    pub fn scale_values(&self) -> Vec<f32> {
        self.scales.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// Consecutive rows of one type, of a file's own blocks, with their bytes.
    pub fn parts(&self) -> impl Iterator<Item = (BlockKind, usize, &[u8])> {
        let mut rest = self.codes.bytes;
        self.blocks.iter().map(move |&(kind, rows)| {
            let (bytes, after) = rest.split_at(rows * kind.row_bytes(self.columns));
            rest = after;
            (kind, rows, bytes)
        })
    }

    /// The signed integers of row `row` of int8 or int4.
    ///
    /// Panics for nf4, whose codes are no integers.
    pub fn integers(&self, row: usize) -> Vec<i8> {
        match self.precision {
            Precision::Int8 => {
                self.codes.bytes[row * self.columns..][..self.columns].iter().map(|&b| b as i8).collect()
            }
            Precision::Int4 => {
                let bytes = &self.codes.bytes[row * self.columns / 2..][..self.columns / 2];
                let signed = |nibble: u8| nibble as i8 - INT4_OFFSET;
                bytes.iter().flat_map(|&byte| [signed(byte & 15), signed(byte >> 4)]).collect()
            }
            other => panic!("{other} has no integers"),
        }
    }

    /// Row `row` in f32, into `out` of [`Self::columns`] elements.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let columns = self.columns;
        match self.precision {
            Precision::Int8 => {
                let (scale, codes) = (self.scale(row), &self.codes.bytes[row * columns..][..columns]);
                for (out, &code) in out.iter_mut().zip(codes) {
                    *out = f32::from(code as i8) * scale;
                }
            }
            Precision::Int4 => {
                let groups = columns / INT4_GROUP;
                let codes = &self.codes.bytes[row * columns / 2..][..columns / 2];
                let parts = out.chunks_exact_mut(INT4_GROUP).zip(codes.chunks_exact(INT4_GROUP / 2));
                for (group, (out, codes)) in parts.enumerate() {
                    let scale = self.scale(row * groups + group);
                    for (pair, &byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                        let signed = |nibble: u8| f32::from(nibble as i8 - INT4_OFFSET);
                        *pair = [signed(byte & 15) * scale, signed(byte >> 4) * scale];
                    }
                }
            }
            Precision::File => {
                let mut first = 0;
                for (kind, rows, bytes) in self.parts() {
                    if (first..first + rows).contains(&row) {
                        kind.dequantise(&bytes[(row - first) * kind.row_bytes(columns)..], out);
                    }
                    first += rows;
                }
            }
            _ => {
                let codes = &self.codes.bytes[row * columns / 2..][..columns / 2];
                for (at, (pair, &byte)) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes).enumerate() {
                    // Blocks have an even number of weights, so that a pair never spans two.
                    let scale = self.scale((row * columns + 2 * at) / NF4_BLOCK);
                    *pair = [NF4[usize::from(byte >> 4)] * scale, NF4[usize::from(byte & 15)] * scale];
                }
            }
        }
    }

    /// The whole weight in f32, `[rows, columns]` row-major.
    pub fn dequantised(&self) -> Vec<f32> {
        let mut whole = vec![0.0; self.rows * self.columns];
        for (row, out) in whole.chunks_exact_mut(self.columns).enumerate() {
            self.row(row, out);
        }
        whole
    }
}
