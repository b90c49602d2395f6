//! From f32 to the codes and scales of [`bundle::quantised`], round-to-nearest: no calibration data, no search.
//!
//! - int8: one scale for each row, its largest magnitude over 127.
//! - int4: one for each group of 32, so that codes −8 to 7 span it. Where a row is a multiple of 256, it is rounded to a
//!   multiple of one number, which blocks of Q4_K need ([`bundle::quantised`]). Elsewhere it is the signed value of largest
//!   magnitude over −8, so that this value is exact, as in ggml's Q4_0 (G. Gerganov and others).
//! - nf4: one for each block of 64, its largest magnitude; codes are the nearest of the sixteen values. QLoRA's
//!   (Dettmers and others, 2023), without its second quantisation, of the scales.

use bundle::Precision;
use bundle::quantised::{INT4_BLOCK, INT4_GROUP, INT4_OFFSET, MOST_MULTIPLE, NF4, NF4_BLOCK, units};
use half::{bf16, f16};

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Coded {
    pub(crate) codes: Vec<u8>,
    pub(crate) scales: Vec<f32>,
}

/// Codes of `values`, `[rows, columns]` row-major and finite, at a quantised `precision`. On failure, the
/// index of a value with a scale that does not fit into f16.
pub(crate) fn quantise(values: &[f32], columns: usize, precision: Precision) -> Result<Coded, usize> {
    let length = match precision {
        Precision::Int4 => INT4_GROUP,
        Precision::Nf4 => NF4_BLOCK,
        _ => columns,
    };
    let mut coded = Coded::default();
    if precision == Precision::Int4 && columns.is_multiple_of(INT4_BLOCK) {
        for (index, block) in values.chunks(INT4_BLOCK).enumerate() {
            let scales = multiples(block).ok_or_else(|| index * INT4_BLOCK + largest(block).0)?;
            for (group, scale) in block.chunks(INT4_GROUP).zip(&scales) {
                int4(group, *scale, &mut coded.codes);
            }
            coded.scales.extend(scales);
        }
        return Ok(coded);
    }
    for (index, group) in values.chunks(length).enumerate() {
        let (at, largest) = largest(group);
        let scale = match precision {
            Precision::Int4 => shared_scale(largest / -f32::from(INT4_OFFSET)),
            Precision::Nf4 => Some(largest.abs()),
            _ => shared_scale(largest.abs() / 127.0),
        };
        let scale = scale.ok_or(index * length + at)?;
        coded.scales.push(scale);
        match precision {
            Precision::Int4 => int4(group, scale, &mut coded.codes),
            Precision::Nf4 => {
                let code = |&value: &f32| nearest_nf4(value, scale);
                pack(group.iter().map(code), |even, odd| even << 4 | odd, &mut coded.codes);
            }
            _ => {
                coded.codes.extend(group.iter().map(|&value| integer(value, scale, -127.0, 127.0) as u8));
            }
        }
    }
    Ok(coded)
}

fn int4(group: &[f32], scale: f32, out: &mut Vec<u8>) {
    let code = |&value: &f32| (integer(value, scale, -8.0, 7.0) + INT4_OFFSET) as u8;
    pack(group.iter().map(code), |even, odd| even | odd << 4, out);
}

/// The scales of the groups of a block, each rounded to a multiple of the unit that suits them best; `None` above f16's
/// largest.
fn multiples(block: &[f32]) -> Option<Vec<f32>> {
    /// Larger units round scales more coarsely, but may be the ones that these scales are multiples of.
    const UNITS: usize = 3;
    let spanning = |group: &[f32]| {
        let span = |(least, most): (f32, f32), value: &f32| (least.min(*value), most.max(*value));
        let (least, most) = group.iter().fold((0.0, 0.0), span);
        (-least / 8.0).max(most / 7.0)
    };
    let scales: Vec<f32> = block.chunks(INT4_GROUP).map(spanning).collect();
    let largest = scales.iter().copied().fold(0.0, f32::max);
    let rounded = |unit: f32| scales.iter().map(move |scale| (scale / unit).round() * unit);
    let error =
        |unit: f32| scales.iter().zip(rounded(unit)).map(|(scale, near)| (scale - near).abs()).sum::<f32>();
    let mut best = f32::INFINITY;
    let mut chosen = None;
    for unit in units(largest / f32::from(MOST_MULTIPLE)).take(UNITS) {
        if f32::from(MOST_MULTIPLE) * unit <= f16::MAX.to_f32() && error(unit) < best {
            (best, chosen) = (error(unit), Some(rounded(unit).collect()));
        }
    }
    chosen
}

/// The value of largest magnitude, with its place; the first of several.
fn largest(values: &[f32]) -> (usize, f32) {
    let larger = |best: (usize, f32), (at, &value): (usize, &f32)| {
        if value.abs() > best.1.abs() { (at, value) } else { best }
    };
    values.iter().enumerate().fold((0, 0.0), larger)
}

/// The nearest number that bf16 and f16 both hold; `None` above f16's largest.
fn shared_scale(scale: f32) -> Option<f32> {
    // From here on, the step of bf16 is a multiple of that of f16, which is 2^-24 at least; below, it is the
    // other way round.
    const BF16_IS_COARSER: f32 = 1.0 / (1 << 17) as f32;
    let rounded = bf16::from_f32(scale).to_f32();
    if rounded.abs() >= BF16_IS_COARSER {
        return (rounded.abs() <= f16::MAX.to_f32()).then_some(rounded);
    }
    Some(f16::from_f32(scale).to_f32())
}

