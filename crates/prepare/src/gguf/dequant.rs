//! The types of tensors in a GGUF file, and their numbers as f32: of those that precision `file` keeps by
//! [`BlockKind`], of others by candle or after `dequantize_row_…` of llama.cpp's ggml-quants.c.
#![expect(clippy::needless_range_loop, reason = "places within a block, as in llama.cpp's code")]

use bundle::{BlockKind, Element};
use candle_core::CpuStorage;
use candle_core::quantized::GgmlDType;
use half::f16;

use crate::model::decode;

/// A type of tensors: rows consist of blocks of `elements` numbers in `bytes` bytes.
pub(crate) struct Type {
    /// In the file.
    number: u32,
    pub(crate) name: &'static str,
    pub(crate) elements: usize,
    pub(crate) bytes: usize,
    read: Read,
}

/// How a type becomes f32.
enum Read {
    Plain(Element),
    Kept(BlockKind),
    Candle(GgmlDType),
    /// Appends the numbers of one block, which has the type's bytes.
    Block(fn(&[u8], &mut Vec<f32>)),
    /// It holds no weights.
    Nothing,
}

const fn blocks(number: u32, name: &'static str, elements: usize, bytes: usize, read: Read) -> Type {
    Type { number, name, elements, bytes, read }
}

/// As in ggml.h, sizes as in ggml-common.h.
static TYPES: [Type; 35] = [
    blocks(0, "F32", 1, 4, Read::Plain(Element::F32)),
    blocks(1, "F16", 1, 2, Read::Plain(Element::F16)),
    blocks(2, "Q4_0", 32, 18, Read::Kept(BlockKind::Q4_0)),
    blocks(3, "Q4_1", 32, 20, Read::Kept(BlockKind::Q4_1)),
    blocks(6, "Q5_0", 32, 22, Read::Kept(BlockKind::Q5_0)),
    blocks(7, "Q5_1", 32, 24, Read::Kept(BlockKind::Q5_1)),
    blocks(8, "Q8_0", 32, 34, Read::Kept(BlockKind::Q8_0)),
    blocks(9, "Q8_1", 32, 36, Read::Candle(GgmlDType::Q8_1)),
    blocks(10, "Q2_K", 256, 84, Read::Kept(BlockKind::Q2K)),
    blocks(11, "Q3_K", 256, 110, Read::Kept(BlockKind::Q3K)),
    blocks(12, "Q4_K", 256, 144, Read::Kept(BlockKind::Q4K)),
    blocks(13, "Q5_K", 256, 176, Read::Kept(BlockKind::Q5K)),
    blocks(14, "Q6_K", 256, 210, Read::Kept(BlockKind::Q6K)),
    blocks(15, "Q8_K", 256, 292, Read::Candle(GgmlDType::Q8K)),
    blocks(16, "IQ2_XXS", 256, 66, Read::Block(iq2_xxs)),
    blocks(17, "IQ2_XS", 256, 74, Read::Block(iq2_xs)),
    blocks(18, "IQ3_XXS", 256, 98, Read::Block(iq3_xxs)),
    blocks(19, "IQ1_S", 256, 50, Read::Block(iq1_s)),
    blocks(20, "IQ4_NL", 32, 18, Read::Block(iq4_nl)),
    blocks(21, "IQ3_S", 256, 110, Read::Block(iq3_s)),
    blocks(22, "IQ2_S", 256, 82, Read::Block(iq2_s)),
    blocks(23, "IQ4_XS", 256, 136, Read::Block(iq4_xs)),
    blocks(24, "I8", 1, 1, Read::Nothing),
    blocks(25, "I16", 1, 2, Read::Nothing),
    blocks(26, "I32", 1, 4, Read::Nothing),
    blocks(27, "I64", 1, 8, Read::Nothing),
    blocks(28, "F64", 1, 8, Read::Nothing),
    blocks(29, "IQ1_M", 256, 56, Read::Block(iq1_m)),
    blocks(30, "BF16", 1, 2, Read::Plain(Element::Bf16)),
    blocks(34, "TQ1_0", 256, 54, Read::Block(tq1_0)),
    blocks(35, "TQ2_0", 256, 66, Read::Block(tq2_0)),
    blocks(39, "MXFP4", 32, 17, Read::Block(mxfp4)),
    blocks(40, "NVFP4", 64, 36, Read::Block(nvfp4)),
    blocks(41, "Q1_0", 128, 18, Read::Block(q1_0)),
    blocks(42, "Q2_0", 64, 18, Read::Block(q2_0)),
];

