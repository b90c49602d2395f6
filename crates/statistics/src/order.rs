//! The order in which contenders run.

use std::ops::RangeInclusive;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::descriptive::{mean, median, variance};

/// A balanced random order: rounds are grouped into Williams designs (Williams 1949): a square of as many rounds as
/// there are contenders, followed by its mirror if that number is odd. In each square every contender is in every place
/// once, so that drift within rounds affects all alike. In each design every other contender is directly before it
/// equally often, so that what one leaves behind does too. Rows of a square are shuffled and contenders relabelled at
/// random by the seed.
///
/// Yields the order of one round after another, without end.
#[derive(Debug, Clone)]
pub struct BalancedOrder {
    random: ChaCha8Rng,
    labels: Vec<usize>,
    /// Rows of the design still to come; those from the number of contenders on are of the mirror.
    rows: Vec<usize>,
}

impl BalancedOrder {
    /// Orders of the contenders `0..contenders`.
    pub fn new(contenders: usize, seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self { random, labels: (0..contenders).collect(), rows: Vec::new() }
    }
}

impl Iterator for BalancedOrder {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let contenders = self.labels.len();
        if self.rows.is_empty() {
            self.labels.shuffle(&mut self.random);
            self.rows.extend(0..contenders * squares(contenders));
            for square in self.rows.chunks_mut(contenders.max(1)) {
                square.shuffle(&mut self.random);
            }
        }
        let row = self.rows.pop().unwrap_or_default();
        // 0, 1, k−1, 2, k−2 …: each difference between neighbours occurs once, or with the mirror twice.
        let first = |place: usize| if place % 2 == 1 { place.div_ceil(2) } else { contenders - place / 2 };
        let mut order: Vec<usize> =
            (0..contenders).map(|place| self.labels[(first(place) + row) % contenders]).collect();
        if row >= contenders {
            order.reverse();
        }
        Some(order)
    }
}

/// Squares of a design.
fn squares(contenders: usize) -> usize {
    1 + contenders % 2
}

// How many requests each process of a round answers.
//
// A round pays once for its processes, and again for each block of requests. More blocks reduce only the
// variation within a process; for the variation between processes only more rounds help. The best number
// depends on their costs and variances alone, never on the difference between contenders.

/// How much figures vary: standard deviations on the log scale.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Components {
    /// From request to request of one process.
    pub within: f64,
    /// Between processes.
    pub between: f64,
}

/// Estimates the components from logarithms of figures by round, a value for each request: one contender's, or the log
/// ratios of a pair. Rounds may have different numbers of values; those without any are left out.
///
/// One-way analysis of variance with random effects (Searle, Casella & McCulloch 1992, *Variance Components*,
/// chapter 3): of N values in k rounds with nᵢ each, within² is the mean square within rounds, and between² =
/// (mean square between rounds − within²)/n₀ with n₀ = (N − Σnᵢ²/N)/(k − 1), or 0 where that is negative.
///
/// `None` with fewer than two rounds, without a round of two values, and with a value that is not finite.
pub fn components(rounds: &[Vec<f64>]) -> Option<Components> {
    let rounds: Vec<&[f64]> = rounds.iter().map(Vec::as_slice).filter(|round| !round.is_empty()).collect();
    let values = rounds.concat();
    if rounds.len() < 2 || values.len() == rounds.len() || !values.iter().all(|value| value.is_finite()) {
        return None;
    }
    let (count, centre) = (values.len() as f64, mean(&values));
    let (mut squares_within, mut squares_between, mut squared_sizes) = (0.0, 0.0, 0.0);
    for round in &rounds {
        let (size, level) = (round.len() as f64, mean(round));
        squares_within += variance(round, level) * (size - 1.0);
        squares_between += size * (level - centre).powi(2);
        squared_sizes += size * size;
    }
    let groups = (rounds.len() - 1) as f64;
    let within = squares_within / (count - rounds.len() as f64);
    let size = (count - squared_sizes / count) / groups;
    let between = ((squares_between / groups - within) / size).max(0.0);
    Some(Components { within: within.sqrt(), between: between.sqrt() })
}

/// The components assumed before anything is measured, and the weight of that assumption.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    pub components: Components,
    /// Degrees of freedom of the guess within rounds, and of the guess between them.
    pub worth: (usize, usize),
}

