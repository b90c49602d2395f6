//! In what a framework multiplies, from the logits of a model whose head is the identity ([`bundle::arithmetic`]).
//!
//! A logit of that model is a number as the head's product read it. What happened to it shows in it: numbers in
//! f32 are those of the norm; numbers in f16, tf32 or bf16 have 11 or 8 significant bits; 8-bit integers are steps of the
//! largest number of their group. Which kernel runs depends on the number of rows, so that each is observed by itself.

use bundle::arithmetic::{FACTOR, SHOWN, VOCABULARY, embedding};
use half::bf16;
use serde::{Deserialize, Serialize};

/// Tokens of the prompts through which a product is observed: a step, a short and a long prompt.
pub const ROWS: [usize; 3] = [1, 16, 128];

/// What a framework multiplies in, at one number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arithmetic {
    /// Rows of the product: tokens computed at once.
    pub rows: usize,
    pub multiplied: Multiplied,
    /// Whether sums of products keep what f32 keeps.
    pub adds_in_f32: bool,
}

/// What the activations are when they are multiplied with weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Multiplied {
    F32,
    /// f16 or tf32: 11 significant bits.
    Bits11,
    Bf16,
    /// Integers of 8 bits, one scale for so many numbers of a row; 0 for all of a row.
    Int8(usize),
    /// Integers of 8 bits, one scale for all rows.
    Int8Shared,
}

impl Arithmetic {
    /// For people: `f32`; at f32, 11 bits are those of tf32. Sums that keep less than f32 are said.
    pub fn name(&self, precision: &str) -> String {
        let sums = if self.adds_in_f32 { "" } else { ", added in 16 bits" };
        format!("{}{sums}", self.multiplied.name(precision))
    }
}

/// For people: what is multiplied in, and from how many tokens at once on that is another: `bf16 (f32 from 16 tokens at
/// once)`. `None` if nothing was observed.
pub fn words(observed: &[Arithmetic], precision: &str) -> Option<String> {
    let said = observed.first()?.name(precision);
    let names = observed.iter().map(|observed| observed.name(precision));
    let changes =
        observed.iter().zip(names.clone()).skip(1).zip(names).filter(|((_, name), last)| name != last);
    let changes: Vec<String> = changes
        .map(|((observed, name), _)| format!("{name} from {} tokens at once", observed.rows))
        .collect();
    Some(if changes.is_empty() { said } else { format!("{said} ({})", changes.join(", ")) })
}

impl Multiplied {
    /// Significant bits of a number.
    pub fn bits(self) -> u32 {
        match self {
            Multiplied::F32 => 24,
            Multiplied::Bits11 => 11,
            Multiplied::Bf16 => 8,
            Multiplied::Int8(_) | Multiplied::Int8Shared => 7,
        }
    }

    fn name(self, precision: &str) -> String {
        match self {
            Multiplied::F32 => "f32".into(),
            Multiplied::Bits11 if precision == "f32" => "tf32".into(),
            Multiplied::Bits11 => "f16".into(),
            Multiplied::Bf16 => "bf16".into(),
            Multiplied::Int8(0) => "int8 by row".into(),
            Multiplied::Int8(group) => format!("int8 by {group}"),
            Multiplied::Int8Shared => "int8 at one scale".into(),
        }
    }
}

/// Numbers that differ by chance in a bit that decides how they are rounded.
const MOST_ODD: f64 = 0.02;

/// Relative error (root mean square) of f32's own rounding at most, and from which on numbers are in steps of integers.
/// The tests have all of them on their side of these limits.
const F32: f64 = 1e-5;
const STEPS: f64 = 2.5e-3;

