//! The layout that scripts of this field read: `inference_metrics.json` and `inference_metrics.csv`, and their pictures.

use std::path::Path;

use charts::Measured;
use history::Record;
use serde::ser::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Found;
use super::flat::{self, Line};
use crate::failure::{Failure, Result};
use crate::judge::metrics::Metric;
use crate::{page, results};

/// One object of `runs`, its keys in the order of the columns.
struct Run(Line);

impl Serialize for Run {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Writes each file of the layout whole or not at all. Records without figures that count (failed, unsupported,
/// struck) have no place in a layout that knows no states, and are left out.
pub(super) fn export(found: &Found, directory: &Path) -> Result<()> {
    let cannot = |what: &Path, error: std::io::Error| {
        Failure::usage(format!("cannot write {}: {error}", what.display()))
    };
    let exported: Vec<&Record> = found.records.iter().filter(|record| is_exported(record)).collect();
    std::fs::create_dir_all(directory).map_err(|error| cannot(directory, error))?;
    let mut files = layout(&exported);
    files.extend(pictures(&exported)?);
    for (name, contents) in files {
        results::write_whole(directory, name, &contents)
            .map_err(|error| cannot(&directory.join(name), error))?;
    }
    let left_out = found.records.len() - exported.len();
    let why = match left_out {
        0 => String::new(),
        _ => format!("; {left_out} left out, which failed, were struck or could not run"),
    };
    eprintln!(
        "exported {} of {} records of {} to {}{why}",
        exported.len(),
        found.records.len(),
        found.path.display(),
        directory.display()
    );
    Ok(())
}

fn is_exported(record: &Record) -> bool {
    ["measured", "labelled"].contains(&record.state.as_str())
        && record.metrics.contains_key(Metric::Throughput.name())
}

/// The layout's pictures by name.
fn pictures(records: &[&Record]) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let (case, of_case) = compared(records);
    let runs: Vec<Measured> = of_case.iter().map(|record| measured(record)).collect();
    let optimised = charts::optimisation_comparison(&runs, &case, &page::KNOWN);
    Ok(vec![
        ("optimization_comparison.png", page::png(&optimised)?),
        ("performance_over_time.png", page::png(&page::performance_over_time(records))?),
    ])
}

/// The records of one machine and case, and what that is: of those that were run with optimisations and without them,
/// or else of all, the one with the most records. Figures of different cases have no place in one picture.
fn compared<'a>(records: &[&'a Record]) -> (String, Vec<&'a Record>) {
    let mut groups: Vec<(String, Vec<&Record>)> = Vec::new();
    for record in records {
        let case = &record.case;
        let title = format!(
            "{} {} on {}, {} threads, batch {}, {} + {} tokens; {} ({})",
            case.model,
            case.precision,
            case.device,
            case.threads,
            case.batch,
            middle(&case.prompt_tokens).unwrap_or_default(),
            case.new_tokens,
            record.machine.cpu,
            record.machine.fingerprint,
        );
        match groups.iter_mut().find(|(earlier, _)| *earlier == title) {
            Some((_, group)) => group.push(record),
            None => groups.push((title, vec![record])),
        }
    }
    let rank = |group: &[&Record]| {
        let optimised = group.iter().filter(|record| is_optimised(record)).count();
        (optimised > 0 && optimised < group.len(), group.len())
    };
    groups.into_iter().max_by_key(|(_, group)| rank(group)).unwrap_or_default()
}

/// Variants and arms of a framework share its name: optimised or not is what sets them apart.
fn measured(record: &Record) -> Measured {
    let median = |metric: Metric| record.metrics.get(metric.name()).map(|figure| figure.median);
    let framework = record.framework.split(['-', ' ', '@']).next().unwrap_or_default();
    Measured {
        name: framework.to_owned(),
        framework: framework.to_owned(),
        optimised: is_optimised(record),
        tokens_per_second: median(Metric::Throughput),
        ms_per_token: median(Metric::Latency),
        total_seconds: median(Metric::Total).map(|ms| ms / 1e3),
        memory_mb: median(Metric::PeakMemory).map(|gigabytes| gigabytes * 1e3),
    }
}

/// Whether everything was on that scripts of this field call optimisation: graph or JIT, fused kernels, KV cache.
fn is_optimised(record: &Record) -> bool {
    record.optimised.unwrap_or(record.case.jit) && record.case.kv_cache != "off"
}

/// The layout's tables by name, oldest record first.
fn layout(records: &[&Record]) -> Vec<(&'static str, Vec<u8>)> {
    let lines: Vec<Line> = records.iter().map(|record| line(record)).collect();
    let csv = flat::csv(&lines);
    let runs: Vec<Run> = lines.into_iter().map(Run).collect();
    // An object with one key; `json!` would sort those of the runs.
    let runs = serde_json::to_string_pretty(&std::collections::BTreeMap::from([("runs", runs)]));
    let json = runs.expect("plain data serialises") + "\n";
    vec![("inference_metrics.json", json.into_bytes()), ("inference_metrics.csv", csv.into_bytes())]
}

/// The columns of the layout first, in its units; then ours.
fn line(record: &Record) -> Line {
    let case = &record.case;
    let median = |metric: Metric| record.metrics.get(metric.name()).map(|figure| figure.median);
    let columns = [
        ("run_name", json!(format!("{}/{}", record.run, record.framework))),
        ("timestamp", json!(record.time)),
        ("optimized", json!(is_optimised(record))),
        ("prompt_length", json!(middle(&case.prompt_tokens))),
        ("generated_length", json!(case.new_tokens)),
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

/// As `total_time` is the median over prompts: of several prompts, the one in the middle, of two the shorter.
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
