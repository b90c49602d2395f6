//! One row of a weight, in GGUF's element types.

use bundle::quantised::INT4_GROUP;
use bundle::{BlockKind, Element, Precision, Quantised, TensorView};
use half::f16;

use crate::FourBits;

/// Weights that share a scale in Q8_0 and Q4_0.
const BLOCK: usize = 32;

/// An element type (`ggml_type` in ggml.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F16,
    Bf16,
    Blocks(BlockKind),
}

impl Kind {
    /// The type of a matrix stored as `element`, which must not be codes.
    pub(crate) fn from_element(element: Element) -> Kind {
        match element {
            Element::Bf16 => Kind::Bf16,
            Element::F16 => Kind::F16,
            Element::F32 | Element::I8 | Element::U8 => Kind::Blocks(BlockKind::F32),
        }
    }

    /// The type of a quantised weight; of a file's own blocks that of the file.
    pub(crate) fn for_weight(weight: &Quantised<'_>, four_bits: FourBits) -> Kind {
        let is_q4_k = || (0..weight.rows).all(|row| weight.q4_k(row).is_some());
        Kind::Blocks(match (weight.precision, &weight.blocks[..]) {
            (Precision::File, [(kind, _), ..]) => *kind,
            (Precision::Int4, _) if four_bits == FourBits::Q4K && is_q4_k() => BlockKind::Q4K,
            (Precision::Int4, _) => BlockKind::Q4_0,
            _ => BlockKind::Q8_0,
        })
    }

    /// GGUF's number of it.
    pub(crate) fn number(self) -> u32 {
        match self {
            Kind::F16 => 1,
            Kind::Bf16 => 30,
            Kind::Blocks(kind) => kind.number(),
        }
    }

    /// Bytes of `count` elements, a multiple of a block's where they come in blocks.
    pub(crate) fn bytes(self, count: usize) -> usize {
        match self {
            Kind::F16 | Kind::Bf16 => 2 * count,
            Kind::Blocks(kind) => kind.row_bytes(count),
        }
    }
}

/// A vector in f32, whatever it is stored as: llama.cpp has norms in f32 alone.
pub(crate) fn widened(view: &TensorView<'_>) -> Vec<u8> {
    let widen = |pair: &[u8; 2]| {
        let bits = u16::from_le_bytes(*pair);
        match view.element {
            Element::Bf16 => half::bf16::from_bits(bits).to_f32(),
            _ => f16::from_bits(bits).to_f32(),
        }
    };
    match view.element {
        Element::Bf16 | Element::F16 => {
            view.bytes.as_chunks().0.iter().flat_map(|pair| widen(pair).to_le_bytes()).collect()
        }
        _ => view.bytes.to_vec(),
    }
}

/// A row of int8 or int4 as blocks of `kind`, and one of a file's own blocks as it is. `None` if a scale is not one that f16
/// holds exactly.
pub(crate) fn blocks(weight: &Quantised<'_>, kind: Kind, row: usize) -> Option<Vec<u8>> {
    if kind == Kind::Blocks(BlockKind::Q4K) && weight.precision == Precision::Int4 {
        return weight.q4_k(row);
    }
    if let (Precision::File, [(kind, _)]) = (weight.precision, &weight.blocks[..]) {
        let width = kind.row_bytes(weight.columns);
        return Some(weight.codes.bytes[row * width..][..width].to_vec());
    }
    let integers = weight.integers(row);
    let groups = weight.columns / INT4_GROUP;
    let mut out = Vec::with_capacity(integers.len() + 2 * groups);
    for (group, integers) in integers.chunks_exact(BLOCK).enumerate() {
        let scale = match weight.precision {
            Precision::Int4 => weight.scale(row * groups + group),
            _ => weight.scale(row),
        };
        let narrow = f16::from_f32(scale);
        if narrow.to_f32() != scale {
            return None;
        }
        out.extend(narrow.to_le_bytes());
        if weight.precision == Precision::Int4 {
            // Byte i holds weights i (low half) and i + 16.
            let (low, high) = integers.split_at(BLOCK / 2);
            let code = |integer: &i8| (integer + bundle::quantised::INT4_OFFSET) as u8;
            out.extend(low.iter().zip(high).map(|(low, high)| code(low) | code(high) << 4));
        } else {
            out.extend(integers.iter().map(|&integer| integer as u8));
        }
    }
    Some(out)
}
