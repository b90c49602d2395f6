//! Every gap between two tokens, from `samples.jsonl`: the latencies of which reports hold medians.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use protocol::Event;

#[derive(Deserialize)]
struct Line {
    purpose: String,
    round: usize,
    #[serde(default)]
    attempt: usize,
    framework: String,
    #[serde(default)]
    failure: Option<serde::de::IgnoredAny>,
    events: Vec<Event>,
}

/// Milliseconds by framework, of the processes that count: those of the last attempt at each round that did
/// their job. Lines that cannot be read are passed over: a page with fewer points is better than none.
pub(super) fn gaps(directory: &Path) -> BTreeMap<String, Vec<f64>> {
    let text = std::fs::read_to_string(directory.join("samples.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let measured: Vec<Line> =
        lines.filter(|line| line.purpose == "measure" && line.failure.is_none()).collect();
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    for line in &measured {
        let attempt = last.entry(line.round).or_default();
        *attempt = line.attempt.max(*attempt);
    }
    let mut gaps: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in measured.iter().filter(|line| last.get(&line.round) == Some(&line.attempt)) {
        let of_framework = gaps.entry(line.framework.clone()).or_default();
        for event in &line.events {
            let Event::Iteration(iteration) = event else { continue };
            let cases = iteration.cases.iter().flat_map(|case| &case.gaps_ns);
            of_framework.extend(cases.map(|&ns| ns as f64 / 1e6));
        }
    }
    gaps
}
