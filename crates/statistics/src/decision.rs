//! From a table of paired series to verdicts.

use serde::{Deserialize, Serialize};

use crate::limits::{DEFAULT_MARGIN, MIN_ROUNDS, SIGNIFICANCE};
use crate::paired::{LogRatios, mann_whitney, welch};
use crate::sequential::{Boundaries, Looks};
use crate::split::{self, Split};

/// How often the interval of one ratio alone may miss the truth: at the last look, and, taken alone, at an earlier one.
///
/// Rounds that end when the figures allow it give an interval that misses more often than its level. This level is
/// chosen by calibration (`docs/evidence/calibration.md`): overall it misses in 3 to 7 %.
const ALONE: (f64, f64) = (0.05, 0.03);

/// One hypothesis, "their figures do not differ": figures of two contenders by round, positive; `None` where
/// a round has none. The ratio is a/b.
#[derive(Debug, Clone)]
pub struct Series<'a> {
    pub a: &'a [Option<f64>],
    pub b: &'a [Option<f64>],
    /// The state of each round, as other contenders show it ([`state`](crate::descriptive::state)); empty without any.
    pub state: Vec<Option<f64>>,
    /// ln(a/b) of each prompt by round, `[prompt][round]`; empty with a single prompt.
    pub prompts: Vec<Vec<Option<f64>>>,
    /// Number of layouts of the programs, which the rounds take in turn; below 2 if they have one.
    pub layouts: usize,
    /// Share of the table's error rate, relative to the other hypotheses'; above 0.
    pub weight: f64,
}

impl<'a> Series<'a> {
    /// The figures alone.
    pub fn new(a: &'a [Option<f64>], b: &'a [Option<f64>], weight: f64) -> Series<'a> {
        Series { a, b, state: Vec::new(), prompts: Vec::new(), layouts: 0, weight }
    }

    /// Whether a difference may be that of layouts: as many means as there are layouts do not show it, by Student's
    /// interval at this level. Rounds of one layout share it, and say nothing of others.
    fn may_be_layout(&self, level: f64) -> bool {
        if self.layouts < 2 {
            return false;
        }
        let mean = |layout: usize| {
            let rounds = self.a.iter().zip(self.b).skip(layout).step_by(self.layouts);
            let logs: Vec<f64> = rounds.filter_map(|(a, b)| Some(((*a)? / (*b)?).ln())).collect();
            (!logs.is_empty()).then(|| from_log(logs.iter().sum::<f64>() / logs.len() as f64))
        };
        let means: Vec<Option<f64>> = (0..self.layouts).map(mean).collect();
        let over_layouts = LogRatios::new(&means, &vec![Some(1.0); self.layouts]);
        over_layouts.is_none_or(|ratios| {
            let (low, high) = ratios.interval(level);
            low <= 0.0 && high >= 0.0
        })
    }

    /// The state of the rounds in which both have a figure; `None` if that of one is unknown.
    fn states(&self) -> Option<Vec<f64>> {
        let pairs = self.a.iter().zip(self.b).enumerate().filter(|(_, (a, b))| a.is_some() && b.is_some());
        pairs.map(|(round, _)| self.state.get(round).copied().flatten()).collect()
    }
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Equivalence margin on the ratio.
    pub margin: f64,
    /// Chance of any false `Different` in the table, and of any false `Equivalent`.
    pub significance: f64,
    /// Seed of resamples and random sign flips.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { margin: DEFAULT_MARGIN, significance: SIGNIFICANCE, seed: 0 }
    }
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The ratio is not 1.
    Different,
    /// The ratio is within the margin, whether or not it is 1.
    Equivalent,
    /// Neither was shown.
    Inconclusive,
}

/// Why the outcome is inconclusive.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Undecided {
    /// Fewer than [`MIN_ROUNDS`].
    TooFewRounds { rounds: usize },
    /// The difference, if any, is too small for this noise and number of rounds.
    Noise,
    /// The tests would allow a verdict, but no single one holds at both ends of a [`Split`].
    Mixed,
    /// The tests would allow a verdict, but another layout of the same code might have given another.
    Layout,
}