/// The components of all pairs together, pooled with the prior: the mean of the squares, each weighted by its
/// degrees of freedom. `pairs`: log ratios as `[pair][round][block]`. `fitted`: means subtracted from each
/// pair's values, other than the means of its rounds.
///
/// Pairs of the same contenders depend on each other, so that between rounds all pairs together count as one.
pub fn pooled(pairs: &[Vec<Vec<f64>>], fitted: usize, prior: &Prior) -> Components {
    let (mut squares, mut freedom) = (0.0, 0);
    let (mut between, mut groups) = (Vec::new(), 0);
    for rounds in pairs {
        let rounds: Vec<&Vec<f64>> = rounds.iter().filter(|round| !round.is_empty()).collect();
        for round in &rounds {
            squares += variance(round, mean(round)) * (round.len() as f64 - 1.0);
        }
        let count: usize = rounds.iter().map(|round| round.len()).sum();
        freedom += count.saturating_sub(rounds.len() + fitted);
        groups = groups.max(rounds.len().saturating_sub(1));
        let plain: Vec<Vec<f64>> = rounds.into_iter().cloned().collect();
        between.extend(components(&plain).map(|found| found.between.powi(2)));
    }
    let Prior { components: guess, worth } = prior;
    let pool = |square: f64, freedom: usize, guess: f64, worth: usize| {
        ((square * freedom as f64 + guess.powi(2) * worth as f64) / (freedom + worth) as f64).sqrt()
    };
    let (between, groups) = if between.is_empty() { (0.0, 0) } else { (mean(&between), groups) };
    Components {
        within: pool(squares / freedom.max(1) as f64, freedom, guess.within, worth.0),
        between: pool(between, groups, guess.between, worth.1),
    }
}

/// The time that a round takes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Seconds whatever the number of blocks: starts, loads, warm-ups, ends.
    pub process_s: f64,
    /// Seconds of each block.
    pub block_s: f64,
}

/// The number of blocks in a round that gives the narrowest interval for the time, among those of `range`
/// that are `step` apart.
///
/// A round of n blocks has the variance between² + within²/n and takes process_s + n·block_s seconds. The product of the
/// two is smallest near n = √((process_s/block_s)·(within²/between²)) (Kalibera & Jones 2013, *Rigorous benchmarking in
/// reasonable time*).
///
/// Fewest blocks if there is no variance within processes, or if processes cost nothing. Most blocks if there
/// is no variance between processes, or if blocks cost nothing. Fewest for a value that is negative or not
/// finite.
pub fn blocks(costs: &Costs, components: &Components, range: RangeInclusive<usize>, step: usize) -> usize {
    let (Costs { process_s, block_s }, Components { within, between }) = (*costs, *components);
    let least = *range.start();
    if [process_s, block_s, within, between].iter().any(|value| !value.is_finite() || *value < 0.0) {
        return least;
    }
    let effort = |count: &usize| {
        let count = *count as f64;
        (between.powi(2) + within.powi(2) / count) * (process_s + count * block_s)
    };
    // The first of several that are equally good.
    range.step_by(step.max(1)).min_by(|a, b| effort(a).total_cmp(&effort(b))).unwrap_or(least)
}

// The figure of a round for contenders that took turns, robust against a disturbance of one turn.

/// Share of whole requests that is left out at either end: of 8 blocks the middle two count, of 4 the middle
/// two.
pub const TRIMMED_REQUESTS: f64 = 0.375;

/// Share of slices that is left out at either end. Each request has ten or more, so that a small share
/// suffices to leave out disturbed ones. A larger share would leave out slow slices that the contender itself
/// causes: `docs/evidence/calibration.md` has widths of intervals and shifts of ratios, from recorded
/// comparisons.
pub const TRIMMED_SLICES: f64 = 0.125;

/// Logarithms of the contenders' figures in a round, from those of their turns: `[block][contender]`.
///
/// A block has a level, the median over its contenders: it includes everything that slowed the whole block. A
/// contender's effect is the mean of its distances from the levels, without this share of the lowest and of
/// the highest (the trimmed mean; Tukey 1962, *The Future of Data Analysis*): that leaves out the disturbance
/// of a single turn. Its figure is the mean level plus its effect, so that two contenders differ by their
/// effects. Machines with a bandwidth that drops to half for tenths of a second disturb single turns often,
/// and a plain mean is as unsteady as the worst of them (`docs/evidence/calibration.md`).
///
/// A figure outside the range of the contender's own turns is moved to the nearest of them: where half of its
/// turns are disturbed, level plus effect need not be a possible figure.
///
/// Empty without a block. Every block has all contenders.
pub fn of_turns(blocks: &[Vec<f64>], trimmed: f64) -> Vec<f64> {
    let Some(first) = blocks.first() else { return Vec::new() };
    let levels: Vec<f64> = blocks.iter().filter_map(|block| median(block)).collect();
    let level = mean(&levels);
    let effect = |contender: usize| {
        let distances = blocks.iter().zip(&levels).map(|(block, level)| block[contender] - level);
        trimmed_mean(&distances.collect::<Vec<_>>(), trimmed)
    };
    let within = |contender: usize| {
        let own = blocks.iter().map(|block| block[contender]);
        let (least, most) = own.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), turn| {
            (least.min(turn), most.max(turn))
        });
        (level + effect(contender)).max(least).min(most)
    };
    (0..first.len()).map(within).collect()
}

