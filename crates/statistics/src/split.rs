//! Whether one ratio describes every round of a pair. It does not where the ratio depends on the state of the
//! machine, has two levels, changed while the comparison ran, or differs from prompt to prompt. The ratios at both
//! ends then replace the one figure, and a verdict has to hold at both.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use crate::descriptive::slope;
use crate::descriptive::student_upper_tail;
use crate::descriptive::{mean, variance};
use crate::limits::MIN_ROUNDS;

/// Simulated series of normal noise that a statistic is compared with.
const SIMULATED: usize = 9_999;
/// Fewest rounds before and after a change.
const BESIDE_A_CHANGE: usize = 2;
/// Rounds with which a single round at another level no longer prevents a verdict.
const ROUNDS_FOR_ONE: usize = 15;

/// Two ratios that one figure would hide.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Split {
    pub cause: Cause,
    /// The ratios a/b at both ends. By state: when the others were slowest, and when they were fastest; by levels and by
    /// prompt the lower first; by time before and after.
    pub ratios: (f64, f64),
    /// p of "one ratio describes all rounds".
    pub p: f64,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Cause {
    /// The ratio follows the speed of the other contenders.
    State,
    /// The rounds form two groups, of these sizes.
    Levels { rounds: (usize, usize) },
    /// The ratio changed; this many rounds were before and after.
    Time { rounds: (usize, usize) },
    /// It differs between these prompts.
    Prompt { prompts: (usize, usize) },
}

impl Split {
    /// Whether the two ratios favour different contenders, or one of them none.
    pub fn is_mixed(&self) -> bool {
        (self.ratios.0 - 1.0) * (self.ratios.1 - 1.0) <= 0.0
    }

    /// Whether it prevents the verdict *different*. A single round at another level does so only until there are 15.
    pub(crate) fn forbids_difference(&self) -> bool {
        let is_rare = match self.cause {
            Cause::Levels { rounds: (low, high) } => low.min(high) == 1 && low + high >= ROUNDS_FOR_ONE,
            _ => false,
        };
        self.is_mixed() && !is_rare
    }

    /// Whether both ratios are within the margin.
    pub(crate) fn is_within(&self, margin: f64) -> bool {
        [self.ratios.0, self.ratios.1].iter().all(|ratio| ratio.ln().abs() < margin.ln_1p())
    }

    /// The same for b/a.
    pub(crate) fn inverted(self) -> Split {
        let (first, second) = (1.0 / self.ratios.0, 1.0 / self.ratios.1);
        match self.cause {
            Cause::State => Split { ratios: (first, second), ..self },
            Cause::Time { .. } => Split { ratios: (first, second), ..self },
            Cause::Levels { rounds: (low, high) } => {
                Split { cause: Cause::Levels { rounds: (high, low) }, ratios: (second, first), ..self }
            }
            Cause::Prompt { prompts: (low, high) } => {
                Split { cause: Cause::Prompt { prompts: (high, low) }, ratios: (second, first), ..self }
            }
        }
    }
}

/// The splits of a pair's log ratios that chance would show with a probability below `level`, each. `states`: the state
/// of each of these rounds, if it is known; `prompts`: the log ratios of each prompt in each round, `None` in a round
/// without one.
pub(crate) fn splits(
    log_ratios: &[f64],
    states: Option<&[f64]>,
    prompts: &[Vec<Option<f64>>],
    level: f64,
) -> Vec<Split> {
    if log_ratios.len() < MIN_ROUNDS {
        return Vec::new();
    }
    let by_state = states.and_then(|states| by_state(log_ratios, states));
    let all = [by_state, by_level(log_ratios), by_time(log_ratios), by_prompt(prompts)];
    all.into_iter().flatten().filter(|split| split.p < level).collect()
}

/// The ends of the line through the log ratios over the state.
fn by_state(log_ratios: &[f64], states: &[f64]) -> Option<Split> {
    let line = slope(states, log_ratios, 0.05)?;
    let slowest = states.iter().copied().fold(f64::INFINITY, f64::min);
    let fastest = states.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(Split { cause: Cause::State, ratios: (line.at(slowest).exp(), line.at(fastest).exp()), p: line.p })
}