/// The evidence on one hypothesis.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Decision {
    /// Pairs used.
    pub rounds: usize,
    /// Geometric mean of a/b.
    pub ratio: f64,
    /// The interval of the ratio that agrees with the outcome: with 95 % certainty those of the whole table, over all
    /// looks, contain their ratios. It contains 1 if the outcome is inconclusive, and does not beyond its end if it is
    /// different.
    pub interval: (f64, f64),
    /// 95 % interval of this ratio alone. At a look that need not be the last it is wider, so that it covers the truth
    /// about as often although the figures decide when rounds end.
    pub interval_alone: (f64, f64),
    /// Where one ratio does not describe all rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<Split>,
    /// Two-sided p of the paired t test, unadjusted.
    pub p_t: f64,
    /// Two-sided p of the sign-flip test, unadjusted.
    pub p_sign_flip: f64,
    /// Two-sided p of Welch's test on logarithms, unadjusted.
    pub p_welch: f64,
    /// Two-sided p of the Mann–Whitney test, unadjusted.
    pub p_mann_whitney: f64,
    /// `p_t` made valid under the looks taken.
    pub p_sequential: f64,
    /// Holm's weighted adjustment of `p_sequential` over the family.
    pub p_adjusted: f64,
    /// The larger of the two one-sided p values against the margin, made valid under the looks taken and by Holm's
    /// weighted adjustment over the family.
    pub p_equivalence: f64,
    pub outcome: Outcome,
    /// Why the outcome is inconclusive; `None` for any other.
    pub reason: Option<Undecided>,
}

impl Decision {
    /// The same for b/a.
    pub fn inverted(self) -> Decision {
        let turn = |(low, high): (f64, f64)| (1.0 / high, 1.0 / low);
        Decision {
            ratio: 1.0 / self.ratio,
            interval: turn(self.interval),
            interval_alone: turn(self.interval_alone),
            splits: self.splits.into_iter().map(Split::inverted).collect(),
            ..self
        }
    }

    /// The split with ends that favour different contenders, if there is one.
    pub fn mixed(&self) -> Option<&Split> {
        self.splits.iter().find(|split| split.is_mixed())
    }
}

/// Decides every hypothesis of a table. `looks` lists when the evidence was looked at, `last` means that it
/// will not be looked at again. `None` where there is nothing to compare: fewer than two pairs, or a figure
/// that is not positive and finite.
///
/// - *Equivalent* if both one-sided t tests against the margin reject at half the significance level, under the looks
///   taken and for the whole family (Holm).
/// - *Different* if the t test rejects under the looks taken and for the whole family (Holm, weighted, on
///   sequential p values: Ye, Li, Liu & Yao 2013), and the sign-flip test rejects too. The t test covers
///   the table and the peeking; the sign-flip test, which assumes only symmetry, must agree comparison by comparison.
///   Its smallest p is 2/2ⁿ. Under Holm over the 15 hypotheses of three
///   contenders it would forbid a first verdict on throughput below eight rounds, and any other below twelve.
/// - Neither if one ratio does not describe all rounds ([`Split`]) and the verdict does not hold at both ends, nor
///   *different* if the programs ran in several layouts and their means leave that open.
/// - *Inconclusive* otherwise, and always with fewer than [`MIN_ROUNDS`] pairs.
///
/// Intervals of the whole table contain all ratios together with the certainty of the significance level: each is
/// Student's at its share of it (Bonferroni, weighted), at the nominal level of the look (repeated intervals: Jennison &
/// Turnbull 1989). Holm's procedure decides more than these intervals do. Where it shows a direction that the interval
/// leaves open, the interval is cut at 1, an end that is as certain as the verdict; the other way round, an interval of an
/// open pair is extended to 1.
pub fn decide(
    family: &[Series<'_>],
    looks: &Looks,
    last: bool,
    settings: &Settings,
) -> Vec<Option<Decision>> {
    let rounds = family.iter().map(|series| series.a.len().min(series.b.len())).max().unwrap_or(0);
    let boundaries = looks.after(rounds, last);
    let hypotheses: Vec<Option<Hypothesis<'_>>> = family.iter().map(Hypothesis::new).collect();
    let tested: Vec<&Hypothesis<'_>> = hypotheses.iter().flatten().collect();
    let margin = settings.margin.ln_1p();
    let different: Vec<f64> = tested.iter().map(|it| boundaries.two_sided(it.ratios.p_t())).collect();
    let equivalent: Vec<f64> =
        tested.iter().map(|it| boundaries.one_sided(it.ratios.p_equivalence(margin))).collect();
    let weights: Vec<f64> = tested.iter().map(|it| it.series.weight).collect();
    let table = Table {
        boundaries,
        alone: if looks.ends(rounds, last) { ALONE.0 } else { ALONE.1 },
        settings,
        weights: weights.iter().sum(),
        count: tested.len(),
    };
    let mut adjusted = holm(&different, &weights).into_iter().zip(holm(&equivalent, &weights));
    hypotheses.iter().map(|hypothesis| Some(table.decide(hypothesis.as_ref()?, adjusted.next()?))).collect()
}

/// A hypothesis that can be tested.
struct Hypothesis<'a> {
    ratios: LogRatios,
    series: &'a Series<'a>,
}

