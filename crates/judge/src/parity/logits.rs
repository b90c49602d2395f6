//! Logits, and arithmetic on their rows.

use sha2::{Digest, Sha256};

/// Logits of one case, `[batch, positions, vocabulary]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    pub batch: usize,
    pub positions: usize,
    pub vocabulary: usize,
    pub values: Vec<f32>,
}

impl Logits {
    /// The logits of one position.
    pub fn row(&self, sequence: usize, position: usize) -> &[f32] {
        let at = (sequence * self.positions + position) * self.vocabulary;
        &self.values[at..at + self.vocabulary]
    }
}

impl Logits {
    /// The logits of one sequence, `[positions, vocabulary]`.
    pub fn values_of(&self, sequence: usize) -> &[f32] {
        let size = self.positions * self.vocabulary;
        &self.values[sequence * size..(sequence + 1) * size]
    }
}

/// The sha256 of the numbers of all cases, in hexadecimal digits.
pub(crate) fn digest(cases: &[Logits]) -> String {
    let mut hasher = Sha256::new();
    for row in cases.iter().flat_map(|case| case.values.chunks(case.vocabulary.max(1))) {
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    bundle::hexadecimal(&hasher.finalize())
}

/// log Σ exp(x) of a row of logits, in f64, without overflow.
pub fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + row.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}

/// Σ p · (log p − log q) over softmaxes of two rows of logits, in f64.
pub fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
    let (of_p, of_q) = (log_sum_exp(p), log_sum_exp(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let log_p = f64::from(p) - of_p;
        log_p.exp() * (log_p - (f64::from(q) - of_q))
    });
    // Rounding can make the sum slightly negative, although it never is.
    terms.sum::<f64>().max(0.0)
}

/// Whether a token is the reference's choice or tied with it.
pub fn is_choice(reference: &[f32], token: usize, tie: f32) -> bool {
    let best = reference[argmax(reference)];
    reference.get(token).is_some_and(|&logit| best - logit <= tie)
}

/// The indices of the largest values, the largest first.
pub fn most_likely(row: &[f32], count: usize) -> Vec<u32> {
    let mut largest: Vec<u32> = Vec::with_capacity(count + 1);
    for (index, value) in row.iter().enumerate() {
        let place = largest.partition_point(|&other| row[other as usize] >= *value);
        if place < count {
            largest.insert(place, index as u32);
            largest.truncate(count);
        }
    }
    largest
}

/// The index of the largest value; the first one of several.
pub fn argmax(row: &[f32]) -> usize {
    let best = row.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (index, &value)| {
        if value > best.1 { (index, value) } else { best }
    });
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_likely_come_first() {
        assert_eq!(most_likely(&[1.0, 4.0, 2.0, 4.0, 3.0], 3), [1, 3, 4]);
        assert_eq!(most_likely(&[1.0, 2.0], 3), [1, 0]);
    }

    #[test]
    fn kl_is_zero_for_equal_and_known_for_simple_distributions() {
        assert_eq!(kl_divergence(&[1.0, 2.0], &[3.0, 4.0]), 0.0);
        // p = (1/2, 1/2), q = (1/4, 3/4): ½·ln 2 + ½·ln(2/3)
        let kl = kl_divergence(&[0.0, 0.0], &[0.0, 3f32.ln()]);
        let expected = 0.5 * 2f64.ln() + 0.5 * (2.0 / 3.0f64).ln();
        assert!((kl - expected).abs() < 1e-7);
    }
}