/// The two groups of the sorted log ratios that are least likely to be one.
fn by_level(log_ratios: &[f64]) -> Option<Split> {
    let mut sorted = log_ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let null = known(&LEVELS, sorted.len(), Levels::simulate);
    let (at, distance) = null.farthest(&distances(&sorted, 1)?)?;
    let ratios = (mean(&sorted[..at]).exp(), mean(&sorted[at..]).exp());
    let cause = Cause::Levels { rounds: (at, sorted.len() - at) };
    Some(Split { cause, ratios, p: share_beyond(&null.most, distance) })
}

/// The log ratios before and after the moment that separates them best.
fn by_time(log_ratios: &[f64]) -> Option<Split> {
    let (at, statistic) = farthest(distances(log_ratios, BESIDE_A_CHANGE)?)?;
    let ratios = (mean(&log_ratios[..at]).exp(), mean(&log_ratios[at..]).exp());
    let cause = Cause::Time { rounds: (at, log_ratios.len() - at) };
    let null = known(&CHANGES, log_ratios.len(), simulate_changes);
    Some(Split { cause, ratios, p: share_beyond(&null, statistic) })
}

/// The two prompts that differ most by a paired t test over rounds; p is multiplied by the number of pairs of prompts
/// (Bonferroni).
fn by_prompt(prompts: &[Vec<Option<f64>>]) -> Option<Split> {
    let pairs = prompts.len() * prompts.len().saturating_sub(1) / 2;
    let mut found: Option<Split> = None;
    for one in 0..prompts.len() {
        for other in one + 1..prompts.len() {
            let both = prompts[one].iter().zip(&prompts[other]);
            let (x, y): (Vec<f64>, Vec<f64>) = both.filter_map(|(x, y)| Some(((*x)?, (*y)?))).unzip();
            if x.len() < MIN_ROUNDS {
                continue;
            }
            let differences: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x - y).collect();
            let centre = mean(&differences);
            let error = (variance(&differences, centre) / differences.len() as f64).sqrt();
            if error <= 1e-13 {
                continue;
            }
            let p = 2.0 * student_upper_tail((centre / error).abs(), (differences.len() - 1) as f64);
            let p = (p * pairs as f64).min(1.0);
            if found.is_none_or(|found| p < found.p) {
                let (low, high) =
                    if centre < 0.0 { ((one, &x), (other, &y)) } else { ((other, &y), (one, &x)) };
                let ratios = (mean(low.1).exp(), mean(high.1).exp());
                found = Some(Split { cause: Cause::Prompt { prompts: (low.0, high.0) }, ratios, p });
            }
        }
    }
    found
}

/// For each place where a series can be divided so that each part has `least` values: the place, and how far the means of
/// the parts are from each other, as the logarithm of the two-sample t statistic with a pooled variance: of sorted values a
/// test for clusters (Engelman & Hartigan 1969), in order of time one for a shift (Hawkins 1977). `None` for a series
/// without noise.
fn distances(x: &[f64], least: usize) -> Option<Vec<(usize, f64)>> {
    let (count, centre) = (x.len(), mean(x));
    let total: f64 = x.iter().map(|x| (x - centre).powi(2)).sum();
    // A spread from rounding alone is none.
    if total <= 1e-24 * count as f64 {
        return None;
    }
    let (mut sum, mut found) = (0.0, Vec::new());
    for at in 1..=count - least {
        sum += x[at - 1] - centre;
        if at < least {
            continue;
        }
        // The squares between the two parts, of all squares about the mean.
        let between = sum * sum * count as f64 / (at * (count - at)) as f64;
        let within = (total - between).max(f64::MIN_POSITIVE);
        let squared = between * (count - 2) as f64 / within;
        found.push((at, 0.5 * squared.max(f64::MIN_POSITIVE).ln()));
    }
    Some(found)
}

fn farthest(distances: Vec<(usize, f64)>) -> Option<(usize, f64)> {
    distances.into_iter().max_by(|(_, one), (_, other)| one.total_cmp(other))
}

