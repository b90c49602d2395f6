//! Logits, arithmetic on their rows, and sums over the positions of two computations of the same thing.

use sha2::{Digest, Sha256};

use crate::facts::agreement::TextScore;

/// Logits of one case, `[batch, positions, vocabulary]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    pub batch: usize,
    pub positions: usize,
    pub vocabulary: usize,
    pub values: Vec<f32>,
}

/// Whether all logits of all cases are one number.
pub(super) fn is_uniform(cases: &[Logits]) -> bool {
    let mut all = cases.iter().flat_map(|case| &case.values);
    all.next().is_some_and(|first| all.all(|logit| logit == first))
}

impl Logits {
    pub fn row(&self, sequence: usize, position: usize) -> &[f32] {
        let at = (sequence * self.positions + position) * self.vocabulary;
        &self.values[at..at + self.vocabulary]
    }

    /// The logits of one sequence, `[positions, vocabulary]`.
    pub fn values_of(&self, sequence: usize) -> &[f32] {
        let size = self.positions * self.vocabulary;
        &self.values[sequence * size..(sequence + 1) * size]
    }
}

/// The sha256 of the numbers of all cases, in hexadecimal digits.
pub(super) fn digest(cases: &[Logits]) -> String {
    let mut hasher = Sha256::new();
    for row in cases.iter().flat_map(|case| case.values.chunks(case.vocabulary.max(1))) {
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    bundle::hexadecimal(&hasher.finalize())
}

/// log Σ exp(x) of a row of logits, in f64, without overflow.
fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + row.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}

/// The logarithms of a row's softmax.
pub(super) fn log_probabilities(row: &[f32]) -> impl Iterator<Item = f32> {
    let sum = log_sum_exp(row);
    row.iter().map(move |&logit| (f64::from(logit) - sum) as f32)
}

/// Σ p · (log p − log q) over softmaxes of two rows of logits, in f64.
fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
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

// Sums over the positions of two computations of the same thing.

#[derive(Default)]
pub(super) struct Sums {
    pub(super) positions: usize,
    numbers: usize,
    pub(super) max_abs: f64,
    squares: f64,
    kl: f64,
    choices: usize,
    pub(super) largest: f32,
    pub(super) not_finite: usize,
}

impl Sums {
    /// Over all positions of cases of the same shapes.
    pub(super) fn over(reference: &[Logits], ours: &[Logits], tie: f32) -> Sums {
        let mut sums = Sums::default();
        for (theirs, ours) in reference.iter().zip(ours) {
            for sequence in 0..theirs.batch {
                for position in 0..theirs.positions {
                    sums.add(theirs.row(sequence, position), ours.row(sequence, position), tie);
                }
            }
        }
        sums
    }

    /// Root of the mean squared difference of numbers.
    pub(super) fn rmse(&self) -> f64 {
        (self.squares / self.numbers.max(1) as f64).sqrt()
    }

    /// Nats per position.
    pub(super) fn mean_kl(&self) -> f64 {
        self.kl / self.positions.max(1) as f64
    }

    /// Share of positions that agree on the most likely token.
    pub(super) fn top1(&self) -> f64 {
        self.choices as f64 / self.positions.max(1) as f64
    }

    fn add(&mut self, reference: &[f32], ours: &[f32], tie: f32) {
        self.positions += 1;
        self.numbers += reference.len();
        self.not_finite += ours.iter().filter(|value| !value.is_finite()).count();
        for (theirs, ours) in reference.iter().zip(ours) {
            let difference = f64::from(ours - theirs);
            self.max_abs = self.max_abs.max(difference.abs());
            self.squares += difference * difference;
            self.largest = self.largest.max(theirs.abs());
        }
        self.kl += kl_divergence(reference, ours);
        self.choices += usize::from(is_choice(reference, argmax(ours), tie));
    }
}

// Scores how well a model predicts a text, and the effect of an engine or a precision on it.

#[derive(Debug, Default)]
pub struct TextSums {
    predicted: usize,
    nll: f64,
    /// Number of positions that were compared with a reference.
    compared: usize,
    kl: f64,
    choices: usize,
}

