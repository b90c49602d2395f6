//! Processes with the noise of the mock, on a machine without a clock.

use engine_mock::Noise;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::figures::{Figures, METRICS, PROMPT};
use crate::study::seed_of;
use crate::uneven::{Sky, Uneven};

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
    sky: Option<Sky>,
    /// Rounds so far, and the most there may be.
    rounds: usize,
    most: usize,
    random: ChaCha8Rng,
}

impl<'a> Processes<'a> {
    pub(crate) fn new(
        decode: &'a [f64],
        noise: Noise,
        order: Order,
        uneven: Option<Uneven>,
        most: usize,
        seed: u64,
    ) -> Self {
        // Its own random numbers, so that it does not depend on the processes.
        let sky = uneven.map(|uneven| Sky::new(uneven, decode.len(), most, seed_of(seed, 0)));
        Self { decode, noise, order, sky, rounds: 0, most, random: ChaCha8Rng::seed_from_u64(seed) }
    }

    pub(crate) fn round(&mut self, order: &[usize]) -> Vec<Figures> {
        let contenders = self.decode.len();
        let mut figures = vec![[0.0; METRICS.len()]; contenders];
        let factors = self.sky.as_mut().map_or(vec![1.0; contenders], |sky| sky.round(order));
        for (position, &contender) in order.iter().enumerate() {
            let started = match self.order {
                Order::Balanced => self.rounds * contenders + position,
                Order::OneByOne => contender * self.most + self.rounds,
            };
            let started = started as f64 / (self.most * contenders) as f64;
            figures[contender] = self.process(contender, factors[contender], started);
        }
        self.rounds += 1;
        figures
    }

    /// The figures of one process that takes `factor` times as long as usual; `started` at this share of the longest run.
    fn process(&mut self, contender: usize, factor: f64, started: f64) -> Figures {
        let (noise, random) = (self.noise, &mut self.random);
        let load = factor * noise.of_process(started, random).factor();
        let cold = factor * noise.of_process(started, random).factor();
        let decode = noise.of_process(started, random);
        let factor = factor * self.decode[contender];
        let first = factor * decode.of_step(0, random);
        let steps = (1..=STEPS).map(|step| factor * decode.of_step(step, random));
        let latency = steps.sum::<f64>() / STEPS as f64;
        [load, cold, latency.recip(), first, PROMPT * first + (1.0 - PROMPT) * latency]
    }
}
