//! Processes with the noise of the mock, on a machine without a clock.

use engine_mock::Noise;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::figures::{Figures, METRICS, PROMPT, memory};

/// Decode steps of a process.
const STEPS: usize = 64;

/// The order of processes within the whole comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The driver's.
    Balanced,
    /// All rounds of one contender precede all rounds of the next. The calibration must detect the effect of
    /// drift on that.
    OneByOne,
}

/// The processes of one comparison.
pub(crate) struct Processes<'a> {
    decode: &'a [f64],
    noise: Noise,
    order: Order,
    /// Rounds so far, and the most there may be.
    rounds: usize,
    most: usize,
    random: ChaCha8Rng,
}

impl<'a> Processes<'a> {
    pub(crate) fn new(decode: &'a [f64], noise: Noise, order: Order, most: usize, seed: u64) -> Self {
        Self { decode, noise, order, rounds: 0, most, random: ChaCha8Rng::seed_from_u64(seed) }
    }

    pub(crate) fn round(&mut self, order: &[usize]) -> Vec<Figures> {
        let contenders = self.decode.len();
        let mut figures = vec![[0.0; METRICS.len()]; contenders];
        for (position, &contender) in order.iter().enumerate() {
            let started = match self.order {
                Order::Balanced => self.rounds * contenders + position,
                Order::OneByOne => contender * self.most + self.rounds,
            };
            figures[contender] = self.process(contender, started as f64 / (self.most * contenders) as f64);
        }
        self.rounds += 1;
        figures
    }

    /// The figures of one process; `started` at this share of the longest run.
    fn process(&mut self, contender: usize, started: f64) -> Figures {
        let (noise, random) = (self.noise, &mut self.random);
        let load = noise.of_process(started, random).factor();
        let cold = noise.of_process(started, random).factor();
        let memory = memory(random);
        let decode = noise.of_process(started, random);
        let first = self.decode[contender] * decode.of_step(0, random);
        let steps = (1..=STEPS).map(|step| self.decode[contender] * decode.of_step(step, random));
        let latency = steps.sum::<f64>() / STEPS as f64;
        [load, cold, latency.recip(), memory, first, PROMPT * first + (1.0 - PROMPT) * latency]
    }
}
