//! The figures of a simulated process.

use engine_mock::Noise;
use judge::Metric;
use rand::Rng;

/// The metrics of the table.
pub const METRICS: [Metric; 5] = Metric::TABLE;
/// The one that decides whether rounds go on.
pub const DECIDING: usize = 3;
/// σ of peak memory between processes.
const MEMORY_NOISE: f64 = 0.001;

/// The figures of one process, in the order of [`METRICS`].
pub type Figures = [f64; METRICS.len()];

/// The peak memory of a process, which nothing but chance has an influence on.
pub(crate) fn memory(random: &mut impl Rng) -> f64 {
    Noise { process: MEMORY_NOISE, ..Noise::default() }.of_process(0.0, random).factor()
}