impl<'a> Hypothesis<'a> {
    fn new(series: &'a Series<'a>) -> Option<Hypothesis<'a>> {
        Some(Hypothesis { ratios: LogRatios::new(series.a, series.b)?, series })
    }
}

/// Values shared by the hypotheses of a table.
struct Table<'a> {
    boundaries: Boundaries,
    /// Level of the intervals that each count for one ratio alone.
    alone: f64,
    settings: &'a Settings,
    /// Sum of the weights of the hypotheses that can be tested, and their number.
    weights: f64,
    count: usize,
}

impl Table<'_> {
    fn decide(&self, hypothesis: &Hypothesis<'_>, (p_adjusted, p_equivalence): (f64, f64)) -> Decision {
        let &Settings { margin, significance, seed } = self.settings;
        let Hypothesis { ratios, series } = hypothesis;
        let rounds = ratios.rounds();
        let p_t = ratios.p_t();
        let p_sign_flip = ratios.p_sign_flip(seed);
        let level = SIGNIFICANCE / self.count as f64;
        let splits = split::splits(ratios.differences(), series.states().as_deref(), &series.prompts, level);
        let is_equivalent = p_equivalence < 0.5 * significance;
        let is_different = p_adjusted < significance && p_sign_flip < significance;
        let (outcome, reason) = if rounds < MIN_ROUNDS {
            (Outcome::Inconclusive, Some(Undecided::TooFewRounds { rounds }))
        } else if is_equivalent && splits.iter().all(|split| split.is_within(margin)) {
            (Outcome::Equivalent, None)
        } else if is_different && series.may_be_layout(significance) {
            (Outcome::Inconclusive, Some(Undecided::Layout))
        } else if is_different && !splits.iter().any(Split::forbids_difference) {
            (Outcome::Different, None)
        } else if is_different || is_equivalent {
            (Outcome::Inconclusive, Some(Undecided::Mixed))
        } else {
            (Outcome::Inconclusive, Some(Undecided::Noise))
        };
        let share = self.boundaries.level(significance * series.weight / self.weights);
        let interval = agreeing(ratios.interval(share), outcome, ratios.mean(), margin.ln_1p());
        let (a, b) = ratios.logarithms();
        let from_logs = |(low, high): (f64, f64)| (from_log(low), from_log(high));
        Decision {
            rounds,
            ratio: from_log(ratios.mean()),
            interval: from_logs(interval),
            interval_alone: from_logs(ratios.interval(self.alone)),
            splits,
            p_t,
            p_sign_flip,
            p_welch: welch(a, b),
            p_mann_whitney: mann_whitney(a, b),
            p_sequential: self.boundaries.two_sided(p_t),
            p_adjusted,
            p_equivalence,
            outcome,
            reason,
        }
    }
}

/// An interval of the log ratio that says the same as the verdict.
fn agreeing((low, high): (f64, f64), outcome: Outcome, ratio: f64, margin: f64) -> (f64, f64) {
    match outcome {
        Outcome::Different if ratio > 0.0 => (low.max(0.0), high),
        Outcome::Different => (low, high.min(0.0)),
        Outcome::Equivalent => (low.max(-margin), high.min(margin)),
        Outcome::Inconclusive => (low.min(0.0), high.max(0.0)),
    }
}

