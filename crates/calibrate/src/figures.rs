//! The figures of a simulated process.

use std::ops::Range;

use judge::{Metric, WorkKind};

/// The metrics with a share of the error rate. Those that follow another are not simulated: they have its verdict.
pub const METRICS: [Metric; 5] =
    [Metric::Load, Metric::ColdStart, Metric::Throughput, Metric::FirstToken, Metric::Total];
/// The place of throughput.
pub const THROUGHPUT: usize = 2;
/// The places of the metrics of the answer, which decide whether rounds go on.
pub const ANSWER: Range<usize> = 2..5;
/// Share of a request's time before its first token.
pub(crate) const PROMPT: f64 = 0.1;

/// The figures of one process, in the order of [`METRICS`].
pub type Figures = [f64; METRICS.len()];

/// The share of the error rate that a metric's hypotheses have together.
pub fn error_share(metric: usize) -> f64 {
    METRICS[metric].error_share(WorkKind::TokenByToken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_that_is_tested_by_itself_is_simulated() {
        let kind = WorkKind::TokenByToken;
        let mut tested = Metric::tested(kind);
        tested.retain(|metric| metric.follows(kind).is_none() && metric.depends_on_speed());
        let sorted = |metrics: &[Metric]| {
            let mut metrics = metrics.to_vec();
            metrics.sort_unstable();
            metrics
        };
        assert_eq!(sorted(&METRICS), tested);
        assert_eq!(sorted(&METRICS[ANSWER]), sorted(&Metric::questions(kind)));
        assert_eq!(METRICS[THROUGHPUT], Metric::deciding(kind));
    }
}
