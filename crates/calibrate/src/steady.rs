//! Series of iterations with a known course.

use engine_mock::Noise;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use statistics::steady::{SteadyState, classify};

use crate::page::{Limit, Table};
use crate::study::{Options, Share, repeat, seed_of};

/// Iterations of a series.
const ITERATIONS: usize = 120;
/// 2 % between iterations, and one in a hundred three times as long.
const NOISE: Noise = Noise {
    process: 0.02,
    step: 0.02,
    bimodal: 0.0,
    bimodal_factor: 1.0,
    spike_share: 0.01,
    spike: 3.0,
    drift: 0.0,
    ramp: 1.0,
    ramp_steps: 0,
};

/// The course of a series without noise: a ramp at its start, and a level that changes once.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    ramp: (f64, usize),
    /// From which iteration, to which level.
    step: (usize, f64),
}

/// Courses, with their names and their true classes.
pub const COURSES: [(&str, Course, SteadyState); 5] = [
    ("level throughout", Course { ramp: (1.0, 0), step: (0, 1.0) }, SteadyState::Flat),
    (
        "first iterations 1.5x, falling over 30",
        Course { ramp: (1.5, 30), step: (0, 1.0) },
        SteadyState::WarmUp,
    ),
    ("20 % faster from iteration 40", Course { ramp: (1.0, 0), step: (40, 0.8) }, SteadyState::WarmUp),
    ("10 % slower from iteration 40", Course { ramp: (1.0, 0), step: (40, 1.1) }, SteadyState::Slowdown),
    (
        "10 % slower from iteration 100",
        Course { ramp: (1.0, 0), step: (100, 1.1) },
        SteadyState::NoSteadyState,
    ),
];

impl Course {
    /// Durations of iterations with the noise of the mock.
    pub fn series(self, seed: u64) -> Vec<f64> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let noise = Noise { ramp: self.ramp.0, ramp_steps: self.ramp.1, ..NOISE };
        let process = noise.of_process(0.0, &mut random);
        let level = |index| if index >= self.step.0 { self.step.1 } else { 1.0 };
        (0..ITERATIONS).map(|index| level(index) * process.of_step(index + 1, &mut random)).collect()
    }
}

pub(crate) fn table(options: &Options) -> Table {
    let mut table = Table::new(
        "Steady state",
        "Series of 120 iterations of one process with 2 % noise, one in a hundred three times as long; how \
         often they are classified as what they are.",
        &["course", "is", "classified so"],
    );
    for (index, (name, course, state)) in (0..).zip(COURSES) {
        let found = repeat(options.comparisons, seed_of(options.seed, index), |seed| {
            classify(&course.series(seed)).map(|classification| classification.state)
        });
        let word = match state {
            SteadyState::Flat => "flat",
            SteadyState::WarmUp => "warm-up",
            SteadyState::Slowdown => "slowdown",
            SteadyState::NoSteadyState => "no steady state",
        };
        let right = Share::count(&found, |found| *found == Some(state));
        table.row([name.into(), word.into()], right, Limit::AtLeast(0.95));
    }
    table
}
