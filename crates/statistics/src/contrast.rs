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
