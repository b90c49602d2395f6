//! Every gap between two tokens: the latencies of which reports hold medians.

use std::collections::BTreeMap;

use crate::evidence::Evidence;

/// Milliseconds by framework, of the measured iterations of the processes that stand and did their job.
pub fn gaps_ms(evidence: &Evidence) -> BTreeMap<String, Vec<f64>> {
    let mut gaps: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in evidence.runs.iter().filter(|run| run.is_complete()) {
        let cases = run.iterations().flat_map(|iteration| &iteration.cases);
        let each = cases.flat_map(|case| &case.gaps_ns).map(|&ns| ns as f64 / 1e6);
        gaps.entry(run.framework.clone()).or_default().extend(each);
    }
    gaps
}
