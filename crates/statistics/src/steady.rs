//! Whether one process has reached a steady state, after Barrett, Bolz-Tereick, Killick, Mount & Tratt (2017,
//! "Virtual Machine Warmup Blows Hot and Cold"): outliers are removed, change points are found in mean and
//! variance, and the segments in between are compared with the end of the series.

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
    let kept = without(series);
    let values: Vec<f64> = kept.iter().map(|&index| series[index]).collect();
    let starts = segment_starts(&values);
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

// Outliers of a series, found by a moving window.

/// The window of the paper, in points, and the narrowest.
const WIDEST: usize = 200;

const NARROWEST: usize = 12;

/// Least half-width of the band, relative to the median: equal readings of a clock do not make the next one
/// an outlier.
const LEAST_BAND: f64 = 0.01;

/// Indices of the points that are no outliers. An outlier is outside median ± 3·(P₉₀ − P₁₀) of the window
/// around it (Barrett et al. 2017, after Tukey 1977). The paper's window is 200 points wide; shorter series
/// get a quarter of their length.
///
/// The paper keeps every point of the first half window, where warming up looks like an outlier. Here a point
/// is kept there if all points before it are outliers too: that is warming up; an isolated one is not.
fn without(series: &[f64]) -> Vec<usize> {
    let half = (series.len() / 4).clamp(NARROWEST, WIDEST) / 2;
    let mut kept = Vec::with_capacity(series.len());
    let mut window = Window::new(&series[..2 * half]);
    let mut warming_up = true;
    for (index, &value) in series.iter().enumerate() {
        if index > half && index + half <= series.len() {
            window.replace(series[index - half - 1], series[index + half - 1]);
        }
        let absurd = window.finds_absurd(value);
        warming_up &= absurd && index < half;
        if !absurd || warming_up || index == 0 {
            kept.push(index);
        }
    }
    kept
}

/// Points in ascending order.
struct Window(Vec<f64>);

impl Window {
    fn new(points: &[f64]) -> Self {
        let mut points = points.to_vec();
        points.sort_by(f64::total_cmp);
        Self(points)
    }

    fn replace(&mut self, old: f64, new: f64) {
        self.0.remove(self.0.partition_point(|&x| x < old));
        self.0.insert(self.0.partition_point(|&x| x < new), new);
    }

    fn finds_absurd(&self, value: f64) -> bool {
        let quantile = |share: f64| self.0[(share * (self.0.len() - 1) as f64).round() as usize];
        let (low, median, high) = (quantile(0.1), quantile(0.5), quantile(0.9));
        (value - median).abs() > (3.0 * (high - low)).max(LEAST_BAND * median)
    }
}

// Change points in mean and variance: PELT (Killick, Fearnhead & Eckley 2012).

/// Fewest points between change points: a variance needs two.
const SHORTEST_SEGMENT: usize = 2;

/// Penalty of a change point, in units of ln n (Barrett et al. 2017).
const PENALTY: f64 = 15.0;

/// Standard deviations below this share of the mean count as this: readings of a clock come in steps, and
/// equal ones must not look like infinite evidence.
const LEAST_DEVIATION: f64 = 1e-3;

/// Longer series are first segmented on a grid of so many places, then each change point is moved to where
/// it fits best. A series without a change prunes nothing, and would take quadratic time.
const PLACES: usize = 512;

/// First indices of the segments; the first is 0.
fn segment_starts(values: &[f64]) -> Vec<usize> {
    let costs = Costs::new(values);
    let mut starts = costs.optimal();
    costs.refine(&mut starts);
    starts
}

struct Costs {
    /// Sums of the first i values, and of their squares; centred on the mean, for precision.
    sums: Vec<(f64, f64)>,
    least_variance: f64,
    /// Distance of the places on the grid.
    step: usize,
}

impl Costs {
    fn new(values: &[f64]) -> Self {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let mut sums = vec![(0.0, 0.0)];
        let mut total = (0.0, 0.0);
        for value in values {
            let x = value - mean;
            total = (total.0 + x, total.1 + x * x);
            sums.push(total);
        }
        let step = values.len().div_ceil(PLACES).max(1);
        Self { sums, least_variance: (LEAST_DEVIATION * mean).powi(2), step }
    }

    fn len(&self) -> usize {
        self.sums.len() - 1
    }

    /// Twice the negative log-likelihood of a normal segment, but for a constant, at its best mean and its
    /// best permitted variance.
    fn segment(&self, start: usize, end: usize) -> f64 {
        let count = (end - start) as f64;
        let sum = self.sums[end].0 - self.sums[start].0;
        let squares = self.sums[end].1 - self.sums[start].1;
        let variance = (squares / count - (sum / count).powi(2)).max(0.0);
        let permitted = variance.max(self.least_variance);
        count * (permitted.ln() + variance / permitted)
    }

    /// Optimal segmentation on the grid.
    fn optimal(&self) -> Vec<usize> {
        let penalty = PENALTY * (self.len() as f64).ln();
        let places: Vec<usize> = (0..self.len()).step_by(self.step).chain([self.len()]).collect();
        // Of the series up to each place: least cost, and the start of its last segment.
        let mut best = vec![(f64::INFINITY, 0); places.len()];
        best[0] = (-penalty, 0);
        let mut candidates = vec![0];
        for end in 1..places.len() {
            let total = |start: usize| best[start].0 + self.segment(places[start], places[end]) + penalty;
            let allowed = candidates.iter().filter(|&&s| places[end] - places[s] >= SHORTEST_SEGMENT);
            let least = allowed.map(|&start| (total(start), start)).min_by(|x, y| x.0.total_cmp(&y.0));
            let Some(least) = least else { continue };
            // A start that is worse by the whole penalty now will never be better (their theorem 3.1).
            let (now, bound) = (places[end], least.0 + penalty);
            candidates.retain(|&s| now - places[s] < SHORTEST_SEGMENT || total(s) <= bound);
            best[end] = least;
            candidates.push(end);
        }
        let mut starts = Vec::new();
        let mut end = places.len() - 1;
        while end > 0 {
            end = best[end].1;
            starts.push(places[end]);
        }
        starts.reverse();
        starts
    }

    /// Moves each change point, by less than a step of the grid, to where it fits best.
    fn refine(&self, starts: &mut [usize]) {
        for index in 1..starts.len() {
            let (from, at) = (starts[index - 1], starts[index]);
            let to = starts.get(index + 1).copied().unwrap_or(self.len());
            let near = (at + 1).saturating_sub(self.step).max(from + SHORTEST_SEGMENT)
                ..(at + self.step).min((to + 1).saturating_sub(SHORTEST_SEGMENT));
            let cost = |at: &usize| self.segment(from, *at) + self.segment(*at, to);
            if let Some(better) = near.min_by(|x, y| cost(x).total_cmp(&cost(y))) {
                starts[index] = better;
            }
        }
    }
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
