//! The outcomes of many simulated comparisons.

use statistics::{Decision, Outcome, quantile};

use crate::comparison::{Comparison, Effort, Scenario};
use crate::figures::METRICS;
use crate::page::percent;
use crate::study::{Options, Share, mean, repeat};

impl Options {
    /// Comparisons of one setting.
    pub fn simulate(&self, scenario: &Scenario) -> Vec<Comparison> {
        let looks = scenario.rounds.looks();
        repeat(self.comparisons, self.seed, |seed| scenario.compare(&looks, seed))
    }
}

/// Whether anything in the table was decided as different.
pub fn any_different(comparison: &Comparison) -> bool {
    comparison.table.iter().any(|decision| is(decision, Outcome::Different))
}

/// Whether the last contender was found to be slower than every other.
pub fn last_is_slower(scenario: &Scenario, comparison: &Comparison) -> bool {
    let last = scenario.decode.len() - 1;
    let pairs = scenario.pairs();
    let mut of_last = pairs.iter().zip(comparison.deciding()).filter(|((_, b), _)| *b == last);
    of_last.all(|(_, decision)| {
        is(decision, Outcome::Different) && decision.as_ref().is_some_and(|decision| decision.ratio > 1.0)
    })
}

/// Whether a decision has this outcome.
pub fn is(decision: &Option<Decision>, outcome: Outcome) -> bool {
    decision.as_ref().is_some_and(|decision| decision.outcome == outcome)
}

/// The mean error of the ratio of two contenders' throughputs, and how often its interval held the true one.
pub fn coverage(outcomes: &[Comparison], ratio: f64) -> (f64, Share) {
    coverage_of(outcomes, 0, |_| Some(ratio))
}

/// The same of any pair, if each comparison has its own true ratio.
pub fn coverage_of(
    outcomes: &[Comparison],
    pair: usize,
    truth: impl Fn(&Comparison) -> Option<f64>,
) -> (f64, Share) {
    let mut decisions: Vec<(&Decision, f64)> = Vec::new();
    for outcome in outcomes {
        decisions.extend(outcome.deciding()[pair].as_ref().zip(truth(outcome)));
    }
    let errors: Vec<f64> =
        decisions.iter().map(|(decision, truth)| decision.ratio.ln() - truth.ln()).collect();
    let held = Share::count(&decisions, |(decision, truth)| {
        decision.interval.0 <= *truth && *truth <= decision.interval.1
    });
    (mean(&errors), held)
}

/// Half of the length of a pair's interval of throughput on the log scale, the median over comparisons.
pub(crate) fn half_width(outcomes: &[Comparison], pair: usize) -> String {
    let decisions = outcomes.iter().filter_map(|outcome| outcome.deciding()[pair].as_ref());
    let halves: Vec<f64> =
        decisions.map(|decision| 0.5 * (decision.interval.1 / decision.interval.0).ln()).collect();
    percent(statistics::median(&halves).unwrap_or(f64::NAN), 1)
}

/// Contenders and hypotheses.
pub(crate) fn size(scenario: &Scenario) -> [String; 2] {
    let contenders = scenario.decode.len();
    let family = METRICS.len() * scenario.pairs().len();
    [contenders.to_string(), family.to_string()]
}

/// Mean and quantiles of the rounds that there were.
pub(crate) fn rounds_taken(outcomes: &[Comparison]) -> String {
    quantiles(outcomes, 1, |effort| effort.rounds as f64)
}

/// Mean and quantiles of the simulated seconds.
pub(crate) fn seconds_taken(outcomes: &[Comparison]) -> String {
    quantiles(outcomes, 0, |effort| effort.seconds)
}

fn quantiles(outcomes: &[Comparison], decimals: usize, of: impl Fn(Effort) -> f64) -> String {
    let values: Vec<f64> = outcomes.iter().map(|outcome| of(outcome.effort)).collect();
    let [low, median, high] = [0.1, 0.5, 0.9].map(|share| quantile(&values, share).unwrap_or(0.0));
    format!("{:.decimals$} ({low:.0} · {median:.0} · {high:.0})", mean(&values))
}
