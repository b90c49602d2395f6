//! From a table of paired series to verdicts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bootstrap::Resamples;
use crate::limits::{DEFAULT_MARGIN, MIN_ROUNDS, SIGNIFICANCE};
use crate::multiplicity::holm;
use crate::paired::LogRatios;
use crate::power::detectable_shift;
use crate::sequential::{Boundaries, Looks};
use crate::unpaired::{mann_whitney, welch};

/// How often an interval may miss the truth: at the last look, and, taken alone, at an earlier one.
///
/// Rounds that end when the figures allow it give an interval that misses more often than its level: at 5 %
/// throughout, in 7 % of simulated comparisons at a ratio of 1.01 or 1.02. The repeated interval of Jennison
/// & Turnbull (1989), at the nominal level of the look, would miss in 1 to 3 %. This level is in between and
/// is chosen by calibration (`docs/evidence/calibration.md`): overall it misses in 3 to 6 %.
const INTERVAL_LEVELS: (f64, f64) = (0.05, 0.03);
/// Power required by the guard.
const POWER: f64 = 0.8;

/// One hypothesis, "their figures do not differ": figures of two contenders by round, positive; `None` where
/// a round has none. The ratio is a/b.
#[derive(Debug, Clone)]
pub struct Series<'a> {
    pub a: &'a [Option<f64>],
    pub b: &'a [Option<f64>],
    /// The state of each round, as other contenders show it ([`state`](crate::state)); empty without any.
    pub state: Vec<Option<f64>>,
    /// Share of the table's error rate, relative to the other hypotheses'; above 0. [`weights`](crate::weights) gives
    /// those of a whole table.
    pub weight: f64,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Equivalence margin on the ratio.
    pub margin: f64,
    /// Chance of any false `Different` in the table, and of each false `Equivalent`.
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
}

/// The evidence on one hypothesis.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Decision {
    /// Pairs used.
    pub rounds: usize,
    /// Geometric mean of a/b.
    pub ratio: f64,
    /// 95 % bootstrap interval of the ratio. At a look that need not be the last it is wider, so that it
    /// covers the truth about as often although the figures decide when rounds end.
    pub interval: (f64, f64),
    /// Change of ln(a/b) per unit of the state; the interval and the paired tests are adjusted for it. `None` where no state
    /// is known.
    pub state_slope: Option<f64>,
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
    /// The larger of the two one-sided p values against the margin, made valid under the looks taken.
    pub p_equivalence: f64,
    /// The smallest ratio > 1 that this noise and number of rounds would find with 80 % power at the level
    /// that Holm starts with, the hypothesis's share of the significance level by its weight. `None` with too
    /// few rounds to find any.
    pub detectable: Option<f64>,
    pub outcome: Outcome,
    /// Why the outcome is inconclusive; `None` for any other.
    pub reason: Option<Undecided>,
}

/// Decides every hypothesis of a table. `looks` lists when the evidence was looked at, `last` means that it
/// will not be looked at again. `None` where there is nothing to compare: fewer than two pairs, or a figure
/// that is not positive and finite.
///
/// - *Equivalent* if both one-sided t tests reject at half the significance level, under the looks taken, and
///   the 95 % interval is within the margin: the verdict then agrees with the interval shown. (Without
///   peeking the two are nearly the same. At the full level the true error at the margin would be the 5 %
///   allowed, and intervals of ratios close to it would miss too often.)
/// - *Different* if the t test rejects under the looks taken and for the whole family (Holm, weighted, on
///   sequential p values: Ye, Li, Liu & Yao 2013), and the sign-flip test rejects too. The t test covers
///   the table and the peeking; the sign-flip test, which assumes nothing about the distribution, must
///   agree comparison by comparison. Its smallest p is 2/2ⁿ. Under Holm over the 15 hypotheses of three
///   contenders it would forbid a first verdict on throughput below eight rounds, and any other below twelve.
/// - *Inconclusive* otherwise, and always with fewer than [`MIN_ROUNDS`] pairs.
pub fn decide(
    family: &[Series<'_>],
    looks: &Looks,
    last: bool,
    settings: &Settings,
) -> Vec<Option<Decision>> {
    let rounds = family.iter().map(|series| series.a.len().min(series.b.len())).max().unwrap_or(0);
    let boundaries = looks.after(rounds, last);
    let hypotheses: Vec<Option<Hypothesis>> = family.iter().map(Hypothesis::new).collect();
    let tested = || hypotheses.iter().flatten();
    let sequential: Vec<f64> =
        tested().map(|hypothesis| boundaries.two_sided(hypothesis.ratios.p_t())).collect();
    let weights: Vec<f64> = tested().map(|hypothesis| hypothesis.weight).collect();
    let mut adjusted = holm(&sequential, &weights).into_iter();
    let mut table = Table {
        boundaries,
        interval_level: if looks.ends(rounds, last) { INTERVAL_LEVELS.0 } else { INTERVAL_LEVELS.1 },
        settings,
        weights: weights.iter().sum(),
        resamples: BTreeMap::new(),
    };
    hypotheses.iter().map(|hypothesis| Some(table.decide(hypothesis.as_ref()?, adjusted.next()?))).collect()
}

/// A hypothesis that can be tested.
struct Hypothesis {
    ratios: LogRatios,
    weight: f64,
}

impl Hypothesis {
    fn new(series: &Series<'_>) -> Option<Hypothesis> {
        let ratios = LogRatios::new(series.a, series.b)?.at_state(series.a, series.b, &series.state);
        Some(Hypothesis { ratios, weight: series.weight })
    }
}

/// Values shared by the hypotheses of a table.
struct Table<'a> {
    boundaries: Boundaries,
    interval_level: f64,
    settings: &'a Settings,
    /// Sum of the weights of the hypotheses that can be tested.
    weights: f64,
    /// By number of rounds.
    resamples: BTreeMap<usize, Resamples>,
}

