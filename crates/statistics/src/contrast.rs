//! A comparison of two runs that have no rounds in common.
//!
//! Nothing pairs the processes of one run with those of the other, so no disturbance cancels. The two runs
//! may also have had different conditions: another hour, another neighbour. No test of the figures can detect
//! that, so a comparison of two runs has to check the machine's activity in each. Interleaved rounds
//! ([`crate::decide`]) do not need this.

use serde::{Deserialize, Serialize};

use crate::decision::{Settings, from_log, holm};
use crate::descriptive::{mean, normal_quantile, student_critical, variance};
use crate::limits::{MIN_ROUNDS, SIGNIFICANCE};
use crate::paired::{Welch, mann_whitney};

/// Power required of a number of rounds.
const POWER: f64 = 0.8;

/// More rounds than anyone would run.
const MOST_ROUNDS: usize = 1_000;

/// One hypothesis, "both runs have the same mean logarithm": a figure of each process, positive. The ratio
/// is a/b.
#[derive(Debug, Clone, Copy)]
pub struct Samples<'a> {
    pub a: &'a [f64],
    pub b: &'a [f64],
}

/// The ratio of two independent samples, with its tests.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Contrast {
    /// Processes of a and of b.
    pub rounds: (usize, usize),
    /// Geometric mean of a ÷ that of b.
    pub ratio: f64,
    /// 95 % interval of the ratio (Welch, Satterthwaite): the ratios that Welch's test does not reject.
    pub interval: (f64, f64),
    /// Two-sided p of Welch's t test on logarithms (Welch 1947), unadjusted.
    pub p_welch: f64,
    /// Two-sided p of the Mann–Whitney test (1947), unadjusted.
    pub p_mann_whitney: f64,
    /// Holm's adjustment (1979) of `p_welch` over the family.
    pub p_adjusted: f64,
    /// Whether both tests reject a ratio of 1, Welch's for the whole family. `false` with fewer than
    /// [`MIN_ROUNDS`] in either sample.
    pub significant: bool,
    /// The smallest ratio > 1 that this noise and these rounds would find with 80 % power at the level that
    /// Holm starts with. `None` with too few rounds to find any.
    pub detectable: Option<f64>,
    /// Rounds of each run with which a ratio such as this one would be found with 80 % power; `None` where
    /// a thousand would not do.
    pub rounds_needed: Option<usize>,
}

impl Contrast {
    /// Whether there are too few rounds for any figures to be significant.
    pub fn has_too_few_rounds(&self) -> bool {
        self.rounds.0.min(self.rounds.1) < MIN_ROUNDS
    }
}

