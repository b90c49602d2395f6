//! Every gap between two tokens. Reports hold only their medians.

use std::collections::BTreeMap;

use facts::evidence::Evidence;

/// Gaps by framework in milliseconds, from the measured requests of processes that count and completed their job.
pub(super) fn gaps_ms(evidence: &Evidence) -> BTreeMap<String, Vec<f64>> {
    let mut gaps: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in evidence.runs.iter().filter(|run| run.is_complete()) {
        let each = run.requests().flat_map(|(_, case)| case.timed_gaps()).map(|ns| ns as f64 / 1e6);
        gaps.entry(run.framework.clone()).or_default().extend(each);
    }
    gaps
}
