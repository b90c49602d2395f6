//! The quantised blocks of a GGUF file, which the precision `file` keeps byte for byte.
//!
//! A row of a tensor is cut into blocks, and a block into groups that share a scale and a minimum: each weight is
//! `(code - offset) · scale - minimum`. The scale is f16 times an integer of at most 7 bits, and a code has at most
//! 8, so that f32 holds the product exactly, and the difference is rounded once: whatever computes in f32 gets
//! the same bits, and so do llama.cpp, gguf-py and candle.

use half::f16;
use serde::{Deserialize, Serialize};

/// A type of blocks, in llama.cpp's words (`ggml_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BlockKind {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    #[serde(rename = "Q2_K")]
    Q2K,
    #[serde(rename = "Q3_K")]
    Q3K,
    #[serde(rename = "Q4_K")]
    Q4K,
    #[serde(rename = "Q5_K")]
    Q5K,
    #[serde(rename = "Q6_K")]
    Q6K,
    /// A matrix that the file keeps in floats beside those in blocks: a block is one number.
    F32,
}

/// Weights of a k-quant's block.
const SUPER: usize = 256;

/// The most groups of a block.
const GROUPS: usize = 16;

/// The numbers of a block: those of groups and codes that it has not are 0.
pub struct Unpacked {
    pub codes: [u8; SUPER],
    pub scales: [f32; GROUPS],
    pub minima: [f32; GROUPS],
}

impl BlockKind {
    pub const ALL: [BlockKind; 11] = {
        use BlockKind::{F32, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, F32]
    };

    /// Name, number in a file, weights of a block, their bytes, weights of a group, and the offset of codes.
    const fn row(self) -> (&'static str, u32, usize, usize, usize, u8) {
        match self {
            BlockKind::F32 => ("F32", 0, 1, 4, 1, 0),
            BlockKind::Q4_0 => ("Q4_0", 2, 32, 18, 32, 8),
            BlockKind::Q4_1 => ("Q4_1", 3, 32, 20, 32, 0),
            BlockKind::Q5_0 => ("Q5_0", 6, 32, 22, 32, 16),
            BlockKind::Q5_1 => ("Q5_1", 7, 32, 24, 32, 0),
            BlockKind::Q8_0 => ("Q8_0", 8, 32, 34, 32, 128),
            BlockKind::Q2K => ("Q2_K", 10, SUPER, 84, 16, 0),
            BlockKind::Q3K => ("Q3_K", 11, SUPER, 110, 16, 4),
            BlockKind::Q4K => ("Q4_K", 12, SUPER, 144, 32, 0),
            BlockKind::Q5K => ("Q5_K", 13, SUPER, 176, 32, 0),
            BlockKind::Q6K => ("Q6_K", 14, SUPER, 210, 16, 32),
        }
    }

