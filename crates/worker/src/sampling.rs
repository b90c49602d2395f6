//! Drawing tokens, once for all engines, on the same stream of random numbers.
//!
//! 1. Logits are divided by the temperature (Ackley, Hinton & Sejnowski 1985) and, of the `top_k` largest
//!    or of all, turned into probabilities by softmax, in f64.
//! 2. With `top_p`, the fewest most likely tokens remain that have this probability together (the nucleus of
//!    Holtzman and others 2020). `top_k` is applied first (Fan, Lewis & Dauphin 2018).
//! 3. One uniform number picks the token by the inverse of the cumulative distribution over the rest,
//!    the most likely first, equals by id. In this order the steps of that function are where the
//!    probability is, so that noise in the logits rarely changes the token.
//!
//! All of it is arithmetic that is the same on every machine, the exponential included.

pub(crate) mod candidates;

use protocol::Sampling;
use rand::distr::OpenClosed01;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::ServeError;
use crate::logits::maximum;
use candidates::{Candidates, Softmax};

/// Whether these numbers make sense.
pub(crate) fn check(sampling: &Sampling) -> Result<(), ServeError> {
    let Sampling { temperature, top_k, top_p, .. } = *sampling;
    if !(temperature > 0.0 && temperature.is_finite()) {
        return Err(ServeError::Job(format!(
            "a temperature of {temperature} draws nothing: give one above 0, or decode greedily"
        )));
    }
    if top_k == Some(0) {
        return Err(ServeError::Job("a top_k of 0 leaves no token to draw: give 1 or more".into()));
    }
    match top_p {
        Some(share) if !(share > 0.0 && share <= 1.0) => {
            Err(ServeError::Job(format!("top_p is {share}: give a share above 0, up to 1")))
        }
        _ => Ok(()),
    }
}

/// Draws tokens. Its buffers are reused.
pub(crate) struct Sampler {
    top_k: Option<usize>,
    top_p: Option<f64>,
    inverse_temperature: f64,
    random: ChaCha8Rng,
    candidates: Candidates,
}

impl Sampler {
    /// The caller has used [`check`].
    pub(crate) fn new(sampling: &Sampling, vocabulary: usize) -> Sampler {
        Sampler {
            top_k: sampling.top_k.filter(|&count| count < vocabulary),
            top_p: sampling.top_p.filter(|&share| share < 1.0).map(f64::from),
            inverse_temperature: 1.0 / f64::from(sampling.temperature),
            random: ChaCha8Rng::seed_from_u64(sampling.seed),
            candidates: Candidates::new(vocabulary),
        }
    }

    /// Restarts the random numbers of a case, which are the same in every iteration: each case has its own
    /// stream of the seed.
    pub(crate) fn begin(&mut self, case: usize) {
        self.random.set_stream(case as u64);
        self.random.set_word_pos(0);
    }

    /// Draws a token. Takes one random number, for any logits. A NaN is never drawn. `None` if the largest
    /// logit is not finite, because there is no distribution then.
    pub(crate) fn draw(&mut self, logits: &[f32]) -> Option<u32> {
        // Above 0: cumulative mass must reach this share of the whole, so that at least one token is always
        // necessary.
        let uniform: f64 = self.random.sample(OpenClosed01);
        let largest = maximum(logits);
        if !largest.is_finite() {
            return None;
        }
        let softmax = Softmax { largest: largest.into(), inverse_temperature: self.inverse_temperature };
        let candidates = &mut self.candidates;
        let mut mass = match self.top_k {
            Some(count) => {
                candidates.keep_largest(logits, count);
                candidates.mass(softmax)
            }
            None => {
                let mass = softmax.mass(logits);
                candidates.gather(logits, softmax, self.top_p.unwrap_or(uniform) * mass);
                mass
            }
        };
        if let Some(share) = self.top_p {
            mass = candidates.keep_mass(softmax, share * mass);
        }
        candidates.at_mass(softmax, uniform * mass).map(|(token, _)| token)
    }
}

#[cfg(test)]
#[path = "sampling/tests.rs"]
mod tests;
