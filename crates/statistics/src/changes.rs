//! Where a series of runs changes.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::descriptive::median;

/// Fewest values on each side of a change.
const LEAST: usize = 3;

/// Random orders of a series, and the largest share of them that may look as changed as the series itself.
const ORDERS: usize = 999;

const LEVEL: f64 = 0.02;

/// Places from which on a series has other values, in order. A series has one if the mean ranks of both sides of some place
/// differ, relative to their spread, by more than at any place in 98 of 100 random orders (after Pettitt 1979, *A
/// non-parametric approach to the change-point problem*); the parts are then judged likewise (Scott & Knott 1974).
/// Ranks, because a single run on a busy machine may be far away.
///
/// Runs are taken as exchangeable. Where a machine is slow for many runs in a row, that is a change, too.
pub fn changes(values: &[f64], seed: u64) -> Vec<usize> {
    let mut found = Vec::new();
    let mut parts = vec![(0, values.len())];
    while let Some((from, to)) = parts.pop() {
        if let Some(place) = change(&values[from..to], seed) {
            found.push(from + place);
            parts.extend([(from, from + place), (from + place, to)]);
        }
    }
    found.sort_unstable();
    found
}

fn change(values: &[f64], seed: u64) -> Option<usize> {
    if values.len() < 2 * LEAST {
        return None;
    }
    let mut ranks = ranks(values);
    let observed = largest(&ranks);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut as_large = 1;
    for _ in 0..ORDERS {
        ranks.shuffle(&mut random);
        // Equal statistics differ by rounding.
        as_large += usize::from(largest(&ranks) >= observed * (1.0 - 1e-9));
    }
    let p = as_large as f64 / (ORDERS + 1) as f64;
    (p < LEVEL).then(|| nearest(values))
}

/// The place with the least distances of values from the medians of their sides: ranks tell that there is a change better
/// than where.
fn nearest(values: &[f64]) -> usize {
    let distances = |side: &[f64]| {
        let median = median(side).unwrap_or(0.0);
        side.iter().map(|value| (value - median).abs()).sum::<f64>()
    };
    let of = |place: usize| distances(&values[..place]) + distances(&values[place..]);
    let places = LEAST..=values.len() - LEAST;
    places.min_by(|&a, &b| of(a).total_cmp(&of(b))).unwrap_or(LEAST)
}

/// The largest of Student's t of both sides, over all places.
fn largest(ranks: &[f64]) -> f64 {
    let count = ranks.len() as f64;
    let (sum, squares) = ranks.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    let (mut before, mut best) = (0.0, 0.0f64);
    for (place, rank) in (1..).zip(ranks).take(ranks.len() - LEAST) {
        before += rank;
        let (m, n) = (place as f64, count - place as f64);
        let apart = (before / m - (sum - before) / n).abs();
        let within = squares - before * before / m - (sum - before).powi(2) / n;
        let t = apart / (within.max(1e-12) / (count - 2.0) * (1.0 / m + 1.0 / n)).sqrt();
        if place >= LEAST {
            best = best.max(t);
        }
    }
    best
}

/// Ranks from 1; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |value: &f64| values.iter().filter(|other| other.total_cmp(value).is_lt()).count();
    let equal = |value: &f64| values.iter().filter(|other| other.total_cmp(value).is_eq()).count();
    values.iter().map(|value| below(value) as f64 + (equal(value) as f64 + 1.0) / 2.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty runs that vary by 1 %, the last `after` of them by this much higher.
    fn series(after: usize, by: f64) -> Vec<f64> {
        let noise = |run: usize| 1.0 + 0.01 * ((run * 7 % 11) as f64 / 5.0 - 1.0);
        (0..20).map(|run| 100.0 * noise(run) * if run >= 20 - after { 1.0 + by } else { 1.0 }).collect()
    }

    #[test]
    fn a_change_is_found_where_it_is_and_none_where_there_is_none() {
        assert_eq!(changes(&series(8, 0.05), 1), [12]);
        assert_eq!(changes(&series(8, -0.05), 1), [12]);
        assert!(changes(&series(0, 0.0), 1).is_empty());
        assert!(changes(&[100.0; 20], 1).is_empty() && changes(&series(8, 0.05)[8..13], 1).is_empty());
    }

    #[test]
    fn two_changes_are_found_and_one_strange_run_is_none() {
        let mut twice = series(14, 0.05);
        twice.extend(series(20, 0.12));
        assert_eq!(changes(&twice, 1), [6, 20]);
        let mut strange = series(0, 0.0);
        strange[9] = 1.0;
        assert!(changes(&strange, 1).is_empty());
    }

    #[test]
    fn equal_values_share_a_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
    }
}