impl Table<'_> {
    fn decide(&mut self, hypothesis: &Hypothesis, p_adjusted: f64) -> Decision {
        let &Settings { margin, significance, seed } = self.settings;
        let ratios = &hypothesis.ratios;
        let rounds = ratios.rounds();
        let p_t = ratios.p_t();
        let p_sign_flip = ratios.p_sign_flip(seed);
        let p_equivalence = self.boundaries.one_sided(ratios.p_equivalence(margin.ln_1p()));
        let resamples = self.resamples.entry(rounds).or_insert_with(|| Resamples::new(rounds, seed));
        let (low, high) =
            resamples.interval(ratios.differences(), ratios.freedom(), 1.0 - self.interval_level);
        let within = low > -margin.ln_1p() && high < margin.ln_1p();
        let equivalent = p_equivalence < 0.5 * significance && within;
        let different = p_adjusted < significance && p_sign_flip < significance;
        let (outcome, reason) = if rounds < MIN_ROUNDS {
            (Outcome::Inconclusive, Some(Undecided::TooFewRounds { rounds }))
        } else if equivalent {
            (Outcome::Equivalent, None)
        } else if different {
            (Outcome::Different, None)
        } else {
            (Outcome::Inconclusive, Some(Undecided::Noise))
        };
        let (a, b) = ratios.logarithms();
        Decision {
            rounds,
            ratio: from_log(ratios.mean()),
            interval: (from_log(low), from_log(high)),
            state_slope: ratios.slope(),
            p_t,
            p_sign_flip,
            p_welch: welch(a, b),
            p_mann_whitney: mann_whitney(a, b),
            p_sequential: self.boundaries.two_sided(p_t),
            p_adjusted,
            p_equivalence,
            detectable: (rounds >= MIN_ROUNDS).then(|| self.detectable(hypothesis)),
            outcome,
            reason,
        }
    }

    fn detectable(&self, hypothesis: &Hypothesis) -> f64 {
        let share = hypothesis.weight / self.weights;
        let level = self.boundaries.level(self.settings.significance * share);
        let ratios = &hypothesis.ratios;
        from_log(detectable_shift(ratios.rounds(), ratios.freedom(), level, POWER) * ratios.deviation())
    }
}

/// e^x, kept among the finite positive numbers, which JSON has.
pub(crate) fn from_log(x: f64) -> f64 {
    x.exp().clamp(f64::MIN_POSITIVE, f64::MAX)
}

/// Whether more rounds would change nothing that matters: every pair on the deciding metric is decided, or
/// its 95 % interval, as a whole, is narrower than the margin, or it cannot be compared at all.
///
/// Stopping as soon as *half* the interval is narrower than the margin would be too early: it would find a
/// difference of 3 % half as often (`docs/evidence/calibration.md`).
pub fn settled(deciding: &[Option<Decision>], margin: f64) -> bool {
    deciding.iter().flatten().all(|decision| {
        let (low, high) = decision.interval;
        let narrow = decision.rounds >= MIN_ROUNDS && high.ln() - low.ln() < margin.ln_1p();
        decision.outcome != Outcome::Inconclusive || narrow
    })
}
