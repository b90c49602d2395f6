//! From text to vector: the time of the tokenizer, which is the same for all, and then of each framework.

use serde::{Deserialize, Serialize};

use crate::metrics::{self, Metric};
use facts::evidence::Evidence;
use plan::Plan;

/// A batch of texts, from text to vectors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FromText {
    /// The batch's name.
    pub batch: String,
    pub texts: usize,
    /// Time of tokenising all its texts, in milliseconds: geometric mean over rounds, the least and the most.
    pub tokenising_ms: f64,
    pub tokenising_range_ms: (f64, f64),
    /// One for each contender that has a figure.
    pub rows: Vec<FromTextRow>,
}

/// A contender's part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FromTextRow {
    pub framework: String,
    /// Time of the request, in milliseconds: geometric mean over rounds.
    pub request_ms: f64,
    /// The sum of both times.
    pub total_ms: f64,
    /// Texts ÷ that sum.
    pub texts_per_second: f64,
}

/// Every batch, if the tokenizer was timed.
pub fn from_text(plan: &Plan, evidence: &Evidence) -> Vec<FromText> {
    let of_case = |case: usize| {
        let rounds = evidence.tokenised.iter().flatten();
        let rounds: Vec<f64> = rounds.filter_map(|round| Some(*round.get(case)? as f64 / 1e6)).collect();
        let tokenising_ms = statistics::geometric_mean(&rounds)?;
        let (texts, _) = plan.work.size(case);
        let row = |label: &str| {
            let times = metrics::by_round_of(Metric::Total, case..case + 1, plan, evidence, label);
            let request_ms = statistics::geometric_mean(&times.into_iter().flatten().collect::<Vec<_>>())?;
            let total_ms = tokenising_ms + request_ms;
            let texts_per_second = texts as f64 * 1e3 / total_ms;
            Some(FromTextRow { framework: label.to_owned(), request_ms, total_ms, texts_per_second })
        };
        Some(FromText {
            batch: plan.work.case_name(case).to_owned(),
            texts,
            tokenising_ms,
            tokenising_range_ms: (
                rounds.iter().copied().fold(f64::INFINITY, f64::min),
                rounds.iter().copied().fold(0.0, f64::max),
            ),
            rows: plan.contenders.iter().filter_map(|contender| row(&contender.label)).collect(),
        })
    };
    (0..plan.work.cases()).filter_map(of_case).collect()
}

#[cfg(test)]
mod tests {
    use protocol::{Marks, Sample};

    use super::*;
    use facts::testing;

    #[test]
    fn both_times_add_up_and_rounds_are_averaged() {
        let plan = testing::plan(&["a", "b"]);
        let sample = Sample { marks_ns: Marks::new(2_000_000, []), ..Sample::default() };
        let mut evidence = Evidence::default();
        assert_eq!(from_text(&plan, &evidence), [], "the tokenizer was not timed");
        for (round, ns) in [1_000_000, 4_000_000].into_iter().enumerate() {
            evidence.runs.push(testing::measured("a", round, Vec::new(), vec![vec![sample.clone()]]));
            evidence.tokenised.push(Ok(vec![ns]));
        }
        let [batch] = &from_text(&plan, &evidence)[..] else { panic!("one case") };
        assert!((batch.tokenising_ms - 2.0).abs() < 1e-9, "{batch:?}");
        assert_eq!(batch.tokenising_range_ms, (1.0, 4.0));
        let [row] = &batch.rows[..] else { panic!("b has no figure") };
        assert_eq!(row.framework, "a");
        assert!((row.total_ms - 4.0).abs() < 1e-9 && (row.texts_per_second - 250.0).abs() < 1e-6, "{row:?}");
    }
}