fn integer(value: f32, scale: f32, least: f32, most: f32) -> i8 {
    // A group of zeros has no scale, and needs none.
    if scale == 0.0 { 0 } else { (value / scale).round_ties_even().clamp(least, most) as i8 }
}

fn nearest_nf4(value: f32, scale: f32) -> u8 {
    let normalised = if scale == 0.0 { 0.0 } else { value / scale };
    // Halfway between neighbours the lower one, as in bitsandbytes.
    let above = NF4.windows(2).filter(|pair| normalised > (pair[0] + pair[1]) / 2.0);
    above.count() as u8
}

fn pack(codes: impl Iterator<Item = u8>, join: impl Fn(u8, u8) -> u8, out: &mut Vec<u8>) {
    let mut codes = codes;
    while let (Some(even), Some(odd)) = (codes.next(), codes.next()) {
        out.push(join(even, odd));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.7).sin() * (1.0 + (i % 5) as f32)).collect()
    }

    #[test]
    fn a_scale_is_exact_in_both_half_precisions() {
        for exponent in -24..15 {
            for step in 0..64 {
                let scale = (1.0 + step as f32 / 63.1) * 2.0f32.powi(exponent);
                let shared = shared_scale(scale).unwrap();
                assert_eq!(f16::from_f32(shared).to_f32(), shared, "{scale}");
                assert_eq!(bf16::from_f32(shared).to_f32(), shared, "{scale}");
                let step = (scale / 128.0).max(2.0f32.powi(-24));
                assert!((shared - scale).abs() <= step / 2.0, "{scale} became {shared}");
            }
        }
        assert_eq!(shared_scale(70_000.0), None);
        assert_eq!(shared_scale(0.0), Some(0.0));
    }

    #[test]
    fn int8_is_within_half_a_step_but_for_the_scale_s_own_rounding() {
        let values = wave(3 * 64);
        let coded = quantise(&values, 64, Precision::Int8).unwrap();
        assert_eq!((coded.codes.len(), coded.scales.len()), (192, 3));
        for ((row, codes), scale) in values.chunks(64).zip(coded.codes.chunks(64)).zip(&coded.scales) {
            for (value, &code) in row.iter().zip(codes) {
                let error = (value - f32::from(code as i8) * scale).abs();
                assert!(error <= 0.5 * scale + value.abs() / 256.0, "{value}: {error} of {scale}");
            }
        }
    }

    #[test]
    fn int4_meets_the_largest_magnitude_with_its_sign() {
        let mut values = wave(64);
        (values[3], values[40]) = (8.0, -16.0);
        let coded = quantise(&values, 64, Precision::Int4).unwrap();
        assert_eq!(coded.scales, [-1.0, 2.0]);
        assert_eq!((coded.codes[1] >> 4, coded.codes[20] & 15), (0, 0), "code −8");
    }

    #[test]
    fn scales_of_a_block_of_int4_are_multiples_of_one_number() {
        let values: Vec<f32> =
            wave(1024).iter().enumerate().map(|(at, value)| value / (1 + at / 32) as f32).collect();
        let coded = quantise(&values, 512, Precision::Int4).unwrap();
        let (mut off, mut all) = (0.0, 0.0);
        for ((group, codes), scale) in values.chunks(32).zip(coded.codes.chunks(16)).zip(&coded.scales) {
            let codes = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
            for (value, code) in group.iter().zip(codes) {
                let held = f32::from(code as i8 - INT4_OFFSET) * scale;
                // Half a step, and what the rounding of the scale takes from the largest.
                assert!((value - held).abs() <= 0.51 * scale + 8.0 * 0.5 / 21.0 * scale, "{value}: {held}");
                off += (value - held).powi(2);
                all += value.powi(2);
            }
        }
        assert!((off / all).sqrt() < 0.1);
        for scales in coded.scales.chunks(8) {
            let largest = scales.iter().copied().fold(0.0, f32::max);
            let is_unit = |unit: &f32| scales.iter().all(|scale| (scale / unit).fract() == 0.0);
            assert!(units(largest / 63.5).take(4).any(|unit| is_unit(&unit)), "{scales:?}");
        }
    }

    #[test]
    fn scales_that_are_multiples_of_one_number_are_kept() {
        let mut values = vec![0.0; 256];
        (values[3], values[40]) = (-0.5, -2.0);
        let coded = quantise(&values, 256, Precision::Int4).unwrap();
        assert_eq!(coded.scales[..3], [0.0625, 0.25, 0.0]);
    }

    #[test]
    fn nf4_takes_the_nearest_value_of_its_table() {
        let mut values = vec![0.0; 64];
        (values[0], values[1], values[2]) = (-3.0, 3.0 * 0.16, 3.0 * 0.99);
        let coded = quantise(&values, 64, Precision::Nf4).unwrap();
        assert_eq!(coded.scales, [3.0]);
        assert_eq!((coded.codes[0], coded.codes[1]), (0x09, 0xf7));
    }

    #[test]
    fn zeros_stay_zeros() {
        for (precision, zero) in [(Precision::Int8, 0), (Precision::Int4, 0x88), (Precision::Nf4, 0x77)] {
            let coded = quantise(&[0.0; 64], 64, precision).unwrap();
            assert!(coded.codes.iter().all(|&code| code == zero) && coded.scales.iter().all(|&s| s == 0.0));
        }
    }

    #[test]
    fn a_value_too_large_for_a_scale_is_pointed_out() {
        let mut values = wave(96);
        values[70] = 1e7;
        assert_eq!(quantise(&values, 32, Precision::Int8), Err(70));
        assert_eq!(quantise(&values, 32, Precision::Int4), Err(70));
    }
}
