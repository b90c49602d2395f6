//! Scores how well a model predicts a text, and the effect of an engine or a precision on it.

use facts::text::TextScore;

use crate::parity::logits::{Logits, argmax, kl_divergence, log_sum_exp};

/// Sums over the windows of a text.
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
