//! The layout that scripts of this field read: `inference_metrics.json`, `inference_metrics.csv` and pictures.

use std::collections::BTreeMap;

use ::history::Record;
use judge::metrics::Metric;
use serde::ser::{Serialize, Serializer};
use serde_json::{Value, json};

use super::flat::{self, Line};
use super::optimised::{self, is_optimised};
use super::work::generate;
use crate::pictures::{self, over_time};

/// One object of `runs`, its keys in the order of the columns.
struct Run(Line);

impl Serialize for Run {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The files of the layout with its pictures, by name. `records` are in the order of their times.
pub fn export(records: &[&Record]) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    let optimised = pictures::png(&optimised::picture(records))?;
    let over_time: Vec<&Record> =
        records.iter().copied().filter(|record| over_time::has_place(record)).collect();
    let over_time = pictures::png(&over_time::picture(&over_time::groups(&over_time)))?;
    let mut files = layout(records);
    files.push(("optimization_comparison.png", optimised));
    files.push(("performance_over_time.png", over_time));
    Ok(files)
}

/// Whether a record has a place in the layout. The layout has no states, so only records with valid figures do.
pub fn is_exported(record: &Record) -> bool {
    ["measured", "labelled"].contains(&record.state.as_str())
        && record.metrics.contains_key(Metric::Throughput.name())
}

/// The layout's tables by name, oldest record first.
fn layout(records: &[&Record]) -> Vec<(&'static str, Vec<u8>)> {
    let lines: Vec<Line> = records.iter().map(|record| line(record)).collect();
    let csv = flat::table(&lines).csv();
    let runs: Vec<Run> = lines.into_iter().map(Run).collect();
    // An object with one key, formatted here: `json!` would sort the keys of the runs.
    let runs = serde_json::to_string_pretty(&BTreeMap::from([("runs", runs)]));
    let json = runs.expect("plain data serialises") + "\n";
    vec![("inference_metrics.json", json.into_bytes()), ("inference_metrics.csv", csv.into_bytes())]
}

/// The columns of the layout in its units, then the columns of Photofinish.
fn line(record: &Record) -> Line {
    let case = &record.case;
    let median = |metric: Metric| record.metrics.get(metric.name()).map(|figure| figure.typical);
    let columns = [
        ("run_name", json!(format!("{}/{}", record.run, record.framework))),
        ("timestamp", json!(record.time)),
        ("optimized", json!(is_optimised(record))),
        ("prompt_length", json!(middle(&case.prompt_tokens))),
        generate::generated_length(case),
        ("total_time", json!(median(Metric::Total).map(|ms| ms / 1e3))),
        ("tokens_per_second", json!(median(Metric::Throughput))),
        ("time_per_token", json!(median(Metric::Latency))),
        ("memory_used_mb", json!(median(Metric::PeakMemory).map(|gigabytes| gigabytes * 1e3))),
        ("device", json!(case.device)),
    ];
    let is_theirs = |name: &str| columns.iter().any(|(theirs, _)| *theirs == name);
    let ours = flat::line(record).into_iter().filter(|(name, _)| !is_theirs(name));
    let theirs: Vec<(String, Value)> =
        columns.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    theirs.into_iter().chain(ours).collect()
}

/// The prompt in the middle, because `total_time` is the median over prompts; of two prompts, the shorter one.
fn middle(prompt_tokens: &[usize]) -> Option<usize> {
    let mut sorted = prompt_tokens.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_in_the_middle_stands_for_several() {
        assert_eq!(middle(&[]), None);
        assert_eq!(middle(&[7]), Some(7));
        assert_eq!(middle(&[34, 12]), Some(12));
        assert_eq!(middle(&[34, 12, 100]), Some(34));
    }
}