impl Type {
    pub(crate) fn numbered(number: u32) -> Option<&'static Type> {
        TYPES.iter().find(|known| known.number == number)
    }

    /// Bytes of a row of so many numbers: it consists of whole blocks.
    pub(crate) fn row(&self, columns: usize) -> usize {
        columns / self.elements * self.bytes
    }

    /// As precision `file` has a matrix of this type; `None` if it has not.
    pub(crate) fn kept(&self) -> Option<BlockKind> {
        match self.read {
            Read::Plain(_) => Some(BlockKind::F32),
            Read::Kept(kind) => Some(kind),
            _ => None,
        }
    }

    /// The numbers of whole blocks. Bytes after the last whole block are left out.
    pub(crate) fn dequantise(&self, bytes: &[u8]) -> Result<Vec<f32>, String> {
        let blocks = bytes.len() / self.bytes;
        let (bytes, elements) = (&bytes[..blocks * self.bytes], blocks * self.elements);
        match self.read {
            Read::Plain(stored) => Ok(decode(bytes, stored)),
            Read::Kept(kind) => {
                let mut values = vec![0.0; elements];
                kind.dequantise(bytes, &mut values);
                Ok(values)
            }
            Read::Block(read) => {
                let mut values = Vec::with_capacity(elements);
                bytes.chunks_exact(self.bytes).for_each(|block| read(block, &mut values));
                Ok(values)
            }
            // candle asserts how bytes are aligned, and those of no block are nowhere.
            Read::Candle(_) if bytes.is_empty() => Ok(Vec::new()),
            Read::Candle(dtype) => match dtype.from_data(bytes.into()).dequantize(elements) {
                Ok(CpuStorage::F32(values)) => Ok(values),
                Ok(_) => Err(format!("was not dequantised to f32 from {}", self.name)),
                Err(e) => Err(format!("cannot be dequantised: {e}")),
            },
            Read::Nothing => Err(cannot_dequantise(self.name)),
        }
    }
}

/// `stored` is a type's name, or words for one that is not known.
pub(crate) fn cannot_dequantise(stored: &str) -> String {
    format!(
        "is stored as {stored}, which cannot be dequantised; supported are F32, F16, BF16, Q1_0 to Q8_1, Q2_K to \
         Q8_K, IQ1 to IQ4, TQ1_0, TQ2_0, MXFP4 and NVFP4"
    )
}

/// The grids of the IQ types, from ggml-common.h (MIT licence, by Iwan Kawrakow), one after the other. An entry of four
/// hexadecimal digits is eight numbers of 2 bits or four of 4 bits, the first in the lowest bits. The numbers are places
/// in the type's list of steps, and of IQ1 they are -1, 0 and 1, each plus 1.
static GRIDS: [u16; 4608] = parsed(include_str!("grids.txt"));

const IQ2_XXS: usize = 0;
const IQ2_XS: usize = 256;
const IQ2_S: usize = 768;
const IQ3_XXS: usize = 1792;
const IQ3_S: usize = 2048;
const IQ1: usize = 2560;