/// The mean without this share of the values at either end, rounded down. The share is below a half.
pub fn trimmed_mean(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = (share * sorted.len() as f64) as usize;
    mean(&sorted[cut..sorted.len() - cut])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_contender_has_every_place_once_in_a_square() {
        for contenders in 1..=7 {
            let rounds: Vec<_> = BalancedOrder::new(contenders, 7).take(6 * contenders).collect();
            for square in rounds.chunks(contenders) {
                for place in 0..contenders {
                    let taken: BTreeSet<_> = square.iter().map(|round| round[place]).collect();
                    assert_eq!(taken.len(), contenders);
                }
            }
        }
    }

    #[test]
    fn every_contender_comes_directly_after_every_other_equally_often() {
        for contenders in 2..=7 {
            let rounds: Vec<_> = BalancedOrder::new(contenders, 7).take(6 * contenders).collect();
            for design in rounds.chunks(squares(contenders) * contenders) {
                let mut pairs: Vec<&[usize]> = design.iter().flat_map(|round| round.windows(2)).collect();
                pairs.sort_unstable();
                let each: Vec<usize> = pairs.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
                assert_eq!(each, vec![squares(contenders); contenders * (contenders - 1)]);
            }
        }
    }

    #[test]
    fn the_seed_decides_and_orders_vary() {
        let orders = |seed| BalancedOrder::new(3, seed).take(60).collect::<Vec<_>>();
        assert_eq!(orders(1), orders(1));
        assert_ne!(orders(1), orders(2));
        assert_eq!(orders(1).into_iter().collect::<BTreeSet<_>>().len(), 6, "all orders of three occur");
    }

    #[test]
    fn nobody_has_an_order_too() {
        assert_eq!(BalancedOrder::new(0, 1).next(), Some(vec![]));
    }

    const COSTS: Costs = Costs { process_s: 9.0, block_s: 0.5 };

    const COMPONENTS: Components = Components { within: 0.02, between: 0.015 };

    fn found(rounds: &[Vec<f64>], within_squared: f64, between_squared: f64) {
        let found = components(rounds).unwrap();
        let close = |x: f64, squared: f64| (x * x - squared).abs() < 1e-12;
        assert!(close(found.within, within_squared) && close(found.between, between_squared), "{found:?}");
    }

    #[test]
    fn components_agree_with_worked_examples() {
        // Mean squares: (2 + 2)/2 within, 2·(2² + 2²)/1 between; (16 − 2)/2.
        found(&[vec![1.0, 3.0], vec![5.0, 7.0]], 2.0, 7.0);
        // Unequal sizes: 2/2 within, (3·1² + 1·3²)/1 between, n₀ = (4 − 10/4)/1; (12 − 1)/1.5.
        found(&[vec![1.0, 3.0, 2.0], vec![6.0], vec![]], 1.0, 22.0 / 3.0);
        // Means closer than chance would have them: no variance between.
        found(&[vec![1.0, 3.0], vec![3.0, 1.0]], 2.0, 0.0);
    }

    #[test]
    fn what_has_no_components_says_so() {
        assert_eq!(components(&[]), None);
        assert_eq!(components(&[vec![1.0, 2.0]]), None);
        assert_eq!(components(&[vec![1.0, 2.0], vec![]]), None);
        assert_eq!(components(&[vec![1.0], vec![2.0]]), None);
        assert_eq!(components(&[vec![1.0, f64::NAN], vec![2.0, 3.0]]), None);
    }

    #[test]
    fn components_are_pooled_with_a_guess_by_degrees_of_freedom() {
        let guess = Components { within: 3.0, between: 5.0 };
        let prior = Prior { components: guess, worth: (2, 3) };
        assert_eq!(pooled(&[], 0, &prior), guess);
        let close = |found: Components, within: f64, between: f64| {
            let is_close = |x: f64, squared: f64| (x * x - squared).abs() < 1e-12;
            assert!(is_close(found.within, within) && is_close(found.between, between), "{found:?}");
        };
        // One round of two pairs: squares 2 and 8 with a degree of freedom each.
        let round = [vec![vec![1.0, 3.0]], vec![vec![1.0, 5.0]]];
        close(pooled(&round, 0, &prior), (2.0 + 8.0 + 2.0 * 9.0) / 4.0, 25.0);
        // Two rounds: 2 + 2 within with 2 degrees of freedom, of which one is lost; 7 between with one.
        let rounds = [vec![vec![1.0, 3.0], vec![5.0, 7.0]]];
        close(pooled(&rounds, 0, &prior), (4.0 + 18.0) / 4.0, (7.0 + 75.0) / 4.0);
        close(pooled(&rounds, 1, &prior), (4.0 + 18.0) / 3.0, (7.0 + 75.0) / 4.0);
    }

    #[test]
    fn the_number_of_blocks_agrees_with_worked_examples() {
        // √(18·1.7778) = √32 = 5.66.
        assert_eq!(blocks(&COSTS, &COMPONENTS, 1..=100, 1), 6);
        // In steps of 4 from 2: 6; in steps of 8 from 1: 9.
        assert_eq!(
            (blocks(&COSTS, &COMPONENTS, 2..=100, 4), blocks(&COSTS, &COMPONENTS, 1..=100, 8)),
            (6, 9)
        );
        // Requests as expensive as all the rest, and as steady as processes: one of each.
        let even = Components { within: 0.01, between: 0.01 };
        assert_eq!(blocks(&Costs { process_s: 1.0, block_s: 1.0 }, &even, 1..=100, 1), 1);
        let within = |range| blocks(&COSTS, &COMPONENTS, range, 1);
        assert_eq!((within(8..=16), within(2..=4)), (8, 4));
    }

    #[test]
    fn extremes_ask_for_the_least_or_the_most() {
        let of = |within, between| blocks(&COSTS, &Components { within, between }, 2..=16, 1);
        assert_eq!((of(0.0, 0.015), of(0.02, 0.0), of(0.0, 0.0)), (2, 16, 2));
        assert_eq!((of(f64::NAN, 0.015), of(0.02, f64::NAN)), (2, 2));
        assert_eq!((of(f64::INFINITY, 0.015), of(0.02, f64::INFINITY)), (2, 2));
        let at = |process_s, block_s| blocks(&Costs { process_s, block_s }, &COMPONENTS, 2..=16, 1);
        assert_eq!((at(0.0, 0.5), at(9.0, 0.0), at(0.0, 0.0)), (2, 16, 2));
        assert_eq!((at(f64::NAN, 0.5), at(9.0, f64::NAN), at(f64::INFINITY, f64::INFINITY)), (2, 2, 2));
        assert_eq!((at(-1.0, 0.5), at(9.0, -1.0)), (2, 2));
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }

    #[test]
    fn what_slows_a_whole_block_slows_nobody_and_what_slows_one_turn_does_not_count() {
        let quiet = vec![vec![0.0, 0.1, 0.3]; 8];
        let mut disturbed = quiet.clone();
        disturbed[2].iter_mut().for_each(|turn| *turn += 0.7);
        disturbed[5][0] += 0.7;
        for blocks in [quiet, disturbed] {
            let figures = of_turns(&blocks, TRIMMED_REQUESTS);
            close(figures[1] - figures[0], 0.1);
            close(figures[2] - figures[0], 0.3);
        }
    }

    #[test]
    fn two_contenders_differ_by_the_trimmed_mean_of_their_differences() {
        let blocks = [[0.0, 0.1], [0.5, 0.8], [0.2, 0.4], [0.9, 0.2]].map(|block| block.to_vec());
        let figures = of_turns(&blocks, TRIMMED_REQUESTS);
        close(figures[1] - figures[0], (0.1 + 0.2) / 2.0);
        close((figures[1] + figures[0]) / 2.0, (0.05 + 0.65 + 0.3 + 0.55) / 4.0);
    }

    #[test]
    fn a_figure_is_one_that_a_turn_can_have_had() {
        // The slow turns of the first contender are in the fast blocks.
        let blocks =
            vec![vec![-1.0, -1.0, -1.0], vec![-1.0, 1.0, 1.0], vec![-1.0, 1.0, 1.0], vec![-1.0, -1.0, -1.0]];
        let figures = of_turns(&blocks, TRIMMED_REQUESTS);
        close(figures[0], -1.0);
    }

    #[test]
    fn reciprocal_figures_have_reciprocal_results() {
        let blocks = vec![vec![0.3, -0.1, 0.2], vec![1.0, 0.4, 0.1], vec![0.1, 0.2, 0.3]];
        let inverse: Vec<Vec<f64>> =
            blocks.iter().map(|block| block.iter().map(|log| -log).collect()).collect();
        let of = |blocks: &[Vec<f64>]| of_turns(blocks, TRIMMED_REQUESTS);
        of(&blocks).into_iter().zip(of(&inverse)).for_each(|(a, b)| close(a, -b));
        assert_eq!(of(&[]), Vec::<f64>::new());
    }
}