    pub fn name(self) -> &'static str {
        self.row().0
    }

    pub fn numbered(number: u32) -> Option<BlockKind> {
        BlockKind::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// All names, for messages.
    pub fn names() -> String {
        let all = BlockKind::ALL.into_iter().filter(|kind| *kind != BlockKind::F32);
        all.map(BlockKind::name).collect::<Vec<_>>().join(", ")
    }

    pub fn number(self) -> u32 {
        self.row().1
    }

    /// Weights of a block.
    pub fn elements(self) -> usize {
        self.row().2
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.row().3
    }

    /// Bytes of a row of so many weights, a multiple of a block's.
    pub fn row_bytes(self, columns: usize) -> usize {
        columns / self.elements() * self.bytes()
    }

    /// Weights that share a scale and a minimum.
    pub fn group(self) -> usize {
        self.row().4
    }

    /// The code of a weight without a minimum that is 0.
    pub fn offset(self) -> u8 {
        self.row().5
    }

    /// Bits of a code: those that 4 cannot hold take 8.
    pub fn bits(self) -> usize {
        match self {
            BlockKind::Q4_0 | BlockKind::Q4_1 | BlockKind::Q2K | BlockKind::Q3K | BlockKind::Q4K => 4,
            _ => 8,
        }
    }

    /// Whether groups have a minimum.
    pub fn has_minima(self) -> bool {
        use BlockKind::{Q2K, Q4_1, Q4K, Q5_1, Q5K};
        matches!(self, Q4_1 | Q5_1 | Q2K | Q4K | Q5K)
    }

    /// The weights of whole blocks in f32, as many as `out` has.
    pub fn dequantise(self, bytes: &[u8], out: &mut [f32]) {
        if self == BlockKind::F32 {
            out.iter_mut()
                .zip(bytes.as_chunks().0)
                .for_each(|(out, bytes)| *out = f32::from_le_bytes(*bytes));
            return;
        }
        let (group, offset) = (self.group(), f32::from(self.offset()));
        let mut block = Unpacked::default();
        for (bytes, out) in bytes.chunks_exact(self.bytes()).zip(out.chunks_exact_mut(self.elements())) {
            self.unpack(bytes, &mut block);
            let groups = out.chunks_exact_mut(group).zip(block.codes.chunks_exact(group));
            for ((out, codes), (scale, minimum)) in groups.zip(block.scales.iter().zip(block.minima)) {
                let weight = |code: u8| (f32::from(code) - offset) * scale - minimum;
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = weight(*code));
            }
        }
    }

    /// Takes one block apart. Places are those of `dequantize_row_…` in llama.cpp's ggml-quants.c.
    pub fn unpack(self, block: &[u8], into: &mut Unpacked) {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let Unpacked { codes, scales, minima } = into;
        match self {
            BlockKind::F32 => unreachable!("a number has no codes"),
            BlockKind::Q4_0 | BlockKind::Q4_1 | BlockKind::Q5_0 | BlockKind::Q5_1 => {
                scales[0] = half(0);
                let (header, high) = match self {
                    BlockKind::Q4_0 => (2, None),
                    BlockKind::Q4_1 => (4, None),
                    BlockKind::Q5_0 => (6, Some(2)),
                    _ => (8, Some(4)),
                };
                minima[0] = if self.has_minima() { -half(2) } else { 0.0 };
                halves(&block[header..][..16], &mut codes[..32]);
                if let Some(at) = high {
                    let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
                    let fifth = |place: usize| ((bits >> place & 1) as u8) << 4;
                    codes[..32].iter_mut().enumerate().for_each(|(place, code)| *code |= fifth(place));
                }
            }
            BlockKind::Q8_0 => {
                scales[0] = half(0);
                // From signed to an offset of 128.
                codes.iter_mut().zip(&block[2..34]).for_each(|(code, byte)| *code = byte ^ 0x80);
            }
            BlockKind::Q2K => {
                let (d, least) = (half(80), half(82));
                for (at, &packed) in block[..16].iter().enumerate() {
                    scales[at] = d * f32::from(packed & 15);
                    minima[at] = least * f32::from(packed >> 4);
                }
                quarters(&block[16..80], codes);
            }
            BlockKind::Q3K => {
                let d = half(108);
                for (at, scale) in scales.iter_mut().enumerate() {
                    let packed = &block[96..108];
                    let low = packed[at % 8] >> (4 * (at / 8)) & 15;
                    let high = packed[8 + at % 4] >> (2 * (at / 4)) & 3;
                    *scale = d * (f32::from(low | high << 4) - 32.0);
                }
                quarters(&block[32..96], codes);
                for (at, code) in codes.iter_mut().enumerate() {
                    *code |= (block[at % 32] >> (at / 32) & 1) << 2;
                }
            }
            BlockKind::Q4K | BlockKind::Q5K => {
                let (d, least, packed) = (half(0), half(2), &block[4..16]);
                for at in 0..8 {
                    let (scale, minimum) = match at {
                        0..4 => (packed[at] & 63, packed[at + 4] & 63),
                        _ => (
                            packed[at + 4] & 15 | packed[at - 4] >> 6 << 4,
                            packed[at + 4] >> 4 | packed[at] >> 6 << 4,
                        ),
                    };
                    (scales[at], minima[at]) = (d * f32::from(scale), least * f32::from(minimum));
                }
                let low = if self == BlockKind::Q4K { 16 } else { 48 };
                for (bytes, codes) in block[low..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
                    halves(bytes, codes);
                }
                if self == BlockKind::Q5K {
                    for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
                        let high = |byte: u8| (byte >> part & 1) << 4;
                        codes.iter_mut().zip(&block[16..48]).for_each(|(code, byte)| *code |= high(*byte));
                    }
                }
            }
            BlockKind::Q6K => {
                let d = half(208);
                for (scale, &stored) in scales.iter_mut().zip(&block[192..208]) {
                    *scale = d * f32::from(stored as i8);
                }
                for (part, codes) in codes.chunks_exact_mut(128).enumerate() {
                    let (low, high) = (&block[64 * part..][..64], &block[128 + 32 * part..][..32]);
                    halves(low, codes);
                    for (quarter, codes) in codes.chunks_exact_mut(32).enumerate() {
                        let bits = |byte: u8| (byte >> (2 * quarter) & 3) << 4;
                        codes.iter_mut().zip(high).for_each(|(code, byte)| *code |= bits(*byte));
                    }
                }
            }
        }
    }
}

/// Codes of 4 bits: the low halves of all bytes come first.
fn halves(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    low.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte & 15);
    high.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte >> 4);
}

/// Codes of 2 bits: the lowest of 32 bytes come first.
fn quarters(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(128)) {
        for (quarter, codes) in codes.chunks_exact_mut(32).enumerate() {
            codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte >> (2 * quarter) & 3);
        }
    }
}

impl Default for Unpacked {
    fn default() -> Unpacked {
        Unpacked { codes: [0; SUPER], scales: [0.0; GROUPS], minima: [0.0; GROUPS] }
    }
}