const fn parsed<const N: usize>(text: &str) -> [u16; N] {
    let (bytes, mut entries, mut digits, mut at) = (text.as_bytes(), [0; N], 0, 0);
    while at < bytes.len() {
        let digit = match bytes[at] {
            digit @ b'0'..=b'9' => Some(digit - b'0'),
            letter @ b'a'..=b'f' => Some(letter - b'a' + 10),
            _ => None,
        };
        if let Some(digit) = digit {
            entries[digits / 4] = entries[digits / 4] << 4 | digit as u16;
            digits += 1;
        }
        at += 1;
    }
    assert!(digits == 4 * N);
    entries
}

fn grid(start: usize, entry: usize) -> u16 {
    GRIDS[start + entry]
}

/// `kvalues_iq4nl`
const IQ4_STEPS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// `kvalues_fp4`: twice the numbers of E2M1.
const FP4_STEPS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The fourth is in no grid.
const IQ2_STEPS: [u8; 4] = [8, 25, 43, 0];
/// The last eight are in no grid of these.
const IQ3_XXS_STEPS: [u8; 16] = [4, 12, 20, 28, 36, 44, 52, 62, 0, 0, 0, 0, 0, 0, 0, 0];
const IQ3_S_STEPS: [u8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, 0, 0, 0, 0, 0, 0, 0, 0];
/// `IQ1S_DELTA`
const IQ1_SHIFT: f32 = 0.125;

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_bits(u16(bytes, at)).to_f32()
}

fn u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Appends eight numbers of a grid, times `scale`, negative where `signs` has a bit.
fn signed(numbers: [u8; 8], signs: u8, scale: f32, values: &mut Vec<f32>) {
    let sign = |at: usize| if signs >> at & 1 == 1 { -1.0 } else { 1.0 };
    values.extend(numbers.iter().enumerate().map(|(at, &number)| scale * f32::from(number) * sign(at)));
}

