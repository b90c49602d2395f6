//! Numbers to and from the little-endian bytes of a file.

use bundle::Element;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Appends `values` to `out`, rounded to nearest even where `element`, a type of floats, is
/// narrower than f32. On failure returns the index of the first finite value that `element` cannot hold.
pub(crate) fn encode(values: &[f32], element: Element, out: &mut Vec<u8>) -> Result<(), usize> {
    match element {
        Element::F32 => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Element::Bf16 => {
            let mut rounded = vec![bf16::ZERO; values.len()];
            rounded.convert_from_f32_slice(values);
            check(&rounded, |value| value.is_finite())?;
            out.extend(rounded.iter().flat_map(|value| value.to_le_bytes()));
        }
        Element::F16 => {
            let mut rounded = vec![f16::ZERO; values.len()];
            rounded.convert_from_f32_slice(values);
            check(&rounded, |value| value.is_finite())?;
            out.extend(rounded.iter().flat_map(|value| value.to_le_bytes()));
        }
        Element::I8 | Element::U8 => unreachable!("codes are made by `quantise`"),
    }
    Ok(())
}

fn check<T>(values: &[T], finite: impl Fn(&T) -> bool) -> Result<(), usize> {
    match values.iter().position(|value| !finite(value)) {
        Some(index) => Err(index),
        None => Ok(()),
    }
}

/// The inverse of [`encode`]; every value of these types is exact in f32.
pub(crate) fn decode(bytes: &[u8], stored: Element) -> Vec<f32> {
    match stored {
        Element::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Element::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Element::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Element::I8 | Element::U8 => unreachable!("a source's weights are floats"),
    }
}

/// `[rows, columns]` to `[columns, rows]`, in square blocks so that both sides stay in cache.
pub(crate) fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const BLOCK: usize = 32;
    let mut out = vec![0.0; values.len()];
    for row_block in (0..rows).step_by(BLOCK) {
        for column_block in (0..columns).step_by(BLOCK) {
            for row in row_block..rows.min(row_block + BLOCK) {
                for column in column_block..columns.min(column_block + BLOCK) {
                    out[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(values: &[f32], element: Element) -> Result<Vec<u8>, usize> {
        let mut out = Vec::new();
        encode(values, element, &mut out).map(|()| out)
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        // Halfway between two neighbours of bf16 (8 bits of significand) and of f16 (11 bits): the even one.
        let halves = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1.0 - 1.0 / 256.0];
        let bytes = encoded(&halves, Element::Bf16).unwrap();
        assert_eq!(decode(&bytes, Element::Bf16), [1.0, 1.0 + 4.0 / 256.0, -1.0]);
        let halves = [1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 1.0 + 1.1 / 2048.0];
        let bytes = encoded(&halves, Element::F16).unwrap();
        assert_eq!(decode(&bytes, Element::F16), [1.0, 1.0 + 4.0 / 2048.0, 1.0 + 2.0 / 2048.0]);
    }

    #[test]
    fn what_is_already_narrow_comes_back_bit_for_bit() {
        for bits in (0..=u16::MAX).filter(|&bits| bf16::from_bits(bits).is_finite()) {
            let bytes = encoded(&decode(&bits.to_le_bytes(), Element::Bf16), Element::Bf16);
            assert_eq!(bytes.unwrap(), bits.to_le_bytes());
        }
        for bits in (0..=u16::MAX).filter(|&bits| f16::from_bits(bits).is_finite()) {
            let bytes = encoded(&decode(&bits.to_le_bytes(), Element::F16), Element::F16);
            assert_eq!(bytes.unwrap(), bits.to_le_bytes());
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_pointed_out() {
        assert_eq!(encoded(&[1.0, 65504.0, 65520.0], Element::F16), Err(2));
        assert_eq!(encoded(&[1.0, f32::MAX], Element::Bf16), Err(1));
        assert!(encoded(&[65519.0], Element::F16).is_ok(), "rounds down to the largest f16");
    }

    #[test]
    fn transposing_swaps_rows_and_columns() {
        let (rows, columns) = (37, 65);
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let turned = transpose(&values, rows, columns);
        assert_eq!(turned[3 * rows + 36], values[36 * columns + 3]);
        assert_eq!(transpose(&turned, columns, rows), values);
    }
}
