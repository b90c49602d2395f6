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
//!
//! Where a row of int4 is a multiple of 256, the scales of 256 inputs are whole multiples, 0 to 63, of one number, 1 or 1.5
//! times a power of two. The same weights are then blocks of Q4_0 and of Q4_K ([`Quantised::q4_k`]), so that each framework
//! gets the kernels that it has for either.

use half::f16;

use crate::{BlockKind, Precision, TensorView};

/// Consecutive inputs of a row that share a scale in int4. Rows of every quantised tensor are a multiple of it.
pub const INT4_GROUP: usize = 32;
/// Consecutive inputs of a row whose scales are multiples of one number: those of a block of Q4_K.
pub const INT4_BLOCK: usize = 256;
/// The most that such a multiple can be: Q4_K has six bits for it.
pub const MOST_MULTIPLE: u8 = 63;
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

    /// Row `row` of int4 as blocks of Q4_K, which hold the same weights bit for bit. `None` if they cannot: the row is no
    /// multiple of a block, or its scales are not multiples of one number, as in bundles of before.
    pub fn q4_k(&self, row: usize) -> Option<Vec<u8>> {
        const GROUPS: usize = INT4_BLOCK / INT4_GROUP;
        if self.precision != Precision::Int4 || !self.columns.is_multiple_of(INT4_BLOCK) {
            return None;
        }
        let codes = &self.codes.bytes[row * self.columns / 2..][..self.columns / 2];
        let mut out = Vec::with_capacity(BlockKind::Q4K.row_bytes(self.columns));
        for (block, codes) in codes.as_chunks::<{ INT4_BLOCK / 2 }>().0.iter().enumerate() {
            let first = (row * self.columns / INT4_BLOCK + block) * GROUPS;
            let scales: [f32; GROUPS] = std::array::from_fn(|group| self.scale(first + group));
            let (unit, multiples) = unit_of(&scales)?;
            // A weight is unit · multiple · code − 8 · unit · multiple.
            for number in [unit, f32::from(INT4_OFFSET) * unit] {
                out.extend(f16::from_f32(number).to_le_bytes());
            }
            let (low, high) = multiples.split_at(GROUPS / 2);
            let packed: [u8; GROUPS / 2] = std::array::from_fn(|at| low[at] | high[at] >> 4 << 6);
            out.extend(packed);
            out.extend(packed);
            out.extend(high.iter().map(|high| high & 15 | high << 4));
            // Byte i of 64 inputs holds the code of input i in its low half, and of i + 32 in its high half.
            let code = |index: usize| codes[index / 2] >> (4 * (index % 2)) & 15;
            for pair in (0..INT4_BLOCK).step_by(2 * INT4_GROUP) {
                out.extend((pair..pair + INT4_GROUP).map(|at| code(at) | code(at + INT4_GROUP) << 4));
            }
        }
        Some(out)
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

/// The number that these scales are multiples of, with the multiples, if there is one that f16 holds.
fn unit_of<const N: usize>(scales: &[f32; N]) -> Option<(f32, [u8; N])> {
    let largest = scales.iter().copied().fold(0.0, f32::max);
    if largest == 0.0 {
        return scales.iter().all(|scale| *scale == 0.0).then_some((0.0, [0; N]));
    }
    let units = units(largest / f32::from(MOST_MULTIPLE)).take_while(|unit| *unit <= largest);
    let fits = |number: f32| f16::from_f32(number).to_f32() == number;
    units.filter(|unit| fits(*unit) && fits(f32::from(INT4_OFFSET) * unit)).find_map(|unit| {
        let multiple = |scale: f32| scale >= 0.0 && (scale / unit).fract() == 0.0;
        scales.iter().all(|scale| multiple(*scale)).then(|| (unit, scales.map(|scale| (scale / unit) as u8)))
    })
}

/// 1 and 1.5 times the powers of two, from the first that is not below `least` on. Whole multiples of the smallest are
/// numbers of f16.
pub fn units(least: f32) -> impl Iterator<Item = f32> {
    const SMALLEST: i32 = -24;
    let of = |exponent: i32| [1.0, 1.5].map(|factor| factor * 2.0_f32.powi(exponent));
    let first = (least.log2().floor() as i32).saturating_sub(1).max(SMALLEST);
    // 1.5 times the smallest is none of f16.
    (first..=f32::MAX_EXP)
        .flat_map(of)
        .filter(move |unit| *unit >= least && unit.to_bits() != (1.5 * 2.0_f32.powi(SMALLEST)).to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;

    fn weight<'a>(codes: &'a [u8], scales: &'a [u8], columns: usize) -> Quantised<'a> {
        let view = |element, bytes| TensorView { shape: vec![], element, bytes, file_offset: 0 };
        Quantised {
            precision: Precision::Int4,
            rows: 2 * codes.len() / columns,
            columns,
            codes: view(Element::U8, codes),
            scales: view(Element::F32, scales),
            blocks: Vec::new(),
        }
    }

    #[test]
    fn blocks_of_q4_k_hold_the_same_weights() {
        let codes: Vec<u8> = (0..512).map(|at| (at * 37 % 256) as u8).collect();
        for unit in [2.0_f32.powi(-24), 1.5 * 2.0_f32.powi(-23), 0.375, 1024.0] {
            let multiples = (0..32).map(|at| if at == 5 { 63.0 } else { (at * 29 % 64) as f32 });
            let scales: Vec<u8> =
                multiples.flat_map(|multiple: f32| (unit * multiple).to_le_bytes()).collect();
            let weight = weight(&codes, &scales, 512);
            for row in 0..2 {
                let (mut ours, mut theirs) = (vec![0.0; 512], vec![0.0; 512]);
                weight.row(row, &mut ours);
                BlockKind::Q4K.dequantise(&weight.q4_k(row).unwrap(), &mut theirs);
                assert_eq!(ours, theirs, "{unit}");
            }
        }
    }

    #[test]
    fn scales_without_a_common_unit_are_no_blocks_of_q4_k() {
        let codes = [0; 128];
        let mut scales = [1.0_f32; 8];
        let blocks = |scales: [f32; 8]| weight(&codes, &scales.map(f32::to_le_bytes).concat(), 256).q4_k(0);
        assert!(blocks(scales).is_some() && blocks([0.0; 8]).is_some());
        scales[3] = 0.0078;
        assert_eq!(blocks(scales), None);
        scales[3] = -1.0;
        assert_eq!(blocks(scales), None, "a multiple has no sign");
        assert_eq!(blocks([1_048_576.0; 8]), None, "eight units are more than f16 holds");
        assert_eq!(weight(&codes, &[0; 32], 64).q4_k(0), None, "rows of another length");
    }
}
