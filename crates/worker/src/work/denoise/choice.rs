//! The choice of a token for one masked position, and its confidence.
//!
//! 1. Logits are divided by the temperature; at 0 they are taken as they are.
//! 2. The fewest most likely tokens remain that reach `top_p` together, and of these the `top_k` most likely.
//! 3. One of them is drawn by the inverse of the cumulative distribution, the most likely first and equals by id; at
//!    temperature 0 it is the most likely, the lowest id of equals.
//! 4. Its confidence is, by the algorithm, its probability, the most likely one's lead over the next, or minus the
//!    entropy, Σ p · ln(p + 10⁻¹⁰).

use protocol::{Algorithm, Denoise};

use crate::logits::{argmax, maximum};
use crate::sampling::candidates::{Candidates, Softmax};

/// Keeps the logarithm of a probability of 0 finite, as Dream's sampler does.
const EPSILON: f64 = 1e-10;

/// A token for a position, and how sure it is: the larger, the surer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub(super) token: u32,
    pub(super) confidence: f64,
}

pub(super) struct Chooser {
    algorithm: Algorithm,
    /// `None` if the most likely token is chosen.
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<usize>,
    candidates: Candidates,
}

impl Chooser {
    pub(super) fn new(task: &Denoise, vocabulary: usize) -> Chooser {
        Chooser {
            algorithm: task.algorithm,
            temperature: (task.temperature > 0.0).then_some(f64::from(task.temperature)),
            top_p: task.top_p.filter(|&share| share < 1.0).map(f64::from),
            top_k: task.top_k.filter(|&count| count < vocabulary),
            candidates: Candidates::new(vocabulary),
        }
    }

    /// Whether [`Self::choose`] has use for a random number.
    pub(super) fn draws(&self) -> bool {
        self.temperature.is_some()
    }

    /// Chooses for a position with these logits. If they have no distribution, takes the first of the
    /// largest, with a confidence below all others.
    pub(super) fn choose(&mut self, logits: &[f32], uniform: f64) -> Choice {
        let largest = maximum(logits);
        if !largest.is_finite() {
            return Choice { token: argmax(logits), confidence: f64::NEG_INFINITY };
        }
        let inverse_temperature = self.temperature.map_or(1.0, |temperature| 1.0 / temperature);
        let softmax = Softmax { largest: largest.into(), inverse_temperature };
        let is_filtered = self.top_p.is_some() || self.top_k.is_some();
        let mut mass = softmax.mass(logits);
        if is_filtered {
            mass = self.filter(logits, softmax, mass);
        }
        let (token, logit) = match self.temperature {
            None => (argmax(logits), largest),
            Some(_) => {
                if !is_filtered {
                    self.candidates.gather(logits, softmax, uniform * mass);
                }
                self.candidates.at_mass(softmax, uniform * mass).unwrap_or((argmax(logits), largest))
            }
        };
        let probability = |logit: f32| softmax.weight(logit) / mass;
        let ln_mass = mass.ln();
        let ln_of = |logit: f32| (f64::from(logit) - softmax.largest) * inverse_temperature - ln_mass;
        let confidence = match self.algorithm {
            Algorithm::Origin | Algorithm::MaskgitPlus => probability(logit),
            Algorithm::TopkMargin if is_filtered => margin(self.candidates.logits(), probability),
            Algorithm::TopkMargin => margin(logits.iter().copied(), probability),
            Algorithm::Entropy if is_filtered => {
                self.candidates.logits().map(|logit| term(probability(logit), ln_of(logit))).sum()
            }
            Algorithm::Entropy => logits.iter().map(|&logit| term(probability(logit), ln_of(logit))).sum(),
        };
        Choice { token, confidence }
    }

    /// Keeps the candidates that may be drawn; returns their mass.
    fn filter(&mut self, logits: &[f32], softmax: Softmax, mass: f64) -> f64 {
        let candidates = &mut self.candidates;
        match (self.top_p, self.top_k) {
            (Some(share), top_k) => {
                candidates.gather(logits, softmax, share * mass);
                let reached = candidates.keep_mass(softmax, share * mass);
                match top_k {
                    None => reached,
                    Some(count) => {
                        candidates.keep_count(count);
                        candidates.mass(softmax)
                    }
                }
            }
            (None, Some(count)) => {
                candidates.keep_largest(logits, count);
                candidates.mass(softmax)
            }
            (None, None) => mass,
        }
    }
}

/// The most likely one's probability less the next one's; of a single one, its own.
fn margin(logits: impl Iterator<Item = f32>, probability: impl Fn(f32) -> f64) -> f64 {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for logit in logits {
        if logit > first {
            (first, second) = (logit, first);
        } else if logit > second {
            second = logit;
        }
    }
    let next = if second.is_finite() { probability(second) } else { 0.0 };
    probability(first) - next
}

/// p · ln(p + ε), given ln p, which is a logit less a constant. A logarithm of each of 150,000 tokens would take
/// milliseconds a position: where p and ε are far apart three terms of the series are exact to the last digit.
fn term(p: f64, ln_p: f64) -> f64 {
    const LN_EPSILON: f64 = -23.025_850_929_940_457;
    const FAR: f64 = 1e-5;
    let ratio = EPSILON / p;
    if ratio < FAR {
        p * (ln_p + ratio * (1.0 - ratio / 2.0 + ratio * ratio / 3.0))
    } else if ratio > 1.0 / FAR {
        let ratio = p / EPSILON;
        p * (LN_EPSILON + ratio * (1.0 - ratio / 2.0 + ratio * ratio / 3.0))
    } else {
        p * (p + EPSILON).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_that_of_plain_logarithms_near_and_far_from_epsilon() {
        for p in [1.0, 0.3, 1e-4, 1.1e-5, 0.9e-5, 1e-7, 1e-10, 1e-13, 1e-14, 1e-15, 1e-16, 1e-40] {
            let (ours, plain) = (term(p, p.ln()), p * (p + EPSILON).ln());
            assert!((ours - plain).abs() <= 1e-12 * plain.abs() + 1e-15, "p = {p}: {ours}, not {plain}");
        }
        assert_eq!(term(0.0, f64::NEG_INFINITY), 0.0);
    }
}
