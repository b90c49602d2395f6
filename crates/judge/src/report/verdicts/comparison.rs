//! One verdict: a pair of contenders on one metric, with its sentence for people.

use plan::Plan;
use serde::{Deserialize, Serialize};
use statistics::{Decision, MIN_ROUNDS, Outcome};

use crate::metrics::{self, Metric};

/// The verdict for one contender over another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better than the other: for memory, smaller.
    Faster,
    Slower,
    Equivalent,
    Inconclusive,
    NotMeasurable,
}

impl Verdict {
    /// Its name for people.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Equivalent => "equivalent",
            Verdict::Inconclusive => "inconclusive",
            Verdict::NotMeasurable => "not measurable",
        }
    }
}

/// One metric of two contenders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub metric: Metric,
    /// The better of the two by its estimate.
    pub a: String,
    pub b: String,
    /// The verdict for `a` over `b`. `Slower` never occurs, because the better of the two comes first.
    pub verdict: Verdict,
    /// The verdict for `b` over `a`: `slower` where `a` is `faster`, else the same.
    pub verdict_of_b: Verdict,
    pub sentence: String,
    /// How many times better a is than b: b/a for times and memory, a/b for throughput, as the geometric mean over
    /// rounds. `null` if nothing can be compared.
    pub advantage: Option<f64>,
    /// 95 % interval of the advantage.
    #[serde(deserialize_with = "facts::reading::interval")]
    pub interval: Option<(f64, f64)>,
    /// The full result of the statistics, in the sense of `advantage`.
    pub statistics: Option<Decision>,
}

impl Comparison {
    /// Leaves the figures, and says why there is no verdict on them.
    pub(super) fn take_verdict(&mut self, reason: &str) {
        (self.verdict, self.verdict_of_b) = (Verdict::NotMeasurable, Verdict::NotMeasurable);
        self.sentence = not_measurable(self.metric, &self.a, &self.b, reason);
    }
}

fn not_measurable(metric: Metric, a: &str, b: &str, reason: &str) -> String {
    format!("{a} and {b}: {} is not measurable: {reason}", metric.words())
}

/// The same decision on b/a.
pub(super) fn inverted(decision: Decision) -> Decision {
    let (low, high) = decision.interval;
    let state_slope = decision.state_slope.map(|slope| -slope);
    Decision { ratio: 1.0 / decision.ratio, interval: (1.0 / high, 1.0 / low), state_slope, ..decision }
}

pub(super) fn comparison(
    metric: Metric,
    a: &str,
    b: &str,
    decision: Option<Decision>,
    plan: &Plan,
    unmeasurable: Option<&str>,
) -> Comparison {
    let (verdict, verdict_of_b) = match decision.as_ref().map(|decision| decision.outcome) {
        None => (Verdict::NotMeasurable, Verdict::NotMeasurable),
        Some(_) if unmeasurable.is_some() => (Verdict::NotMeasurable, Verdict::NotMeasurable),
        Some(Outcome::Different) => (Verdict::Faster, Verdict::Slower),
        Some(Outcome::Equivalent) => (Verdict::Equivalent, Verdict::Equivalent),
        Some(Outcome::Inconclusive) => (Verdict::Inconclusive, Verdict::Inconclusive),
    };
    let sentence = match (&decision, unmeasurable) {
        (_, Some(reason)) => not_measurable(metric, a, b, reason),
        (None, None) => not_measurable(metric, a, b, "figures are missing"),
        (Some(decision), None) => sentence(metric, a, b, decision, plan.margin),
    };
    Comparison {
        metric,
        a: a.to_owned(),
        b: b.to_owned(),
        verdict,
        verdict_of_b,
        sentence,
        advantage: decision.as_ref().map(|decision| decision.ratio),
        interval: decision.as_ref().map(|decision| decision.interval),
        statistics: decision,
    }
}

fn sentence(metric: Metric, a: &str, b: &str, decision: &Decision, margin: f64) -> String {
    let (ratio, interval, rounds) = (decision.ratio, decision.interval, decision.rounds);
    let words = metric.words();
    match decision.outcome {
        Outcome::Different => {
            let told = metric.difference(a, b, ratio, Some(interval));
            format!("{told} (95 % interval {}, {rounds} rounds)", metric.interval(ratio, interval))
        }
        Outcome::Equivalent => {
            let (margin, interval) = (margin * 100.0, metric.open_interval(ratio, interval));
            format!(
                "{a} and {b} are equivalent in {words} within {margin} % (95 % interval {interval}, {rounds} rounds)"
            )
        }
        Outcome::Inconclusive if rounds < MIN_ROUNDS => {
            format!(
                "{a} and {b}: inconclusive in {words}: {rounds} rounds of the {MIN_ROUNDS} that a verdict takes"
            )
        }
        // The interval is for this pair alone. The p value is corrected for the whole table, and decides.
        Outcome::Inconclusive => {
            let (p, interval) = (decision.p_adjusted, metric.open_interval(ratio, interval));
            let detectable = match decision.detectable {
                Some(ratio) if ratio < metrics::TELLING => {
                    format!(
                        "; this run could only have shown differences above {}",
                        metrics::detectable(ratio)
                    )
                }
                Some(_) if decision.interval.1 / decision.interval.0 >= metrics::TELLING => {
                    return format!(
                        "{a} and {b}: inconclusive in {words}: too few processes to tell ({rounds} rounds)"
                    );
                }
                _ => String::new(),
            };
            format!(
                "{a} and {b}: inconclusive in {words} (95 % interval {interval}, adjusted p = {p:.2}, {rounds} rounds{detectable})"
            )
        }
    }
}
