//! The finding about one metric.

use serde::Serialize;

/// The finding about one metric of one framework. Files add it in words (crate `render`).
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub framework: String,
    pub case: String,
    pub metric: String,
    pub unit: String,
    /// Geometric means over rounds.
    pub baseline: Option<f64>,
    pub current: Option<f64>,
    /// Current ÷ baseline as a ratio of geometric means, and its 95 % interval.
    pub ratio: Option<f64>,
    pub interval: Option<(f64, f64)>,
    /// The same as "how many times worse": above 1 is worse for every metric.
    pub worse: Option<f64>,
    /// Number of rounds of the baseline and of the current run.
    pub rounds: (usize, usize),
    pub p: Option<f64>,
    pub p_adjusted: Option<f64>,
    /// p value of a test that assumes no distribution: Mann–Whitney's, or sign flips if rounds are paired.
    pub p_rank: Option<f64>,
    /// The threshold as a share; in a `diff`, the margin.
    pub threshold: f64,
    pub verdict: Verdict,
    /// Number of rounds that would make the estimate significant, for an inconclusive finding.
    pub rounds_needed: Option<usize>,
    /// A regression with the same cause that is reported in its place.
    pub follows: Option<String>,
    #[serde(rename = "reason_code", skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// The verdict on one metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Regression,
    Worse,
    Better,
    Equivalent,
    Inconclusive,
    NotMeasurable,
}

/// Why a metric has no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The baseline has no figures for it.
    NotInBaseline,
    /// The current run has no figures for it.
    NotInCurrent,
    /// Too few figures, or some that are not positive.
    Figures,
    /// The baseline has fewer rounds than a verdict needs.
    RoundsOfBaseline,
    /// The current run has fewer.
    RoundsOfCurrent,
    /// The machine itself was slower, which may explain a regression.
    SlowerMachine,
    /// The machine itself was faster, which may hide one.
    FasterMachine,
}

impl Finding {
    /// Whether the estimate, certain or not, exceeds the threshold.
    pub fn is_beyond(&self) -> bool {
        self.worse.is_some_and(|worse| worse > 1.0 + self.threshold)
    }
}