/// Eight signs of which seven are stored: their number is even (`ksigns_iq2xs`).
fn even(seven: u32) -> u8 {
    let seven = seven as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

fn eight(entry: u16) -> [u8; 8] {
    std::array::from_fn(|at| IQ2_STEPS[usize::from(entry >> (2 * at) & 3)])
}

/// Two entries of four numbers.
fn two_of_four([first, second]: [u16; 2], steps: &[u8; 16]) -> [u8; 8] {
    std::array::from_fn(|at| {
        let entry = if at < 4 { first } else { second };
        steps[usize::from(entry >> (4 * (at % 4)) & 15)]
    })
}

fn iq2_xxs(block: &[u8], values: &mut Vec<f32>) {
    for group in block[2..].chunks_exact(8) {
        let signs = u32::from_le_bytes([group[4], group[5], group[6], group[7]]);
        let scale = half(block, 0) * (0.5 + (signs >> 28) as f32) * 0.25;
        for part in 0..4 {
            let entry = grid(IQ2_XXS, usize::from(group[part]));
            signed(eight(entry), even(signs >> (7 * part)), scale, values);
        }
    }
}

fn iq2_xs(block: &[u8], values: &mut Vec<f32>) {
    let (codes, scales) = block[2..].split_at(64);
    for part in 0..32 {
        let scale = half(block, 0) * (0.5 + f32::from(nibble(scales, part / 2))) * 0.25;
        let code = u16(codes, 2 * part);
        signed(eight(grid(IQ2_XS, usize::from(code & 511))), even(u32::from(code >> 9)), scale, values);
    }
}

fn iq2_s(block: &[u8], values: &mut Vec<f32>) {
    let (low, signs, high, scales) = (&block[2..34], &block[34..66], &block[66..74], &block[74..]);
    for part in 0..32 {
        let scale = half(block, 0) * (0.5 + f32::from(nibble(scales, part / 2))) * 0.25;
        let above = usize::from(high[part / 4] >> (2 * (part % 4)) & 3);
        let entry = grid(IQ2_S, usize::from(low[part]) | above << 8);
        signed(eight(entry), signs[part], scale, values);
    }
}

fn iq3_xxs(block: &[u8], values: &mut Vec<f32>) {
    let (codes, signs) = block[2..].split_at(64);
    for (codes, signs) in codes.chunks_exact(8).zip(signs.chunks_exact(4)) {
        let signs = u32::from_le_bytes([signs[0], signs[1], signs[2], signs[3]]);
        let scale = half(block, 0) * (0.5 + (signs >> 28) as f32) * 0.5;
        for part in 0..4 {
            let entries = [0, 1].map(|at| grid(IQ3_XXS, usize::from(codes[2 * part + at])));
            signed(two_of_four(entries, &IQ3_XXS_STEPS), even(signs >> (7 * part)), scale, values);
        }
    }
}

fn iq3_s(block: &[u8], values: &mut Vec<f32>) {
    let (low, high, signs, scales) = (&block[2..66], &block[66..74], &block[74..106], &block[106..]);
    for part in 0..32 {
        let scale = half(block, 0) * (1.0 + 2.0 * f32::from(nibble(scales, part / 4)));
        let entries = [2 * part, 2 * part + 1].map(|at| {
            let above = usize::from(high[at / 8] >> (at % 8) & 1);
            grid(IQ3_S, usize::from(low[at]) | above << 8)
        });
        signed(two_of_four(entries, &IQ3_S_STEPS), signs[part], scale, values);
    }
}

/// Eight numbers of a grid of -1, 0 and 1.
fn iq1(low: u8, above: u16, scale: f32, is_below: bool, values: &mut Vec<f32>) {
    let entry = grid(IQ1, usize::from(low) | usize::from(above & 7) << 8);
    let shift = if is_below { -IQ1_SHIFT } else { IQ1_SHIFT };
    values.extend((0..8).map(|at| scale * (f32::from(entry >> (2 * at) & 3) - 1.0 + shift)));
}

fn iq1_s(block: &[u8], values: &mut Vec<f32>) {
    let (low, high) = block[2..].split_at(32);
    for part in 0..32 {
        let bits = u16(high, 2 * (part / 4));
        let scale = half(block, 0) * f32::from(2 * (bits >> 12 & 7) + 1);
        iq1(low[part], bits >> (3 * (part % 4)), scale, bits >> 15 == 1, values);
    }
}

fn iq1_m(block: &[u8], values: &mut Vec<f32>) {
    let (low, high, scales) = (&block[..32], &block[32..48], &block[48..]);
    let scales = [0, 2, 4, 6].map(|at| u16(scales, at));
    let whole = scales.iter().rev().fold(0, |bits, scale| bits << 4 | scale >> 12);
    let whole = f16::from_bits(whole).to_f32();
    for part in 0..32 {
        let scale = whole * f32::from(2 * (scales[part / 8] >> (3 * (part / 2 % 4)) & 7) + 1);
        let bits = nibble(high, part);
        iq1(low[part], u16::from(bits), scale, bits >> 3 == 1, values);
    }
}

/// The numbers of 4 bits, the low ones of all bytes first.
fn iq4(codes: &[u8], steps: &[i8; 16], scale: f32, values: &mut Vec<f32>) {
    let low = codes.iter().map(|code| code & 15);
    let codes = low.chain(codes.iter().map(|code| code >> 4));
    values.extend(codes.map(|code| scale * f32::from(steps[usize::from(code)])));
}

fn iq4_nl(block: &[u8], values: &mut Vec<f32>) {
    iq4(&block[2..], &IQ4_STEPS, half(block, 0), values);
}

fn iq4_xs(block: &[u8], values: &mut Vec<f32>) {
    let (high, low) = (u16(block, 2), &block[4..8]);
    for (part, codes) in block[8..].chunks_exact(16).enumerate() {
        let scale = u16::from(nibble(low, part)) | (high >> (2 * part) & 3) << 4;
        iq4(codes, &IQ4_STEPS, half(block, 0) * (f32::from(scale) - 32.0), values);
    }
}

fn mxfp4(block: &[u8], values: &mut Vec<f32>) {
    // 2^(e - 128), half of E8M0's number, for the steps are twice theirs.
    let bits = if block[0] < 2 { 0x0020_0000 << block[0] } else { (u32::from(block[0]) - 1) << 23 };
    iq4(&block[1..], &FP4_STEPS, f32::from_bits(bits), values);
}

fn nvfp4(block: &[u8], values: &mut Vec<f32>) {
    let (scales, codes) = block.split_at(4);
    for (&scale, codes) in scales.iter().zip(codes.chunks_exact(8)) {
        // E4M3 without a sign, halved.
        let (exponent, mantissa) = (i32::from(scale >> 3 & 15), f32::from(scale & 7));
        let number = match (scale, exponent) {
            (0x7f, _) => 0.0,
            (_, 0) => mantissa * 2f32.powi(-10),
            _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
        };
        iq4(codes, &FP4_STEPS, number, values);
    }
}

fn q1_0(block: &[u8], values: &mut Vec<f32>) {
    let scale = half(block, 0);
    values.extend((0..128).map(|at| if block[2 + at / 8] >> (at % 8) & 1 == 1 { scale } else { -scale }));
}

fn q2_0(block: &[u8], values: &mut Vec<f32>) {
    let code = |at: usize| block[2 + at / 4] >> (2 * (at % 4)) & 3;
    values.extend((0..64).map(|at| (f32::from(code(at)) - 1.0) * half(block, 0)));
}

fn tq2_0(block: &[u8], values: &mut Vec<f32>) {
    let scale = half(block, 64);
    for codes in block[..64].chunks_exact(32) {
        for shift in [0, 2, 4, 6] {
            values.extend(codes.iter().map(|code| scale * (f32::from(code >> shift & 3) - 1.0)));
        }
    }
}

/// Numbers of base 3, five in a byte, of the last four bytes four.
fn tq1_0(block: &[u8], values: &mut Vec<f32>) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let scale = half(block, 52);
    for (codes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        for power in &POWERS[..digits] {
            let digit = |code: &u8| (u16::from(code.wrapping_mul(*power)) * 3) >> 8;
            values.extend(codes.iter().map(|code| scale * (f32::from(digit(code)) - 1.0)));
        }
    }
}

