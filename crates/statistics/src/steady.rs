//! Whether one process has reached a steady state, after Barrett, Bolz-Tereick, Killick, Mount & Tratt (2017,
//! "Virtual Machine Warmup Blows Hot and Cold"): outliers are removed, change points are found in mean and
//! variance, and the segments in between are compared with the end of the series.

mod outliers;
mod pelt;

use serde::{Deserialize, Serialize};

/// Shortest series that is judged.
pub const SHORTEST: usize = 12;
/// Segments are alike if their means differ by less than this share. The paper uses the variance or 1 ms,
/// whichever is more; iterations here differ by orders of magnitude, so this tolerance is relative.
pub const TOLERANCE: f64 = 0.02;

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum SteadyState {
    /// As fast at the start as at the end, within the tolerance.
    Flat,
    /// It ends in its fastest segment.
    WarmUp,
    /// It ends in a steady state that is slower than before.
    Slowdown,
    /// It still changed within the last quarter.
    NoSteadyState,
}

/// A stretch between change points: iterations `start..end`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    pub start: usize,
    pub end: usize,
    /// Without outliers.
    pub mean: f64,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Classification {
    pub state: SteadyState,
    /// They cover the series.
    pub segments: Vec<Segment>,
    /// The iteration with which the final steady stretch begins; 0 if flat, `None` if there is none.
    pub steady_from: Option<usize>,
}

/// Classifies the durations of one process's iterations, in any unit. `None` for a series too short to
/// judge, or with a duration that is not positive and finite.
pub fn classify(series: &[f64]) -> Option<Classification> {
    if series.len() < SHORTEST || !series.iter().all(|x| x.is_finite() && *x > 0.0) {
        return None;
    }
    let kept = outliers::without(series);
    let values: Vec<f64> = kept.iter().map(|&index| series[index]).collect();
    let starts = pelt::segment_starts(&values);
    let ends = starts[1..].iter().copied().chain([values.len()]);
    let segments: Vec<Segment> = starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| Segment {
            start: if start == 0 { 0 } else { kept[start] },
            end: kept.get(end).copied().unwrap_or(series.len()),
            mean: values[start..end].iter().sum::<f64>() / (end - start) as f64,
        })
        .collect();
    let last = segments[segments.len() - 1].mean;
    let alike = |segment: &Segment| (segment.mean / last - 1.0).abs() <= TOLERANCE;
    let changed = segments.iter().rposition(|segment| !alike(segment));
    let from = changed.map_or(0, |index| segments[index].end);
    let (state, steady_from) = if from == 0 {
        (SteadyState::Flat, Some(0))
    } else if from > series.len() - series.len() / 4 {
        (SteadyState::NoSteadyState, None)
    } else if segments.iter().all(|segment| alike(segment) || segment.mean > last) {
        (SteadyState::WarmUp, Some(from))
    } else {
        (SteadyState::Slowdown, Some(from))
    };
    Some(Classification { state, segments, steady_from })
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use rand_distr::{Distribution, LogNormal};

    use super::*;

    /// A level for each iteration, with log-normal noise of 1 %.
    fn noisy(seed: u64, levels: impl IntoIterator<Item = f64>) -> Vec<f64> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let noise = LogNormal::new(0.0, 0.01).unwrap();
        levels.into_iter().map(|level| level * noise.sample(&mut random)).collect()
    }

    fn level(count: usize, level: f64) -> impl Iterator<Item = f64> {
        std::iter::repeat_n(level, count)
    }

    fn state(series: &[f64]) -> SteadyState {
        classify(series).unwrap().state
    }

    #[test]
    fn noise_alone_is_flat() {
        for (seed, count) in [(1, 12), (2, 30), (3, 200), (4, 3000)] {
            let flat = classify(&noisy(seed, level(count, 2.0))).unwrap();
            assert_eq!((flat.state, flat.steady_from), (SteadyState::Flat, Some(0)), "{count} iterations");
            assert_eq!((flat.segments[0].start, flat.segments.last().unwrap().end), (0, count));
        }
        assert_eq!(state(&[3.0; 40]), SteadyState::Flat);
    }

    #[test]
    fn a_slow_start_is_warm_up_and_ends_where_it_ends() {
        for (slow, fast) in [(1, 30), (10, 40), (40, 400), (1000, 2000)] {
            let series = noisy(slow as u64, level(slow, 3.0).chain(level(fast, 2.0)));
            let found = classify(&series).unwrap();
            assert_eq!(found.state, SteadyState::WarmUp, "{slow} slow of {}", series.len());
            assert!(found.steady_from.unwrap().abs_diff(slow) <= 1, "{found:?}");
        }
    }

    #[test]
    fn a_ramp_is_warm_up() {
        let ramp = (0..20).map(|i| 4.0 - 0.1 * f64::from(i));
        let found = classify(&noisy(5, ramp.chain(level(60, 2.0)))).unwrap();
        assert_eq!(found.state, SteadyState::WarmUp);
        assert!((10..=25).contains(&found.steady_from.unwrap()), "{found:?}");
    }

    #[test]
    fn a_slower_end_is_slowdown() {
        let found = classify(&noisy(6, level(30, 2.0).chain(level(60, 2.3)))).unwrap();
        assert_eq!(found.state, SteadyState::Slowdown);
        assert!(found.steady_from.unwrap().abs_diff(30) <= 1, "{found:?}");
    }

    #[test]
    fn a_late_change_leaves_no_steady_state() {
        let found = classify(&noisy(7, level(70, 2.0).chain(level(12, 2.5)))).unwrap();
        assert_eq!((found.state, found.steady_from), (SteadyState::NoSteadyState, None));
    }

    #[test]
    fn a_change_within_the_tolerance_is_flat() {
        let found = classify(&noisy(8, level(200, 2.0).chain(level(200, 2.03)))).unwrap();
        assert_eq!((found.state, found.segments.len()), (SteadyState::Flat, 2));
    }

    #[test]
    fn outliers_change_nothing_wherever_they_are() {
        for at in [1, 3, 20, 41, 59] {
            let mut series = noisy(9, level(60, 2.0));
            series[at] = 9.0;
            assert_eq!(state(&series), SteadyState::Flat, "outlier at {at}");
        }
        let mut series = noisy(10, level(100, 3.0).chain(level(500, 2.0)));
        (13..600).step_by(37).for_each(|at| series[at] *= 4.0);
        let found = classify(&series).unwrap();
        assert_eq!(found.state, SteadyState::WarmUp);
        assert!(found.steady_from.unwrap().abs_diff(100) <= 2, "{found:?}");
    }

    #[test]
    fn noise_of_two_modes_is_flat() {
        for seed in 0..10 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let modes: Vec<f64> = (0..200).map(|_| if random.random_bool(0.3) { 2.4 } else { 2.0 }).collect();
            assert_eq!(state(&noisy(seed, modes)), SteadyState::Flat, "seed {seed}");
        }
    }

    #[test]
    fn what_cannot_be_judged_is_not() {
        assert_eq!(classify(&[1.0; SHORTEST - 1]), None);
        assert_eq!(classify(&[0.0; 20]), None);
        assert_eq!(classify(&[f64::NAN; 20]), None);
    }
}
