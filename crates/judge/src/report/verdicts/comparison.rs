//! One verdict: a pair of contenders on one metric.

use serde::{Deserialize, Serialize};
use statistics::{Decision, MIN_ROUNDS, Outcome};

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
    /// The interval of the advantage that agrees with the verdict: those of the whole report hold together with 95 %
    /// certainty. Memory has none, and a pair with too few rounds for a verdict.
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
            interval: decision
                .as_ref()
                .filter(|decision| decision.rounds >= MIN_ROUNDS)
                .map(|it| it.interval),
            statistics: decision,
        };
        found.explain(noise, &[]);
        found
    }

    /// The verdict on a figure that hardly varies, such as memory, where less is better: processes differ by less than what
    /// the figure means. It is decided if the ranges over at least [`MIN_ROUNDS`] processes have nothing in common, and
    /// equal if all are within the margin.
    pub(super) fn by_range(
        metric: Metric,
        labels: [&str; 2],
        figures: [&[Option<f64>]; 2],
        margin: f64,
    ) -> Comparison {
        let known: [Vec<f64>; 2] = figures.map(|figures| figures.iter().copied().flatten().collect());
        let means: Option<Vec<f64>> =
            known.iter().map(|figures| statistics::geometric_mean(figures)).collect();
        let [a, b] = labels;
        let Some(means) = means else { return Comparison::new(metric, a, b, None, None) };
        let (better, worse) = if means[0] <= means[1] { (0, 1) } else { (1, 0) };
        let most = |place: usize| known[place].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = |place: usize| known[place].iter().copied().fold(f64::INFINITY, f64::min);
        let widest = most(worse).max(most(better)) / least(better).min(least(worse));
        let verdict = if known.iter().any(|figures| figures.len() < MIN_ROUNDS) {
            Verdict::Inconclusive
        } else if widest < 1.0 + margin {
            Verdict::Equivalent
        } else if most(better) < least(worse) {
            Verdict::Faster
        } else {
            Verdict::Inconclusive
        };
        Comparison {
            metric,
            a: labels[better].to_owned(),
            b: labels[worse].to_owned(),
            verdict,
            reason: None,
            advantage: Some(means[worse] / means[better]),
            interval: None,
            statistics: None,
        }
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
