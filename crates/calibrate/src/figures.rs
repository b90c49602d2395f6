//! The figures of a simulated process.

use engine_mock::Noise;
use judge::{Metric, WorkKind};
use rand::Rng;

/// The metrics with a share of the error rate. Those that follow another are not simulated: they have its verdict.
pub const METRICS: [Metric; 6] = [
    Metric::Load,
    Metric::ColdStart,
    Metric::Throughput,
    Metric::PeakMemory,
    Metric::FirstToken,
    Metric::Total,
];
/// The one that decides whether rounds go on.
pub const DECIDING: usize = 2;
/// Share of a request's time before its first token.
pub(crate) const PROMPT: f64 = 0.1;
/// σ of peak memory between processes.
const MEMORY_NOISE: f64 = 0.001;

/// The figures of one process, in the order of [`METRICS`].
pub type Figures = [f64; METRICS.len()];

/// The share of the error rate that a metric's hypotheses have together.
pub fn error_share(metric: usize) -> f64 {
    METRICS[metric].error_share(WorkKind::TokenByToken)
}

/// The peak memory of a process, which nothing but chance has an influence on.
pub(crate) fn memory(random: &mut impl Rng) -> f64 {
    Noise { process: MEMORY_NOISE, ..Noise::default() }.of_process(0.0, random).factor()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_that_is_tested_by_itself_is_simulated() {
        let kind = WorkKind::TokenByToken;
        let mut tested = Metric::tested(kind);
        tested.retain(|metric| metric.follows(kind).is_none());
        assert_eq!(METRICS.to_vec(), tested);
        assert_eq!(METRICS[DECIDING], Metric::deciding(kind));
    }
}