/// Bits 0 to 3 or 4 to 7 of a byte.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (4 * (at % 2)) & 15
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes 37 i + 11 as one block; the first number, one in the middle, the last, and the sum of all times their
    /// places from 1, as gguf-py's quants.py computes them (Q1_0 and Q2_0: by hand).
    const BLOCKS: [(&str, [f32; 3], f64); 15] = [
        ("IQ2_XXS", [-1.8675041, -3.059864, -2.5465965], 1162.1324157714844),
        ("IQ2_XS", [-0.34744263, -3.225689, -0.6001282], 3891.298198699951),
        ("IQ3_XXS", [-0.410614, 5.3853607, -0.4737854], 95.48355102539062),
        ("IQ1_S", [-0.082912445, 0.31980515, -0.13818741], -373.6271667480469),
        ("IQ4_NL", [-1.1054993, 1.6740417, 0.031585693], -218.54141235351562),
        ("IQ3_S", [-2.5584412, -7.106781, 7.106781], 6405.262756347656),
        ("IQ2_S", [-4.5838737, 0.09475708, 2.4676323], -1960.8595848083496),
        ("IQ4_XS", [2.05307, -23.594513, -0.5053711], -66049.91729736328),
        ("IQ1_M", [-0.8074951, -12.112427, -1.7303467], -2063.49609375),
        ("TQ1_0", [0.035614014, -0.0, 0.035614014], 4.665435791015625),
        ("TQ2_0", [0.06707764, 0.03353882, -0.03353882], 578.3769226074219),
        ("MXFP4", [0.0, -0.03125, 0.1875], 19.9375),
        ("NVFP4", [-0.12890625, -52.0, 160.0], 60054.65234375),
        ("Q1_0", [0.031585693, 0.031585693, 0.031585693], -16.8035888671875),
        ("Q2_0", [0.0, 0.0, 0.031585693], 25.679168701171875),
    ];

    #[test]
    fn numbers_are_those_of_llama_cpp() {
        let kinds = TYPES.iter().filter(|kind| matches!(kind.read, Read::Block(_)));
        assert_eq!(kinds.clone().count(), BLOCKS.len());
        for (kind, (name, some, sum)) in kinds.zip(BLOCKS) {
            let mut block: Vec<u8> = (0..kind.bytes).map(|i| (37 * i + 11) as u8).collect();
            // A scale that is finite and not tiny.
            match kind.name {
                "MXFP4" => block[0] = 0x7b,
                "NVFP4" => {}
                "IQ1_M" => block[55] &= 0x3f,
                _ => {
                    let high = match kind.name {
                        "TQ1_0" => 53,
                        "TQ2_0" => 65,
                        _ => 1,
                    };
                    block[high] = block[high] & 0x83 | 0x28;
                }
            }
            let values = kind.dequantise(&block).unwrap();
            assert_eq!((kind.name, values.len()), (name, kind.elements));
            assert_eq!([values[0], values[values.len() / 2 + 3], values[values.len() - 1]], some, "{name}");
            let places = values.iter().zip(1..).map(|(value, place)| f64::from(*value) * f64::from(place));
            assert_eq!(places.sum::<f64>(), sum, "{name}");
        }
    }

    #[test]
    fn any_bytes_give_the_numbers_of_whole_blocks() {
        for kind in TYPES.iter().filter(|kind| !matches!(kind.read, Read::Nothing)) {
            for blocks in 0..3 {
                for byte in [0, 157, 255] {
                    let bytes = vec![byte; blocks * kind.bytes];
                    let values = kind.dequantise(&bytes).unwrap();
                    assert_eq!(values.len(), blocks * kind.elements, "{}", kind.name);
                }
            }
        }
    }

    #[test]
    fn kept_blocks_are_those_of_candle_in_size_and_in_every_bit_of_their_numbers() {
        use GgmlDType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        let kept = TYPES.iter().filter_map(|kind| kind.kept().map(|kept| (kind, kept)));
        let kept = kept.filter(|(_, kept)| *kept != BlockKind::F32);
        let candle = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K];
        assert_eq!(kept.clone().count(), candle.len());
        for ((kind, kept), dtype) in kept.zip(candle) {
            assert_eq!((kind.name, kind.number), (kept.name(), kept.number()));
            assert_eq!((kind.elements, kind.bytes), (kept.elements(), kept.bytes()), "{}", kind.name);
            assert_eq!((kind.elements, kind.bytes), (dtype.block_size(), dtype.type_size()), "{}", kind.name);
            // Any bytes, with scales that are finite: the second byte of each f16.
            let mut bytes: Vec<u8> = (0..64 * kind.bytes).map(|i| (i * i / 7 + 37 * i + 11) as u8).collect();
            for block in bytes.chunks_exact_mut(kind.bytes) {
                let halves: &[usize] = match kind.name {
                    "Q4_0" | "Q5_0" | "Q8_0" => &[1],
                    "Q2_K" => &[81, 83],
                    "Q3_K" => &[109],
                    "Q6_K" => &[209],
                    _ => &[1, 3],
                };
                halves.iter().for_each(|&at| block[at] = block[at] & 0x83 | 0x28);
            }
            let CpuStorage::F32(expected) =
                dtype.from_data(bytes.clone().into()).dequantize(64 * kind.elements).unwrap()
            else {
                panic!("f32")
            };
            let ours = kind.dequantise(&bytes).unwrap();
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert!(bits(&ours) == bits(&expected), "{}", kind.name);
        }
        assert!(TYPES.windows(2).all(|pair| pair[0].number < pair[1].number));
    }
}