/// `None` if the logits are those of nothing that is known. `logits`: `[tokens, VOCABULARY]`, of a prompt of these tokens
/// through the model of this width.
pub fn observed(tokens: &[u32], width: usize, logits: &[f32]) -> Option<Arithmetic> {
    let read: Vec<Vec<f64>> = logits.chunks_exact(VOCABULARY).map(shown).collect();
    if read.len() != tokens.len() || read.iter().flatten().any(|number| !number.is_finite()) {
        return None;
    }
    let exact: Vec<Vec<f64>> = tokens.iter().map(|&token| normalised(token, width)).collect();
    let off = distance(&read, &exact);
    let rounded: Vec<Vec<f64>> = exact
        .iter()
        .map(|row| row.iter().map(|number| f64::from(bf16::from_f64(*number))).collect())
        .collect();
    let groups = [32, 64, 128, 256, 0].map(Multiplied::Int8);
    let kinds = groups.into_iter().chain([Multiplied::Int8Shared]);
    let ways = kinds.flat_map(|kind| LARGEST.map(|most| (kind, most)));
    let by_steps = ways.flat_map(|(kind, most)| {
        [&exact, &rounded].map(|numbers| (distance(&read, &steps(numbers, &read, kind, most)), kind))
    });
    let (off_steps, kind) = by_steps.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let multiplied = if off > STEPS && off_steps < off / 2.0 {
        kind
    } else if off > 2.0 * STEPS {
        return None;
    } else if are_of_bits(&read, 8) {
        Multiplied::Bf16
    } else if are_of_bits(&read, 11) {
        Multiplied::Bits11
    } else if off < F32 {
        Multiplied::F32
    } else {
        return None;
    };
    // Steps that are written in 16 bits are not the numbers that were added.
    let is_written_in_16 = multiplied != Multiplied::Bf16 && are_of_bits(&read, 8);
    let unit = if is_written_in_16 { 2.0_f64.powi(-9) } else { 2.0_f64.powi(-17) };
    let adds_in_f32 = logits.chunks_exact(VOCABULARY).zip(&read).all(|(row, read)| adds_up(row, read, unit));
    Some(Arithmetic { rows: tokens.len(), multiplied, adds_in_f32 })
}

/// The numbers that the head's product read.
fn shown(logits: &[f32]) -> Vec<f64> {
    logits[..SHOWN].iter().map(|logit| f64::from(*logit) / f64::from(FACTOR)).collect()
}

/// The embedding of a token after the norm.
fn normalised(token: u32, width: usize) -> Vec<f64> {
    let numbers = embedding(token, width);
    let squares: f64 = numbers.iter().map(|number| f64::from(*number).powi(2)).sum();
    let norm = (squares / numbers.len() as f64).sqrt();
    numbers[..SHOWN].iter().map(|number| f64::from(*number) / norm).collect()
}

/// The integer of the largest of a group: 127, or as in ggml's Q8_K 128 with the sign that -128 has.
const LARGEST: [f64; 2] = [127.0, 128.0];

/// Numbers this near to a half are rounded by chance.
const TIE: f64 = 1e-3;

/// The numbers as integers of 8 bits. Halves go where those that were read went.
fn steps(exact: &[Vec<f64>], read: &[Vec<f64>], kind: Multiplied, most: f64) -> Vec<Vec<f64>> {
    let larger = |a: f64, b: f64| if b.abs() > a.abs() { b } else { a };
    let largest = |numbers: &[f64]| numbers.iter().copied().fold(0.0, larger);
    let all = exact.iter().map(|row| largest(row)).fold(0.0, larger);
    let mut rounded = exact.to_vec();
    for (row, read) in rounded.iter_mut().zip(read) {
        let size = match kind {
            Multiplied::Int8(group) if group > 0 => group,
            _ => row.len(),
        };
        for (group, read) in row.chunks_mut(size).zip(read.chunks(size)) {
            let step = if kind == Multiplied::Int8Shared { all } else { largest(group) } / -most;
            for (number, read) in group.iter_mut().zip(read) {
                let place = *number / step;
                let is_tie = (place - place.floor() - 0.5).abs() < TIE;
                let up = if is_tie { *read / step > place } else { place - place.floor() > 0.5 };
                *number = (place.floor() + f64::from(u8::from(up))).min(127.0) * step;
            }
        }
    }
    rounded
}

/// Root mean square of the difference over that of the numbers, the norm's own error in each row left out.
fn distance(read: &[Vec<f64>], expected: &[Vec<f64>]) -> f64 {
    let (mut differences, mut squares) = (0.0, 0.0);
    for (read, expected) in read.iter().zip(expected) {
        let product: f64 = read.iter().zip(expected).map(|(a, b)| a * b).sum();
        let square: f64 = expected.iter().map(|number| number * number).sum();
        let factor = product / square;
        differences += read.iter().zip(expected).map(|(a, b)| (a - factor * b).powi(2)).sum::<f64>();
        squares += read.iter().map(|number| number * number).sum::<f64>();
    }
    if squares == 0.0 { f64::INFINITY } else { (differences / squares).sqrt() }
}

/// Whether the numbers have so many significant bits.
fn are_of_bits(read: &[Vec<f64>], bits: u32) -> bool {
    let odd = |number: &&f64| number.to_bits() << (12 + bits - 1) != 0;
    let count = read.iter().flatten().filter(odd).count();
    (count as f64) < MOST_ODD * (read.len() * SHOWN) as f64
}

