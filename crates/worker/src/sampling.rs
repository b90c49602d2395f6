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

#[cfg(test)]
#[path = "sampling/tests.rs"]
mod tests;

use protocol::Sampling;
use rand::distr::OpenClosed01;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::ServeError;
use crate::logits::maximum;

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

// The tokens that are drawn among, found without sorting the vocabulary.

/// How far below the largest, in units of the temperature, tokens are looked for, as long as those found
/// have too little mass. Of a language model's distribution the first mostly holds enough: some tens or
/// hundreds of tokens of 49,152.
const DEPTHS: [f64; 5] = [8.0, 12.0, 16.0, 24.0, f64::INFINITY];

/// A token and its logit in one number, smaller the more likely, equals by id: numbers are selected among
/// several times faster than structures by a comparison of two fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate(u64);

impl Candidate {
    fn new(id: u32, logit: f32) -> Candidate {
        // Of −0 and 0 neither is the larger.
        let bits = (logit + 0.0).to_bits();
        // Bits of floats order as integers, negative ones the other way round.
        let rising = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        Candidate(u64::from(!rising) << 32 | u64::from(id))
    }

    fn id(self) -> u32 {
        self.0 as u32
    }

    fn logit(self) -> f32 {
        let rising = !(self.0 >> 32) as u32;
        f32::from_bits(if rising >> 31 == 1 { rising & !(1 << 31) } else { !rising })
    }
}

/// Tokens that may be drawn, with a buffer that is reused for each row of logits.
pub(crate) struct Candidates(Vec<Candidate>);

impl Candidates {
    pub(crate) fn new(vocabulary: usize) -> Candidates {
        Candidates(Vec::with_capacity(vocabulary))
    }

    /// Makes the most likely tokens candidates, so many that their mass reaches `target`, or all.
    pub(crate) fn gather(&mut self, logits: &[f32], softmax: Softmax, target: f64) {
        for depth in DEPTHS {
            let threshold = (softmax.largest - depth / softmax.inverse_temperature) as f32;
            self.0.clear();
            for_each_above(logits, threshold, |id, logit| {
                self.0.push(Candidate::new(id, logit));
                threshold
            });
            if self.mass(softmax) >= target {
                break;
            }
        }
    }

    /// Makes the `count` most likely tokens candidates.
    pub(crate) fn keep_largest(&mut self, logits: &[f32], count: usize) {
        let candidates = &mut self.0;
        // Room to spare, so that not every find is weighed against the others at once.
        let room = (2 * count).max(256).min(logits.len());
        let mut threshold = f32::NEG_INFINITY;
        candidates.clear();
        for_each_above(logits, threshold, |id, logit| {
            candidates.push(Candidate::new(id, logit));
            if candidates.len() > room {
                candidates.select_nth_unstable(count - 1);
                candidates.truncate(count);
                // A later token loses to an equal one.
                threshold = candidates[count - 1].logit();
            }
            threshold
        });
        self.keep_count(count);
    }

    /// Keeps the fewest most likely ones with a mass of `target` together; returns their mass.
    pub(crate) fn keep_mass(&mut self, softmax: Softmax, target: f64) -> f64 {
        let (last, reached) = reach(&mut self.0, softmax, target);
        self.0.truncate(last + 1);
        reached
    }

    /// Keeps the `count` most likely ones.
    pub(crate) fn keep_count(&mut self, count: usize) {
        if self.0.len() > count {
            self.0.select_nth_unstable(count - 1);
            self.0.truncate(count);
        }
    }

    /// The token at which masses, the most likely first, add up to `target`.
    pub(crate) fn at_mass(&mut self, softmax: Softmax, target: f64) -> Option<(u32, f32)> {
        let (index, _) = reach(&mut self.0, softmax, target);
        self.0.get(index).map(|candidate| (candidate.id(), candidate.logit()))
    }

    pub(crate) fn mass(&self, softmax: Softmax) -> f64 {
        softmax.mass_of(&self.0)
    }

    /// Logits in no order.
    pub(crate) fn logits(&self) -> impl Iterator<Item = f32> {
        self.0.iter().map(|candidate| candidate.logit())
    }
}

