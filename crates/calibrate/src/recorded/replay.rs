//! Rounds of recorded comparisons of one contender with itself, drawn at random.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Estimator, Half, recorded};
use crate::figures::Figures;

/// The figures of two processes by round.
type Rounds = &'static [[Figures; 2]];

/// The course of one comparison.
pub(crate) struct Replay<'a> {
    decode: &'a [f64],
    left: Vec<&'static [Figures; 2]>,
    all: Rounds,
    random: ChaCha8Rng,
}

impl<'a> Replay<'a> {
    /// Two contenders with request times multiplied by `decode`.
    pub(crate) fn new(decode: &'a [f64], estimator: Estimator, half: Half, seed: u64) -> Self {
        let (all, random) = (rounds(estimator, half), ChaCha8Rng::seed_from_u64(seed));
        Self { decode, left: Vec::new(), all, random }
    }

    /// The next round. No round is repeated before all have been used.
    pub(crate) fn round(&mut self) -> Vec<Figures> {
        if self.left.is_empty() {
            self.left = self.all.iter().collect();
            self.left.shuffle(&mut self.random);
        }
        let mut round = self.left.pop().map_or(Vec::new(), |round| round.to_vec());
        if self.random.random() {
            round.reverse();
        }
        for ([_, _, throughput, first, total], ratio) in round.iter_mut().zip(self.decode) {
            *throughput /= ratio;
            *first *= ratio;
            *total *= ratio;
        }
        round
    }
}

/// The rounds of one half, with their figures by an estimator, computed once.
fn rounds(estimator: Estimator, half: Half) -> Rounds {
    type Known = BTreeMap<String, Rounds>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    known.entry(format!("{estimator:?} {half:?}")).or_insert_with(|| {
        let of_one = recorded().iter().filter(|recording| recording.is_of_one()).enumerate();
        let halves =
            of_one.filter(|(index, _)| half.has(*index)).flat_map(|(_, recording)| &recording.rounds);
        let pairs = halves.filter_map(|round| <[Figures; 2]>::try_from(estimator.figures(round)).ok());
        Vec::leak(pairs.collect())
    })
}