impl TextSums {
    /// Adds a window: the logits `[1, n, vocabulary]` of its `n` tokens, compared with those of a reference. Position
    /// `i` predicts token `i + 1`; the token after the last one is unknown.
    pub fn add(&mut self, tokens: &[u32], logits: &Logits, reference: Option<&Logits>) -> Result<(), String> {
        let shape = |logits: &Logits| (logits.batch, logits.positions, logits.vocabulary);
        if (logits.batch, logits.positions) != (1, tokens.len()) {
            return Err("its logits do not have the shape of the text".into());
        }
        if let Some(reference) = reference.filter(|reference| shape(reference) != shape(logits)) {
            let (ours, theirs) = (shape(logits), shape(reference));
            return Err(format!("its logits have shape {ours:?}, the reference's {theirs:?}"));
        }
        for (position, &next) in tokens.iter().enumerate().skip(1).map(|(i, next)| (i - 1, next)) {
            let row = logits.row(0, position);
            let logit = row.get(next as usize).ok_or("a token of the text is outside its logits")?;
            self.predicted += 1;
            self.nll += log_sum_exp(row) - f64::from(*logit);
            if let Some(reference) = reference {
                let theirs = reference.row(0, position);
                self.compared += 1;
                self.kl += kl_divergence(theirs, row);
                self.choices += usize::from(argmax(theirs) == argmax(row));
            }
        }
        Ok(())
    }

    /// The score; `Err` if there was nothing to predict, or if logits were not finite.
    pub fn score(&self) -> Result<TextScore, String> {
        if self.predicted == 0 {
            return Err("the text is too short to predict anything".into());
        }
        let nll = self.nll / self.predicted as f64;
        if !nll.is_finite() {
            return Err("its logits are not finite".into());
        }
        let mean = |sum: f64| (self.compared > 0).then(|| sum / self.compared as f64);
        Ok(TextScore {
            predicted: self.predicted,
            nll,
            perplexity: nll.exp(),
            mean_kl: mean(self.kl),
            top1: mean(self.choices as f64),
        })
    }
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

    /// Rows of logarithms of these probabilities, with an offset that softmax removes.
    fn logits(rows: &[[f32; 2]]) -> Logits {
        let values = rows.iter().flatten().map(|p| p.ln() + 5.0).collect();
        Logits { batch: 1, positions: rows.len(), vocabulary: 2, values }
    }

    fn score(tokens: &[u32], rows: &[[f32; 2]], reference: Option<&[[f32; 2]]>) -> Result<TextScore, String> {
        let mut sums = TextSums::default();
        sums.add(tokens, &logits(rows), reference.map(logits).as_ref())?;
        sums.score()
    }

    #[test]
    fn a_position_predicts_the_next_token_and_the_last_none() {
        // Token 1 with 1/4, then token 0 with 1/8: nll = (ln 4 + ln 8) / 2, perplexity = √32.
        let found = score(&[0, 1, 0], &[[0.75, 0.25], [0.125, 0.875], [0.5, 0.5]], None).unwrap();
        assert_eq!((found.predicted, found.mean_kl, found.top1), (2, None, None));
        assert!((found.nll - 2.5 * 2f64.ln()).abs() < 1e-6, "{found:?}");
        assert!((found.perplexity - 32f64.sqrt()).abs() < 1e-5, "{found:?}");
    }

    #[test]
    fn complete_ignorance_has_the_perplexity_of_the_vocabulary() {
        let found = score(&[1, 1, 0], &[[0.5; 2]; 3], None).unwrap();
        assert!((found.perplexity - 2.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn divergence_and_choices_are_means_over_predicted_positions() {
        // First position: p = (1/2, 1/2), q = (1/4, 3/4): ½·ln(4/3); second: equal.
        let reference = [[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]];
        let found = score(&[0, 0, 0], &[[0.25, 0.75], [0.9, 0.1], [0.8, 0.2]], Some(&reference)).unwrap();
        assert!((found.mean_kl.unwrap() - 0.25 * (4.0 / 3.0f64).ln()).abs() < 1e-6, "{found:?}");
        assert_eq!(found.top1, Some(0.5));
    }

    #[test]
    fn windows_weigh_by_their_tokens() {
        let mut sums = TextSums::default();
        sums.add(&[0, 0], &logits(&[[0.5, 0.5], [1.0, 1.0]]), None).unwrap();
        sums.add(&[0, 0, 0], &logits(&[[0.125, 0.875]; 3]), None).unwrap();
        let found = sums.score().unwrap();
        assert!((found.nll - 7.0 / 3.0 * 2f64.ln()).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn what_cannot_be_scored_is_said() {
        assert!(score(&[0], &[[0.5; 2]], None).unwrap_err().contains("too short"));
        assert!(score(&[0, 1], &[[0.5; 2]], None).unwrap_err().contains("shape"));
        assert!(score(&[0, 1], &[[0.5; 2]; 2], Some(&[[0.5; 2]])).unwrap_err().contains("shape"));
        assert!(score(&[0, 2], &[[0.5; 2]; 2], None).unwrap_err().contains("outside"));
        assert!(score(&[0, 1], &[[f32::NAN; 2]; 2], None).unwrap_err().contains("finite"));
    }
}