/// Turns logits into probabilities relative to the most likely token's.
#[derive(Clone, Copy)]
pub(crate) struct Softmax {
    pub(crate) largest: f64,
    pub(crate) inverse_temperature: f64,
}

impl Softmax {
    /// A token's probability relative to the most likely one's.
    pub(crate) fn weight(self, logit: f32) -> f64 {
        exp((f64::from(logit) - self.largest) * self.inverse_temperature)
    }

    pub(crate) fn mass(self, logits: &[f32]) -> f64 {
        sum(logits, |&logit| self.weight(logit))
    }

    fn mass_of(self, candidates: &[Candidate]) -> f64 {
        sum(candidates, |candidate| self.weight(candidate.logit()))
    }
}

/// In lanes, for the compiler to compute at once.
fn sum<T>(items: &[T], weight: impl Fn(&T) -> f64) -> f64 {
    let mut lanes = [0.0; 8];
    let (chunks, rest) = items.as_chunks::<8>();
    for chunk in chunks {
        for (lane, item) in lanes.iter_mut().zip(chunk) {
            *lane += weight(item);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(weight).sum::<f64>()
}

/// Reorders the candidates so that the first `index + 1` are the fewest most likely ones with a mass of
/// `target` together, the least likely of them last; returns `index` and their mass. Keeps all if their sum
/// falls short.
///
/// A quickselect by mass, linear in the number of candidates: sorting 49,152 takes milliseconds.
fn reach(candidates: &mut [Candidate], softmax: Softmax, target: f64) -> (usize, f64) {
    let (mut low, mut high, mut before) = (0, candidates.len(), 0.0);
    while high - low > 1 {
        let middle = low.midpoint(high);
        candidates[low..high].select_nth_unstable(middle - low);
        let mass = softmax.mass_of(&candidates[low..middle]);
        if before + mass >= target {
            high = middle;
        } else {
            before += mass;
            low = middle;
        }
    }
    (low, before + candidates.get(low).map_or(0.0, |candidate| softmax.weight(candidate.logit())))
}

/// Calls `found` (id, logit) with every logit above the threshold; it returns the new threshold.
fn for_each_above(logits: &[f32], mut threshold: f32, mut found: impl FnMut(u32, f32) -> f32) {
    const BLOCK: usize = 32;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        // Few blocks contain any, and a whole block is checked in a few vector instructions.
        if !block.iter().fold(false, |any, &logit| any | (logit > threshold)) {
            continue;
        }
        for (offset, &logit) in block.iter().enumerate() {
            if logit > threshold {
                threshold = found((index * BLOCK + offset) as u32, logit);
            }
        }
    }
}

/// eˣ for x ≤ 0, to four units in the last place; of less than −700, and of NaN, e⁻⁷⁰⁰.
///
/// Reduction to half of ln 2 in two parts (Cody & Waite 1980) and a Taylor polynomial. It has no branch, so
/// that several numbers are computed at once: 49,152 in 57 µs, while the standard library takes 222 µs on the
/// same machine (AVX-512). The standard library's last digits also differ between systems.
fn exp(x: f64) -> f64 {
    const SHIFT: f64 = 6_755_399_441_055_744.0; // 1.5 · 2⁵²: a number added to it is rounded to an integer
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let x = if x > -700.0 { x } else { -700.0 };
    let shifted = x * std::f64::consts::LOG2_E + SHIFT;
    let power = shifted - SHIFT;
    let rest = (x - power * LN2_HIGH) - power * LN2_LOW;
    let polynomial = INVERSE_FACTORIALS.iter().fold(0.0, |sum, term| sum * rest + term);
    // The integer is in the lowest bits; moved to the exponent's place it is a power of two.
    polynomial * f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52))
}

/// 1/13! … 1/0!
const INVERSE_FACTORIALS: [f64; 14] = {
    let mut terms = [1.0; 14];
    let (mut n, mut factorial) = (1, 1.0);
    while n < 14 {
        factorial *= n as f64;
        terms[13 - n] = 1.0 / factorial;
        n += 1;
    }
    terms
};