/// Contrasts every pair of samples of a table. `None` where there is nothing to contrast: fewer than two
/// figures in either, or one that is not positive and finite.
///
/// *Significant* needs Welch's t test for the whole family (Holm) and the Mann–Whitney test for the pair. The
/// t test covers the whole table; the rank test, which assumes nothing about the distribution, must agree:
/// one wild process moves a mean, but not the ranks.
pub fn contrast(family: &[Samples<'_>], settings: &Settings) -> Vec<Option<Contrast>> {
    let logarithms: Vec<Option<Pair>> = family.iter().map(Pair::new).collect();
    let p: Vec<f64> = logarithms.iter().flatten().map(|pair| pair.welch.two_sided()).collect();
    let mut adjusted = holm(&p, &vec![1.0; p.len()]).into_iter();
    let level = settings.significance / p.len().max(1) as f64;
    logarithms.iter().map(|pair| Some(pair.as_ref()?.contrast(adjusted.next()?, level, settings))).collect()
}

/// Logarithms, and the difference of their means.
struct Pair {
    a: Vec<f64>,
    b: Vec<f64>,
    welch: Welch,
}

impl Pair {
    fn new(samples: &Samples<'_>) -> Option<Pair> {
        let logarithms = |values: &[f64]| -> Option<Vec<f64>> {
            values.iter().map(|&x| (x > 0.0 && x.is_finite()).then(|| x.ln())).collect()
        };
        let (a, b) = (logarithms(samples.a)?, logarithms(samples.b)?);
        let welch = Welch::estimate(&a, &b)?;
        Some(Pair { a, b, welch })
    }

    fn contrast(&self, p_adjusted: f64, level: f64, settings: &Settings) -> Contrast {
        let Pair { a, b, welch } = self;
        let p_mann_whitney = mann_whitney(a, b);
        let enough = a.len().min(b.len()) >= MIN_ROUNDS;
        let significant =
            enough && p_adjusted < settings.significance && p_mann_whitney < settings.significance;
        let (low, high) = welch.interval(SIGNIFICANCE);
        // Without any noise, every difference would be found.
        let reach = if welch.error == 0.0 { 0.0 } else { noncentrality(welch.freedom, level, POWER) };
        Contrast {
            rounds: (a.len(), b.len()),
            ratio: from_log(welch.difference),
            interval: (from_log(low), from_log(high)),
            p_welch: welch.two_sided(),
            p_mann_whitney,
            p_adjusted,
            significant,
            detectable: enough.then(|| from_log(reach * welch.error)),
            rounds_needed: self.rounds_needed(level),
        }
    }

    /// With as many rounds in each run: the standard error is √((s²ₐ + s²ᵦ)/n), and Satterthwaite's degrees of
    /// freedom are (n − 1)(s²ₐ + s²ᵦ)²/(s⁴ₐ + s⁴ᵦ).
    fn rounds_needed(&self, level: f64) -> Option<usize> {
        let spread = |x: &[f64]| variance(x, mean(x));
        let (a, b) = (spread(&self.a), spread(&self.b));
        let sum = a + b;
        if sum == 0.0 {
            return Some(MIN_ROUNDS);
        }
        let share = ((a / sum).powi(2) + (b / sum).powi(2)).recip();
        let enough = |rounds: usize| {
            let error = (sum / rounds as f64).sqrt();
            let freedom = (rounds - 1) as f64 * share;
            noncentrality(freedom, level, POWER) * error <= self.welch.difference.abs()
        };
        // More rounds never lower the power, so bisection finds the fewest.
        let (mut few, mut many) = (MIN_ROUNDS, MOST_ROUNDS);
        if !enough(many) {
            return None;
        }
        while few < many {
            let middle = usize::midpoint(few, many);
            if enough(middle) { many = middle } else { few = middle + 1 }
        }
        Some(many)
    }
}

// The effects of several switches that were measured on and off in every combination (crossed).
//
// A subset of the switches is a number with bit *i* set if switch *i* is on, and v(S) is the figure with the
// switches in S on. A contrast is a coefficient for each subset; the coefficients add up to 0. It denotes Σ
// c(S)·ln v(S), the logarithm of a ratio of weighted geometric means. In each round it is a ratio of two
// figures, so that [`crate::decide`] judges it like any pair.
//
// The effect of a switch depends on which others are on, so there is no single answer: [`alone`] is its gain
// if it is switched on first, [`left_out`] the loss if it alone is switched off, and [`share`] the mean over
// all orders in which the switches can be switched on (Shapley 1953, *A value for n-person games*). The
// shares of all switches multiply to the [`whole`], in every round and therefore on average; the other two
// need not.

/// All on against all off.
pub fn whole(count: usize) -> Vec<f64> {
    difference(count, full(count), 0)
}

/// This switch on and all others off, against all off.
pub fn alone(count: usize, switch: usize) -> Vec<f64> {
    difference(count, 1 << switch, 0)
}

/// All on against all on but this switch.
pub fn left_out(count: usize, switch: usize) -> Vec<f64> {
    difference(count, full(count), full(count) & !(1 << switch))
}

/// The Shapley value of this switch: its effect on every set of the others, each weighted by the share of
/// orders in which exactly that set precedes it, |S|!·(n − |S| − 1)!/n!.
pub fn share(count: usize, switch: usize) -> Vec<f64> {
    let mut contrast = vec![0.0; 1 << count];
    for before in (0..1_usize << count).filter(|set| set & (1 << switch) == 0) {
        let size = before.count_ones() as usize;
        let weight = factorial(size) * factorial(count - size - 1) / factorial(count);
        contrast[before | 1 << switch] += weight;
        contrast[before] -= weight;
    }
    contrast
}

/// The product of several contrasts.
pub fn product(contrasts: &[Vec<f64>]) -> Vec<f64> {
    let length = contrasts.first().map_or(0, Vec::len);
    (0..length).map(|subset| contrasts.iter().map(|contrast| contrast[subset]).sum()).collect()
}

/// The numerator and the denominator of the contrast in each round: the weighted geometric mean of the
/// subsets with positive coefficients, and of those with negative ones. `figures` are given by subset and
/// round. A side is `None` in a round where one of its figures is missing, or is not positive and finite.
pub fn sides(contrast: &[f64], figures: &[Vec<Option<f64>>]) -> [Vec<Option<f64>>; 2] {
    let taking_part = || contrast.iter().zip(figures).filter(|(weight, _)| **weight != 0.0);
    let rounds = taking_part().map(|(_, figures)| figures.len()).min().unwrap_or(0);
    let mean = |round: usize, sign: f64| -> Option<f64> {
        let logarithm = |(weight, figures): (&f64, &Vec<Option<f64>>)| {
            let figure = figures[round].filter(|figure| *figure > 0.0 && figure.is_finite())?;
            Some(sign * weight * figure.ln())
        };
        let of_side = taking_part().filter(|(weight, _)| sign * **weight > 0.0);
        of_side.map(logarithm).sum::<Option<f64>>().map(f64::exp)
    };
    [1.0, -1.0].map(|sign| (0..rounds).map(|round| mean(round, sign)).collect())
}

fn full(count: usize) -> usize {
    (1 << count) - 1
}

/// One subset against another.
fn difference(count: usize, with: usize, without: usize) -> Vec<f64> {
    let mut contrast = vec![0.0; 1 << count];
    contrast[with] += 1.0;
    contrast[without] -= 1.0;
    contrast
}

fn factorial(n: usize) -> f64 {
    (1..=n).map(|k| k as f64).product()
}

// The power guard: the difference that this noise and this number of rounds could find.

/// Smallest mean difference, in standard deviations of the differences, that a two-sided paired t test at
/// `level` finds with probability `power` in `rounds` pairs. `freedom`: degrees of freedom of the deviation.
/// The noncentral t distribution is approximated as by Johnson & Welch (1940): T′ ≤ t where Z ≤ (t·(1 − 1/4ν)
/// − δ)/√(1 + t²/2ν). Infinite without a degree of freedom.
pub fn detectable_shift(rounds: usize, freedom: f64, level: f64, power: f64) -> f64 {
    if freedom < 1.0 || level <= 0.0 {
        return f64::INFINITY;
    }
    noncentrality(freedom, level, power) / (rounds as f64).sqrt()
}

/// The difference, in standard errors, that a two-sided t test at `level` finds with probability `power`,
/// by the same approximation.
pub(crate) fn noncentrality(freedom: f64, level: f64, power: f64) -> f64 {
    let critical = student_critical(level / 2.0, freedom);
    critical * (1.0 - 0.25 / freedom)
        + normal_quantile(power) * (1.0 + critical * critical / (2.0 * freedom)).sqrt()
}

#[cfg(test)]
mod tests {
    use crate::{Looks, Series, Settings, decide};
    use proptest::prelude::*;

    use super::*;

    const STEADY: [f64; 6] = [10.0, 10.1, 9.9, 10.0, 10.05, 9.95];

    fn scaled(by: f64) -> Vec<f64> {
        STEADY.iter().rev().map(|x| x * by).collect()
    }

    fn one(a: &[f64], b: &[f64]) -> Contrast {
        contrast(&[Samples { a, b }], &Settings::default()).remove(0).unwrap()
    }

    #[test]
    fn a_ratio_is_found_with_its_interval() {
        let found = one(&scaled(1.08), &STEADY);
        assert!((found.ratio - 1.08).abs() < 1e-9 && found.significant, "{found:?}");
        assert!(found.interval.0 > 1.06 && found.interval.1 < 1.10, "{found:?}");
        assert!(found.detectable.unwrap() < 1.03, "{found:?}");
    }

    #[test]
    fn five_processes_show_nothing_however_clear_they_are() {
        let found = one(&scaled(2.0)[..5], &STEADY);
        assert!(!found.significant && found.has_too_few_rounds() && found.detectable.is_none(), "{found:?}");
    }

    #[test]
    fn one_wild_process_is_no_difference() {
        let mut wild = STEADY.to_vec();
        wild[0] = 1000.0;
        assert!(!one(&wild, &STEADY).significant);
    }

    #[test]
    fn the_rounds_that_would_be_needed_find_it() {
        // 3 % under 4 % of noise: hopeless with six.
        let noisy = |by: f64| -> Vec<f64> {
            [-1.3, -0.9, -0.3, 0.3, 0.9, 1.3].iter().map(|z: &f64| by * (0.04 * z).exp()).collect()
        };
        let found = one(&noisy(1.03), &noisy(1.0));
        assert!(!found.significant);
        // Two-sample t test, 80 % power at 5 %: 2·(1.96 + 0.84)²·σ²/δ², with σ = 0.0411 and δ = 0.02956.
        let rounds = found.rounds_needed.unwrap();
        assert!((29..=34).contains(&rounds), "{rounds}");
    }

    #[test]
    fn a_difference_without_noise_is_certain_and_none_is_none() {
        let found = one(&[1.1; 6], &[1.0; 6]);
        assert!(found.significant && found.rounds_needed == Some(MIN_ROUNDS), "{found:?}");
        let same = one(&[1.0; 6], &[1.0; 6]);
        assert!(!same.significant && same.interval == (1.0, 1.0), "{same:?}");
    }

    #[test]
    fn what_is_not_positive_cannot_be_contrasted() {
        let samples = Samples { a: &[0.0; 6], b: &STEADY };
        assert_eq!(contrast(&[samples], &Settings::default()), [None]);
    }

    #[test]
    fn a_larger_family_asks_for_more() {
        let (a, b) = (scaled(1.012), STEADY);
        let alone = one(&a, &b);
        let same = [Samples { a: &STEADY, b: &STEADY }; 19];
        let family = [&[Samples { a: &a, b: &b }], &same[..]].concat();
        let among = contrast(&family, &Settings::default()).remove(0).unwrap();
        assert!(alone.significant && !among.significant, "{alone:?} {among:?}");
        assert!(among.detectable > alone.detectable);
    }

    /// The ratio that a contrast denotes.
    fn ratio(contrast: &[f64], figures: &[f64]) -> f64 {
        let figures: Vec<Vec<Option<f64>>> = figures.iter().map(|&figure| vec![Some(figure)]).collect();
        let [a, b] = sides(contrast, &figures);
        a[0].unwrap() / b[0].unwrap()
    }

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-12, "{found} is not {expected}");
    }

    #[test]
    fn two_switches_agree_with_a_worked_example() {
        // Figures: neither, the first, the second, both. The first gives 6x alone; without it, 8x is lost.
        let figures = [1.0, 6.0, 1.5, 12.0];
        close(ratio(&whole(2), &figures), 12.0);
        close(ratio(&alone(2, 0), &figures), 6.0);
        close(ratio(&left_out(2, 0), &figures), 8.0);
        close(ratio(&share(2, 0), &figures), 48f64.sqrt());
        close(ratio(&share(2, 1), &figures), 3f64.sqrt());
    }

    #[test]
    fn the_shares_of_three_are_the_mean_over_their_six_orders() {
        let figures: [f64; 8] = [2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0];
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for switch in 0..3 {
            let gains = orders.map(|order: [usize; 3]| {
                let place = order.iter().position(|&other| other == switch).unwrap();
                let before = order[..place].iter().fold(0, |set, other| set | 1 << other);
                (figures[before | 1 << switch] / figures[before]).ln()
            });
            close(ratio(&share(3, switch), &figures), (gains.iter().sum::<f64>() / 6.0).exp());
        }
    }

    #[test]
    fn a_single_switch_is_the_whole_whichever_way_it_is_looked_at() {
        for contrast in [alone(1, 0), left_out(1, 0), share(1, 0)] {
            assert_eq!(contrast, whole(1));
        }
    }

    #[test]
    fn switches_that_do_not_touch_each_other_have_one_worth() {
        // 2x and 5x, whatever else is on.
        let figures = [1.0, 2.0, 5.0, 10.0];
        for contrast in [alone(2, 1), left_out(2, 1), share(2, 1)] {
            close(ratio(&contrast, &figures), 5.0);
        }
    }

    #[test]
    fn a_round_without_a_figure_that_takes_part_has_none() {
        let figures = [vec![Some(1.0), Some(2.0)], vec![Some(3.0), None], vec![], vec![Some(0.0), Some(4.0)]];
        let has = |contrast: Vec<f64>| {
            sides(&contrast, &figures).map(|side| side.iter().map(Option::is_some).collect::<Vec<_>>())
        };
        assert_eq!(has(alone(2, 0)), [[true, false], [true, true]]);
        assert_eq!(has(whole(2)), [[false, true], [true, true]], "zero is no figure");
        assert_eq!(sides(&alone(2, 1), &figures), [vec![], vec![]], "the second was never measured");
    }

    fn rounds(count: usize) -> impl Strategy<Value = Vec<Vec<Option<f64>>>> {
        proptest::collection::vec(proptest::collection::vec((0.1..100.0f64).prop_map(Some), 7), 1 << count)
    }

    fn measured() -> impl Strategy<Value = (usize, Vec<Vec<Option<f64>>>)> {
        (1..=4usize).prop_flat_map(|count| rounds(count).prop_map(move |figures| (count, figures)))
    }

    proptest! {
        #[test]
        fn shares_multiply_to_the_whole((count, figures) in measured()) {
            let shares: Vec<Vec<f64>> = (0..count).map(|switch| share(count, switch)).collect();
            let family: Vec<[Vec<Option<f64>>; 2]> =
                shares.iter().chain([&whole(count)]).map(|contrast| sides(contrast, &figures)).collect();
            let series: Vec<Series<'_>> =
                family.iter().map(|[a, b]| Series::new(a, b, 1.0)).collect();
            let decided = decide(&series, &Looks::fixed(7), true, &Settings::default());
            let ratios: Vec<f64> = decided.into_iter().map(|decision| decision.unwrap().ratio).collect();
            let (whole, parts) = ratios.split_last().unwrap();
            prop_assert!((parts.iter().product::<f64>() / whole - 1.0).abs() < 1e-9, "{ratios:?}");
        }

        #[test]
        fn the_product_of_the_shares_is_the_whole_by_its_coefficients(count in 1..=4usize) {
            let shares: Vec<Vec<f64>> = (0..count).map(|switch| share(count, switch)).collect();
            for (found, expected) in product(&shares).iter().zip(whole(count)) {
                prop_assert!((found - expected).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn the_approximation_agrees_with_the_noncentral_t() {
        // Roots of scipy.stats.nct.sf(critical, n - 1, d·√n) = 0.8.
        let exact = [
            (6, 0.05, 1.434_545),
            (6, 0.01, 2.109_349),
            (12, 0.0033, 1.361_973),
            (24, 0.05, 0.597_185),
            (24, 0.0033, 0.852_370),
        ];
        for (rounds, level, shift) in exact {
            let found = detectable_shift(rounds, (rounds - 1) as f64, level, 0.8);
            assert!((found / shift - 1.0).abs() < 0.02, "{rounds} rounds at {level}: {found}, not {shift}");
        }
    }

    #[test]
    fn one_round_finds_nothing() {
        assert_eq!(detectable_shift(1, 0.0, 0.05, 0.8), f64::INFINITY);
    }
}