/// e^x, kept among the finite positive numbers, which JSON has.
pub(crate) fn from_log(x: f64) -> f64 {
    x.exp().clamp(f64::MIN_POSITIVE, f64::MAX)
}

/// Whether more rounds would change nothing that matters: every one of these pairs is decided, or
/// its 95 % interval alone, as a whole, is narrower than the margin, or it cannot be compared at all.
///
/// Stopping as soon as *half* the interval is narrower than the margin would be too early: it would find a
/// difference of 3 % half as often (`docs/evidence/calibration.md`).
pub fn settled(decisions: &[Option<Decision>], margin: f64) -> bool {
    decisions.iter().flatten().all(|decision| {
        let (low, high) = decision.interval_alone;
        let narrow = decision.rounds >= MIN_ROUNDS && high.ln() - low.ln() < margin.ln_1p();
        decision.outcome != Outcome::Inconclusive || narrow
    })
}

// Whether a change is a regression.

/// The class of a change, given as "how many times worse": above 1 is worse.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Certainly worse, and by more than the threshold.
    Regression,
    /// Certainly worse, by no more than the threshold.
    Worse,
    /// Certainly better.
    Better,
    /// Certainly within the threshold in either direction; not shown to have changed at all.
    Equivalent,
    /// None of these was shown.
    Inconclusive,
}

/// Classifies a change by its estimate, its 95 % interval, and whether it was shown to differ from 1.
///
/// A regression needs both conditions. *Significant* alone would fail a change of half a percent that twelve
/// steady rounds make certain; *beyond the threshold* alone would fail every noisy run. The estimate is
/// compared with the threshold, not the end of the interval nearer to 1: a change exactly as large as the
/// threshold is then found in half of the runs, and one of 8 % at a threshold of 5 % nearly always.
/// `Equivalent` means that the interval is within the margin (Schuirmann 1987; Westlake 1972), with the
/// threshold as the margin: a failing change has been ruled out.
pub fn classify(worse: f64, interval: (f64, f64), significant: bool, threshold: f64) -> Change {
    let most = 1.0 + threshold;
    if significant {
        return match worse {
            worse if worse > most => Change::Regression,
            worse if worse > 1.0 => Change::Worse,
            _ => Change::Better,
        };
    }
    if interval.0 >= most.recip() && interval.1 <= most { Change::Equivalent } else { Change::Inconclusive }
}

// Many hypotheses in one table.