/// Whether the last rows of the head give the sum of all numbers, but for the rounding of the logits to 16 bits.
fn adds_up(logits: &[f32], read: &[f64], unit: f64) -> bool {
    let sum: f64 = f64::from(FACTOR) * read.iter().sum::<f64>();
    let size: f64 = f64::from(FACTOR).abs() * read.iter().map(|number| number.abs()).sum::<f64>();
    let most = (size * unit).max(sum.abs() * 2.0_f64.powi(-8));
    logits[SHOWN..].iter().all(|logit| (f64::from(*logit) - sum).abs() <= most)
}

#[cfg(test)]
mod tests {
    use bundle::arithmetic::head;
    use half::f16;

    use super::*;

    const WIDTH: usize = 576;

    /// Logits of a framework that rounds what it multiplies like this, and the logits.
    fn logits(tokens: &[u32], round: impl Fn(&[Vec<f64>]) -> Vec<Vec<f64>>, out: fn(f64) -> f32) -> Vec<f32> {
        let exact: Vec<Vec<f64>> = tokens.iter().map(|&token| normalised(token, WIDTH)).collect();
        let heads: Vec<Vec<f32>> = (0..VOCABULARY).map(|row| head(row, WIDTH)).collect();
        let product = |row: &[f64], weights: &[f32]| -> f64 {
            row.iter().zip(weights).map(|(number, weight)| number * f64::from(*weight)).sum()
        };
        round(&exact).iter().flat_map(|row| heads.iter().map(|head| out(product(row, head)))).collect()
    }

    fn each(round: fn(f64) -> f64) -> impl Fn(&[Vec<f64>]) -> Vec<Vec<f64>> {
        move |rows| rows.iter().map(|row| row.iter().map(|&number| round(number)).collect()).collect()
    }

    #[test]
    fn every_arithmetic_is_told_at_every_number_of_rows_also_where_logits_have_16_bits() {
        let float = |number: f64| f64::from(number as f32);
        let brain = |number: f64| f64::from(bf16::from_f64(number));
        let half = |number: f64| f64::from(f16::from_f64(number));
        let outputs: [fn(f64) -> f32; 2] = [|sum| sum as f32, |sum| bf16::from_f64(sum).to_f32()];
        for rows in ROWS {
            let tokens: Vec<u32> = (3..3 + rows as u32).collect();
            let told = |logits: Vec<f32>| observed(&tokens, WIDTH, &logits).map(|told| told.multiplied);
            assert_eq!(told(logits(&tokens, each(float), outputs[0])), Some(Multiplied::F32), "{rows}");
            assert_eq!(told(logits(&tokens, each(half), outputs[0])), Some(Multiplied::Bits11), "{rows}");
            for out in outputs {
                assert_eq!(told(logits(&tokens, each(brain), out)), Some(Multiplied::Bf16), "{rows}");
                for kind in [32, 64, 128, 256, 0].map(Multiplied::Int8) {
                    for most in LARGEST {
                        let stepped = logits(&tokens, |exact| steps(exact, exact, kind, most), out);
                        assert_eq!(told(stepped), Some(kind), "{rows}");
                    }
                }
            }
            let shared = if rows == 1 { Multiplied::Int8(0) } else { Multiplied::Int8Shared };
            let of_all =
                logits(&tokens, |exact| steps(exact, exact, Multiplied::Int8Shared, 127.0), outputs[0]);
            assert_eq!(told(of_all), Some(shared), "{rows}");
        }
    }

    #[test]
    fn sums_in_less_than_f32_are_told() {
        let tokens = [7, 8];
        let exact = each(|number| f64::from(number as f32));
        let mut found = logits(&tokens, &exact, |sum| sum as f32);
        assert!(observed(&tokens, WIDTH, &found).unwrap().adds_in_f32);
        // As if the running sum had been rounded to bf16.
        found[SHOWN] += 0.05 * found[SHOWN].abs().max(1.0);
        assert!(!observed(&tokens, WIDTH, &found).unwrap().adds_in_f32);
    }

    #[test]
    fn what_is_not_recognised_has_no_name() {
        let tokens = [1, 2, 3];
        let noisy = each(|number| number * (1.0 + 0.3 * (number * 77.0).sin()));
        assert_eq!(observed(&tokens, WIDTH, &logits(&tokens, noisy, |sum| sum as f32)), None);
        assert_eq!(observed(&tokens, WIDTH, &[0.0; 3 * VOCABULARY]), None);
        assert_eq!(observed(&tokens, WIDTH, &[f32::NAN; 3 * VOCABULARY]), None);
        assert_eq!(observed(&tokens, WIDTH, &[1.0; VOCABULARY]), None);
    }
}
