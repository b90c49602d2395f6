//! The finding about one metric, and its sentence.

use serde::{Deserialize, Serialize};

use crate::metrics;
use crate::report::number;

/// The finding about one metric of one framework.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    #[serde(deserialize_with = "facts::reading::interval")]
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
    pub sentence: String,
    /// The reason why there is no verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The verdict on one metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Regression,
    Worse,
    Better,
    Equivalent,
    Inconclusive,
    NotMeasurable,
}

impl Finding {
    /// The finding in one sentence. `why` is the reason for a missing verdict; `gates` says whether exceeding the
    /// threshold is a regression.
    pub(super) fn told(&self, why: Option<&str>, gates: bool) -> String {
        let Finding { framework, metric, unit, threshold, .. } = self;
        let name = metrics::words(metric);
        let (Some(baseline), Some(current), Some(ratio), Some((low, high))) =
            (self.baseline, self.current, self.ratio, self.interval)
        else {
            return format!(
                "{framework}: {name} is not measurable: {}",
                why.unwrap_or("there are no figures")
            );
        };
        let change = percent(ratio - 1.0);
        let figures = format!("{} against {} {unit}", number(current), number(baseline));
        let (a, b) = self.rounds;
        let rounds = if a == b { format!("{a} rounds") } else { format!("{a} and {b} rounds") };
        let interval = format!("{}, {rounds}", interval_words((low, high)));
        let limit = 100.0 * threshold;
        match self.verdict {
            Verdict::Regression => format!(
                "{framework}: {name} regressed: {change}, {figures} ({interval}), beyond the threshold of {limit} %"
            ),
            Verdict::Worse if gates => {
                format!(
                    "{framework}: {name} is worse, within the threshold of {limit} %: {change}, {figures} ({interval})"
                )
            }
            Verdict::Worse => format!("{framework}: {name} is worse: {change}, {figures} ({interval})"),
            Verdict::Better => format!("{framework}: {name} is better: {change}, {figures} ({interval})"),
            Verdict::Equivalent => {
                format!(
                    "{framework}: {name} is equivalent within {limit} %: {change}, {figures} ({interval})"
                )
            }
            Verdict::Inconclusive => {
                let (p, needed) = (self.p_adjusted.unwrap_or(1.0), self.more_rounds());
                format!(
                    "{framework}: {name} is inconclusive: {change}, {figures} ({interval}, adjusted p = {p:.2}){needed}"
                )
            }
            Verdict::NotMeasurable => {
                let why = why.unwrap_or("there are no figures");
                format!("{framework}: {name} is not measurable: {why}: {change}, {figures} ({interval})")
            }
        }
    }

    /// What the table of findings does not say already; `None` if it says all.
    pub fn remark(&self) -> Option<String> {
        let name = metrics::words(&self.metric);
        match self.verdict {
            Verdict::Regression => {
                Some(format!("{name} is worse by more than the threshold of {} %", 100.0 * self.threshold))
            }
            Verdict::Inconclusive => {
                let needed = self.more_rounds();
                let needed = needed.strip_prefix("; ")?;
                Some(format!("{name} is inconclusive: {needed}"))
            }
            // Those without a verdict are told together, by their reason.
            Verdict::NotMeasurable | Verdict::Worse | Verdict::Better | Verdict::Equivalent => None,
        }
    }

    /// The number of rounds that would decide, if the estimate exceeds the threshold.
    fn more_rounds(&self) -> String {
        match (self.rounds_needed, self.is_beyond()) {
            (Some(rounds), true) => {
                format!("; about {rounds} rounds in each run would tell (--rounds {rounds})")
            }
            (None, true) => "; more rounds would tell (--rounds)".to_owned(),
            _ => String::new(),
        }
    }

    /// Whether the estimate, certain or not, exceeds the threshold.
    pub fn is_beyond(&self) -> bool {
        self.worse.is_some_and(|worse| worse > 1.0 + self.threshold)
    }
}

impl Verdict {
    /// The verdict for tables. Only a regression is in capitals.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Regression => "REGRESSION",
            Verdict::Worse => "worse",
            Verdict::Better => "better",
            Verdict::Equivalent => "equivalent",
            Verdict::Inconclusive => "inconclusive",
            Verdict::NotMeasurable => "not measurable",
        }
    }
}

/// A share as "+8.0 %", or as "120x" if it is too large to read in percent.
pub fn percent(share: f64) -> String {
    match share {
        share if !share.is_finite() => "not known".to_owned(),
        share if share < 100.0 => format!("{:+.1} %", 100.0 * share),
        share => format!("{:.0}x", share + 1.0),
    }
}

/// The interval of a ratio: "95 % interval -1.0 % to +8.0 %".
pub fn interval_words((low, high): (f64, f64)) -> String {
    if low <= 0.001 || !high.is_finite() || high > 100.0 {
        return "too few rounds for an interval".to_owned();
    }
    format!("95 % interval {} to {}", percent(low - 1.0), percent(high - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_that_says_nothing_is_not_told() {
        assert_eq!(interval_words((0.99, 1.08)), "95 % interval -1.0 % to +8.0 %");
        assert_eq!(interval_words((1e-9, 1e9)), "too few rounds for an interval");
        assert_eq!(interval_words((0.0, f64::INFINITY)), "too few rounds for an interval");
    }
}
