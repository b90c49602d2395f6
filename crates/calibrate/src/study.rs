//! Many simulated comparisons, and shares of them.

use std::num::NonZero;
use std::thread;

/// How much is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Comparisons of each setting.
    pub comparisons: usize,
    pub seed: u64,
}

impl Options {
    /// The same with other seeds.
    pub(crate) fn fork(&self, index: u64) -> Self {
        Self { seed: seed_of(self.seed, index), ..*self }
    }
}

/// Calls `simulate` with a seed for each of `count` simulations, on all cores. The results are in the order
/// of the seeds.
pub fn repeat<T: Send>(count: usize, seed: u64, simulate: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let simulate = &simulate;
    let chunk = count.div_ceil(workers).max(1);
    thread::scope(|scope| {
        let start = |from: usize| {
            scope.spawn(move || {
                let of_chunk = from..(from + chunk).min(count);
                of_chunk.map(|index| simulate(seed_of(seed, index as u64))).collect::<Vec<T>>()
            })
        };
        let workers: Vec<_> = (0..count).step_by(chunk).map(start).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, Vec<T>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    })
}

/// Unrelated seeds from neighbouring ones: the finaliser of splitmix64 (Steele, Lea & Flood 2014).
pub fn seed_of(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// How often something came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub hits: usize,
    pub of: usize,
}

impl Share {
    /// The share of `outcomes` that `hit` is true of.
    pub fn count<T>(outcomes: &[T], hit: impl Fn(&T) -> bool) -> Self {
        Self { hits: outcomes.iter().filter(|outcome| hit(outcome)).count(), of: outcomes.len() }
    }

    pub fn value(self) -> f64 {
        self.hits as f64 / self.of.max(1) as f64
    }

    /// Bounds of the true share: the 95 % score interval (Wilson 1927).
    pub fn interval(self) -> (f64, f64) {
        const Z: f64 = 1.959_963_985;
        let (count, share) = (self.of.max(1) as f64, self.value());
        let shrink = 1.0 + Z * Z / count;
        let centre = (share + Z * Z / (2.0 * count)) / shrink;
        let reach = Z / shrink * (share * (1.0 - share) / count + (Z / (2.0 * count)).powi(2)).sqrt();
        ((centre - reach).max(0.0), (centre + reach).min(1.0))
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_their_seeds() {
        let seeds: Vec<u64> = (0..37).map(|index| seed_of(5, index)).collect();
        assert_eq!(repeat(37, 5, |seed| seed), seeds);
        assert!(repeat(0, 5, |seed| seed).is_empty());
    }

    #[test]
    fn wilsons_interval_agrees_with_a_worked_example() {
        // Newcombe 1998, table I: 81 of 263, and 0 of 20.
        let (low, high) = Share { hits: 81, of: 263 }.interval();
        assert!((low - 0.2553).abs() < 1e-4 && (high - 0.3662).abs() < 1e-4, "{low} {high}");
        let (low, high) = Share { hits: 0, of: 20 }.interval();
        assert!(low == 0.0 && (high - 0.1611).abs() < 1e-4, "{low} {high}");
    }
}