/// The distances of sorted normal noise. One odd value is much nearer to the others than one half of the values to the
/// other half, so each place is compared with its own distances: standardised, and the largest counts (as in the
/// simultaneous tests of Westfall & Young 1993).
struct Levels {
    /// Mean and standard deviation of the distance at each place.
    usual: Vec<(f64, f64)>,
    /// The largest standardised distance of each series, sorted.
    most: Vec<f64>,
}

impl Levels {
    fn simulate(count: usize) -> Levels {
        let series = noise(count).filter_map(|mut x| {
            x.sort_by(f64::total_cmp);
            distances(&x, 1)
        });
        let all: Vec<Vec<(usize, f64)>> = series.collect();
        let of_place = |place: usize| {
            // With its mirror image: which contender is called `a` makes no difference.
            let both = [place, count - 2 - place];
            let distances: Vec<f64> =
                both.iter().flat_map(|&place| all.iter().map(move |distances| distances[place].1)).collect();
            let centre = mean(&distances);
            (centre, variance(&distances, centre).sqrt())
        };
        let mut levels = Levels { usual: (0..count - 1).map(of_place).collect(), most: Vec::new() };
        levels.most = all.iter().filter_map(|distances| Some(levels.farthest(distances)?.1)).collect();
        levels.most.sort_by(f64::total_cmp);
        levels
    }

    /// The place with the largest standardised distance.
    fn farthest(&self, distances: &[(usize, f64)]) -> Option<(usize, f64)> {
        let standardised = distances.iter().zip(&self.usual);
        farthest(
            standardised
                .map(|((at, distance), (usual, spread))| (*at, (distance - usual) / spread))
                .collect(),
        )
    }
}

/// The largest distance of each series of normal noise in its order, sorted.
fn simulate_changes(count: usize) -> Vec<f64> {
    let largest = |x: Vec<f64>| Some(farthest(distances(&x, BESIDE_A_CHANGE)?)?.1);
    let mut found: Vec<f64> = noise(count).filter_map(largest).collect();
    found.sort_by(f64::total_cmp);
    found
}

/// Series of independent normal noise.
fn noise(count: usize) -> impl Iterator<Item = Vec<f64>> {
    let mut random = ChaCha8Rng::seed_from_u64(count as u64);
    (0..SIMULATED).map(move |_| (0..count).map(|_| StandardNormal.sample(&mut random)).collect())
}

/// p of a statistic by simulated ones, sorted, counting the observed one (Phipson & Smyth 2010).
fn share_beyond(simulated: &[f64], statistic: f64) -> f64 {
    let below = simulated.partition_point(|&simulated| simulated < statistic);
    (1 + simulated.len() - below) as f64 / (1 + simulated.len()) as f64
}

/// Distributions on noise, by the number of rounds: they depend on nothing else, and are simulated once.
type Known<T> = Mutex<BTreeMap<usize, Arc<T>>>;
static LEVELS: Known<Levels> = Mutex::new(BTreeMap::new());
static CHANGES: Known<Vec<f64>> = Mutex::new(BTreeMap::new());

