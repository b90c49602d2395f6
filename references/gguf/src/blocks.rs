//! One row of a weight, in GGUF's element types.

use bundle::quantised::INT4_GROUP;
use bundle::{Element, Precision, Quantised, TensorView};
use half::f16;

/// Weights that share a scale in Q8_0 and Q4_0.
const BLOCK: usize = 32;

/// GGUF's number of an element type (`ggml_type` in ggml.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q8_0 = 8,
    Bf16 = 30,
}

impl Kind {
    /// The type of a matrix stored as `element`, which must not be codes.
    pub(crate) fn from_element(element: Element) -> Kind {
        match element {
            Element::Bf16 => Kind::Bf16,
            Element::F16 => Kind::F16,
            Element::F32 | Element::I8 | Element::U8 => Kind::F32,
        }
    }

    /// Bytes of `count` elements, a multiple of [`BLOCK`] where they come in blocks.
    pub(crate) fn bytes(self, count: usize) -> usize {
        match self {
            Kind::F32 => 4 * count,
            Kind::F16 | Kind::Bf16 => 2 * count,
            Kind::Q8_0 => count / BLOCK * (2 + BLOCK),
            Kind::Q4_0 => count / BLOCK * (2 + BLOCK / 2),
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

/// A row of int8 or int4 as blocks of Q8_0 or Q4_0. `None` if a scale is not one that f16 holds exactly.
pub(crate) fn blocks(weight: &Quantised<'_>, row: usize) -> Option<Vec<u8>> {
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
