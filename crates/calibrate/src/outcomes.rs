//! The outcomes of many simulated comparisons.

use statistics::{Decision, Outcome, quantile};

use crate::comparison::{Comparison, Effort, Scenario};
use crate::figures::{ANSWER, METRICS, THROUGHPUT};
use crate::page::percent;
use crate::study::{Options, Share, mean, repeat};

impl Options {
    /// Comparisons of one setting.
    pub fn simulate(&self, scenario: &Scenario) -> Vec<Comparison> {
        repeat(self.comparisons, self.seed, |seed| scenario.compare(seed))
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
    let mut of_last = pairs.iter().zip(comparison.throughput()).filter(|((_, b), _)| *b == last);
    of_last.all(|(_, decision)| {
        is(decision, Outcome::Different) && decision.as_ref().is_some_and(|decision| decision.ratio > 1.0)
    })
}

/// Whether a decision has this outcome.
pub fn is(decision: &Option<Decision>, outcome: Outcome) -> bool {
    decision.as_ref().is_some_and(|decision| decision.outcome == outcome)
}

/// Whether one figure is said not to describe a ratio, in a metric of the answer and for one of these pairs.
pub fn is_split(comparison: &Comparison, pairs: &[usize]) -> bool {
    let mut all =
        ANSWER.flat_map(|metric| pairs.iter().map(move |&pair| &comparison.decisions(metric)[pair]));
    all.any(|decision| decision.as_ref().is_some_and(|decision| !decision.splits.is_empty()))
}

/// The mean error of the ratio of two contenders' throughputs, and how often its interval alone held the true one.
pub fn coverage(outcomes: &[Comparison], ratio: f64) -> (f64, Share) {
    let decisions: Vec<&Decision> = of_pairs(outcomes, &[0]).collect();
    let errors: Vec<f64> = decisions.iter().map(|decision| decision.ratio.ln() - ratio.ln()).collect();
    (mean(&errors), alone(&decisions, ratio))
}

/// How often the interval alone of throughput held the true ratio, for these pairs of equally fast contenders.
pub(crate) fn coverage_of_equals(outcomes: &[Comparison], pairs: &[usize]) -> Share {
    alone(&of_pairs(outcomes, pairs).collect::<Vec<_>>(), 1.0)
}

/// How often the interval alone contains this ratio.
pub(crate) fn alone(decisions: &[&Decision], ratio: f64) -> Share {
    Share::count(decisions, |decision| {
        let (low, high) = decision.interval_alone;
        low <= ratio && ratio <= high
    })
}

fn of_pairs<'a>(outcomes: &'a [Comparison], pairs: &'a [usize]) -> impl Iterator<Item = &'a Decision> {
    outcomes
        .iter()
        .flat_map(move |outcome| pairs.iter().filter_map(|&pair| outcome.throughput()[pair].as_ref()))
}

/// How often all intervals of the table held their true ratios together.
pub fn joint_coverage(scenario: &Scenario, outcomes: &[Comparison]) -> Share {
    let pairs = scenario.pairs();
    Share::count(outcomes, |outcome| {
        let hold = |(index, decision): (usize, &Option<Decision>)| {
            let (a, b) = pairs[index % pairs.len()];
            let slower = scenario.decode[b] / scenario.decode[a];
            let truth = match index / pairs.len() {
                metric if !ANSWER.contains(&metric) => 1.0,
                THROUGHPUT => slower,
                _ => slower.recip(),
            };
            decision.as_ref().is_none_or(|decision| holds(decision, truth))
        };
        outcome.table.iter().enumerate().all(hold)
    })
}

/// Whether the interval that agrees with the verdict has a ratio. That of a difference ends at 1 at the latest, which it
/// excludes.
pub(crate) fn holds(decision: &Decision, truth: f64) -> bool {
    let (low, high) = decision.interval;
    let is_excluded = decision.outcome == Outcome::Different && truth == 1.0;
    low <= truth && truth <= high && !is_excluded
}

/// Half of the length of the interval of throughput alone on the log scale, for the first pair; the median over comparisons.
pub(crate) fn half_width(outcomes: &[Comparison]) -> String {
    let halves: Vec<f64> = of_pairs(outcomes, &[0])
        .map(|decision| 0.5 * (decision.interval_alone.1 / decision.interval_alone.0).ln())
        .collect();
    percent(statistics::median(&halves).unwrap_or(f64::NAN), 1)
}

/// Contenders and hypotheses.
pub(crate) fn size(scenario: &Scenario) -> String {
    let contenders = scenario.decode.len();
    format!("{contenders} ({})", METRICS.len() * scenario.pairs().len())
}

/// Mean and quantiles of the rounds that there were.
pub(crate) fn rounds_taken(outcomes: &[Comparison]) -> String {
    let values: Vec<f64> =
        outcomes.iter().map(|Comparison { effort: Effort { rounds, .. }, .. }| *rounds as f64).collect();
    let [low, high] = [0.1, 0.9].map(|share| quantile(&values, share).unwrap_or(0.0));
    format!("{:.1} ({low:.0}–{high:.0})", mean(&values))
}