fn known<T>(all: &Known<T>, count: usize, simulate: fn(usize) -> T) -> Arc<T> {
    let known = all.lock().unwrap_or_else(PoisonError::into_inner).get(&count).cloned();
    known.unwrap_or_else(|| {
        let simulated = Arc::new(simulate(count));
        all.lock().unwrap_or_else(PoisonError::into_inner).insert(count, Arc::clone(&simulated));
        simulated
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOISE: [f64; 10] = [0.3, -1.1, 0.6, 1.4, -0.4, -0.9, 0.2, 0.8, -0.7, -0.1];

    fn found(x: &[f64], states: Option<&[f64]>) -> Vec<Split> {
        splits(x, states, &[], 0.003)
    }

    #[test]
    fn the_statistic_agrees_with_a_worked_example() {
        // Means 1 and 4, squares within 2 + 2, t = 3/√(4/4·(1/3 + 1/3)) = 3.674.
        let all = distances(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 1).unwrap();
        assert_eq!(all.len(), 5);
        let (at, distance) = farthest(all).unwrap();
        assert!(at == 3 && (distance.exp() - 3.674_234_6).abs() < 1e-6, "{at} {distance}");
        assert_eq!(distances(&[0.5; 6], 1), None);
    }

    #[test]
    fn noise_is_not_split() {
        let states: Vec<f64> = (0..10).map(|i| f64::from(i * 7 % 10)).collect();
        assert_eq!(found(&NOISE.map(|x| x / 50.0), Some(&states)), []);
    }

    #[test]
    fn two_levels_are_found_and_forbid_a_verdict_that_holds_at_one_alone() {
        // Three of ten rounds are 17 % above the others.
        let x: Vec<f64> = NOISE
            .iter()
            .enumerate()
            .map(|(i, x)| x / 100.0 - 0.03 + if i % 4 == 1 { 0.17 } else { 0.0 })
            .collect();
        let [split] = found(&x, None)[..] else { panic!("{:?}", found(&x, None)) };
        assert_eq!(split.cause, Cause::Levels { rounds: (7, 3) });
        assert!(split.is_mixed() && split.forbids_difference() && !split.is_within(0.02));
        let turned = split.inverted();
        assert_eq!(turned.cause, Cause::Levels { rounds: (3, 7) });
        assert!(turned.ratios.0 < turned.ratios.1);
        // One round of fifteen does not.
        let one: Vec<f64> =
            (0..15).map(|i| NOISE[i % 10] / 100.0 - 0.03 + if i == 4 { 0.5 } else { 0.0 }).collect();
        let rare = found(&one, None);
        assert!(!rare.is_empty() && rare.iter().all(|split| !split.forbids_difference()), "{rare:?}");
        assert!(found(&one[..10], None).iter().any(Split::forbids_difference));
    }

    #[test]
    fn a_change_is_found_where_it_happened() {
        let x: Vec<f64> =
            NOISE.iter().enumerate().map(|(i, x)| x / 100.0 + if i < 6 { 0.04 } else { -0.04 }).collect();
        let change =
            found(&x, None).into_iter().find(|split| matches!(split.cause, Cause::Time { .. })).unwrap();
        assert_eq!(change.cause, Cause::Time { rounds: (6, 4) });
        assert!(change.ratios.0 > 1.0 && change.ratios.1 < 1.0);
    }

    #[test]
    fn a_ratio_that_follows_the_state_has_two_ends() {
        let states: Vec<f64> = (0..10).map(|i| f64::from(i % 5) / 10.0).collect();
        let x: Vec<f64> = states.iter().zip(NOISE).map(|(state, x)| 0.2 * state - 0.01 + x / 500.0).collect();
        let of_state =
            found(&x, Some(&states)).into_iter().find(|split| split.cause == Cause::State).unwrap();
        assert!((of_state.ratios.0 - (-0.01_f64).exp()).abs() < 0.005, "{of_state:?}");
        assert!((of_state.ratios.1 - 0.07_f64.exp()).abs() < 0.005, "{of_state:?}");
    }

    #[test]
    fn prompts_that_differ_are_named() {
        let of = |shift: f64| -> Vec<Option<f64>> { NOISE.iter().map(|x| Some(x / 100.0 + shift)).collect() };
        let mut other = of(0.2);
        other[3] = other[3].map(|x| x + 0.01);
        let prompts = [of(0.0), other, of(0.001)];
        let found = splits(&NOISE.map(|x| x / 100.0), None, &prompts, 0.003);
        assert_eq!(found[0].cause, Cause::Prompt { prompts: (0, 1) });
    }

    #[test]
    fn chance_splits_as_often_as_its_level_says() {
        let mut random = ChaCha8Rng::seed_from_u64(9);
        let mut count = 0;
        for _ in 0..2_000 {
            let x: Vec<f64> = (0..8).map(|_| StandardNormal.sample(&mut random)).collect();
            count += splits(&x, None, &[], 0.05).len();
        }
        // Two kinds of split at 5 %: 200, with a standard deviation of about 14.
        assert!((140..260).contains(&count), "{count}");
    }
}
