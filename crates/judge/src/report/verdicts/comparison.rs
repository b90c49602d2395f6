//! One verdict: a pair of contenders on one metric.

use serde::{Deserialize, Serialize};
use statistics::{Decision, Outcome};

use crate::metrics::Metric;
use crate::report::work::sanity::Flag;

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
    /// The verdict for the other of the two.
    pub fn turned(self) -> Verdict {
        match self {
            Verdict::Faster => Verdict::Slower,
            Verdict::Slower => Verdict::Faster,
            other => other,
        }
    }
}

/// Why a pair has no verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unmeasurable {
    /// One of the two has no figures, or none that can be compared.
    FiguresMissing,
    /// The machine was too noisy: the finding, and the remedy.
    Noise(String),
    /// A result of one of the two is impossible.
    Impossible { framework: String, finding: String },
}

/// One metric of two contenders. Files add `verdict_of_b` and the verdict in words (crate `render`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub metric: Metric,
    /// The better of the two by its estimate.
    pub a: String,
    pub b: String,
    /// The verdict for `a` over `b`. `Slower` never occurs, because the better of the two comes first.
    pub verdict: Verdict,
    /// Why there is no verdict; `None` if there is one, and in a study's cell of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Unmeasurable>,
    /// How many times better a is than b: b/a for times and memory, a/b for throughput, as the geometric mean over
    /// rounds. `null` if nothing can be compared.
    pub advantage: Option<f64>,
    /// 95 % interval of the advantage.
    #[serde(deserialize_with = "facts::reading::interval")]
    pub interval: Option<(f64, f64)>,
    /// The full result of the statistics, in the sense of `advantage`. Cells of older studies lack it.
    pub statistics: Option<Decision>,
}

impl Comparison {
    pub(super) fn new(
        metric: Metric,
        a: &str,
        b: &str,
        decision: Option<Decision>,
        noise: Option<&str>,
    ) -> Comparison {
        let verdict = match decision.as_ref().filter(|_| noise.is_none()).map(|decision| decision.outcome) {
            None => Verdict::NotMeasurable,
            Some(Outcome::Different) => Verdict::Faster,
            Some(Outcome::Equivalent) => Verdict::Equivalent,
            Some(Outcome::Inconclusive) => Verdict::Inconclusive,
        };
        let mut found = Comparison {
            metric,
            a: a.to_owned(),
            b: b.to_owned(),
            verdict,
            reason: None,
            advantage: decision.as_ref().map(|decision| decision.ratio),
            interval: decision.as_ref().map(|decision| decision.interval),
            statistics: decision,
        };
        found.explain(noise, &[]);
        found
    }

    /// Keeps the figures, but removes the verdict if they depend on an impossible result.
    pub(super) fn doubt(&mut self, flags: &[Flag]) {
        if let Some(reason) = self.impossible(flags) {
            (self.verdict, self.reason) = (Verdict::NotMeasurable, Some(reason));
        }
    }

    /// Records why there is no verdict, if that is missing: older reports had it only in words.
    pub(in crate::report) fn explain(&mut self, noise: Option<&str>, flags: &[Flag]) {
        if self.verdict == Verdict::NotMeasurable && self.reason.is_none() {
            let noise = noise.filter(|_| self.metric.depends_on_speed());
            let noise = noise.map(|noise| Unmeasurable::Noise(noise.to_owned()));
            let known = self.impossible(flags).or(noise);
            self.reason = Some(known.unwrap_or(Unmeasurable::FiguresMissing));
        }
    }

    fn impossible(&self, flags: &[Flag]) -> Option<Unmeasurable> {
        let concerns =
            |flag: &&Flag| [&self.a, &self.b].contains(&&flag.framework) && flag.spoils(self.metric);
        let Flag { framework, finding, .. } = flags.iter().find(concerns)?;
        Some(Unmeasurable::Impossible { framework: framework.clone(), finding: finding.clone() })
    }
}

/// The same decision on b/a.
pub(super) fn inverted(decision: Decision) -> Decision {
    let (low, high) = decision.interval;
    let state_slope = decision.state_slope.map(|slope| -slope);
    Decision { ratio: 1.0 / decision.ratio, interval: (1.0 / high, 1.0 / low), state_slope, ..decision }
}