/// Holm's step-down adjustment of a family of p values, in its weighted form (Holm 1979): the chance of any false
/// rejection stays below the significance level, however the hypotheses depend on each other.
///
/// Each hypothesis has a weight above 0. Only ratios of weights count. Hypotheses are ordered by p/w, and the
/// adjusted value is the largest so far of p·(sum of the weights not yet rejected)/w. Equal weights give
/// Holm's unweighted procedure.
pub fn holm(p: &[f64], weights: &[f64]) -> Vec<f64> {
    assert_eq!(p.len(), weights.len(), "a hypothesis has one p value and one weight");
    assert!(weights.iter().all(|weight| *weight > 0.0 && weight.is_finite()), "a weight is above 0");
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| (p[i] / weights[i]).total_cmp(&(p[j] / weights[j])));
    // Summed from the end, so that the last hypothesis has exactly its own weight left.
    let mut left = vec![0.0; p.len()];
    let mut sum = 0.0;
    for &index in order.iter().rev() {
        sum += weights[index];
        left[index] = sum;
    }
    let mut adjusted = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for index in order {
        largest = largest.max(p[index] * (left[index] / weights[index])).min(1.0);
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_regression_is_certain_and_beyond_the_threshold() {
        let classify = |worse, interval, significant| classify(worse, interval, significant, 0.05);
        assert_eq!(classify(1.08, (1.06, 1.10), true), Change::Regression);
        assert_eq!(classify(1.03, (1.02, 1.04), true), Change::Worse);
        assert_eq!(classify(1.08, (0.95, 1.20), false), Change::Inconclusive);
        assert_eq!(classify(0.90, (0.89, 0.91), true), Change::Better);
        assert_eq!(classify(1.01, (0.98, 1.04), false), Change::Equivalent);
        assert_eq!(classify(1.01, (0.94, 1.04), false), Change::Inconclusive, "1/1.05 is 0.952");
    }

    #[test]
    fn a_threshold_of_nothing_stops_whatever_is_certain() {
        assert_eq!(classify(1.001, (1.0005, 1.002), true, 0.0), Change::Regression);
    }

    #[test]
    fn a_difference_of_single_layouts_may_be_layout() {
        let decided = |of_layouts: [f64; 3], layouts: usize| {
            let noise = |round: usize| 0.002 * f64::from((round * 7 % 5) as u32);
            let a: Vec<Option<f64>> =
                (0..12).map(|round| Some((of_layouts[round % 3] + noise(round)).exp())).collect();
            let b = vec![Some(1.0); 12];
            let series = Series { layouts, ..Series::new(&a, &b, 1.0) };
            let found = decide(&[series], &Looks::fixed(12), true, &Settings::default()).remove(0).unwrap();
            (found.outcome, found.reason)
        };
        let of_two = [0.08, 0.07, 0.0];
        assert_eq!(decided(of_two, 0), (Outcome::Different, None));
        assert_eq!(decided(of_two, 3), (Outcome::Inconclusive, Some(Undecided::Layout)));
        assert_eq!(decided([0.08, 0.07, 0.06], 3), (Outcome::Different, None));
    }

    fn close(found: &[f64], expected: &[f64]) {
        let alike = found.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-12);
        assert!(alike && found.len() == expected.len(), "{found:?} is not {expected:?}");
    }

    #[test]
    fn holm_agrees_with_a_worked_example() {
        close(&holm(&[0.01, 0.04, 0.03, 0.005], &[1.0; 4]), &[0.03, 0.06, 0.06, 0.02]);
    }

    #[test]
    fn weighted_holm_agrees_with_a_worked_example() {
        // p/w is 0.025, 0.1, 0.3 and 0.04. By it, 0.02·1/0.8; then 0.002·0.2/0.05, 0.01·0.15/0.1, 0.015·0.05/0.05.
        let adjusted = holm(&[0.02, 0.01, 0.015, 0.002], &[0.8, 0.1, 0.05, 0.05]);
        close(&adjusted, &[0.025, 0.025, 0.025, 0.025]);
        // In the same order, 0.02/0.8; 0.01·0.2/0.05; 0.03·0.15/0.1; 0.2·0.05/0.05.
        let adjusted = holm(&[0.02, 0.03, 0.2, 0.01], &[0.8, 0.1, 0.05, 0.05]);
        close(&adjusted, &[0.025, 0.045, 0.2, 0.04]);
    }

    /// Holm's procedure in its textbook form, without weights.
    fn unweighted(p: &[f64]) -> Vec<f64> {
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
        let mut adjusted = vec![0.0; p.len()];
        let mut largest: f64 = 0.0;
        for (rank, index) in order.into_iter().enumerate() {
            largest = largest.max(p[index] * (p.len() - rank) as f64).min(1.0);
            adjusted[index] = largest;
        }
        adjusted
    }

    fn family() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
        proptest::collection::vec((0.0..1.0f64, 0.01..10.0f64), 1..20)
            .prop_map(|family| family.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn equal_weights_are_no_weights((p, _) in family(), weight in 0.01..10.0f64) {
            close(&holm(&p, &vec![weight; p.len()]), &unweighted(&p));
        }

        #[test]
        fn holm_never_lowers_a_p_value((p, weights) in family()) {
            for (adjusted, raw) in holm(&p, &weights).iter().zip(&p) {
                prop_assert!(adjusted >= raw && *adjusted <= 1.0);
            }
        }

        #[test]
        fn only_ratios_of_weights_count((p, weights) in family(), by in 0.001..1000.0f64) {
            let scaled: Vec<f64> = weights.iter().map(|weight| weight * by).collect();
            close(&holm(&p, &scaled), &holm(&p, &weights));
        }
    }
}
