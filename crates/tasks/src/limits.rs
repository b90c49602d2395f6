//! Several runs as one table: how near each engine is to the limit of the machine, and how it compares with
//! the other columns.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use setup::tooling::BadInput;

/// A phase, the metrics of a run's comparisons that belong to it, and the one that is shown.
const PHASES: [(&str, &[&str], &str); 3] = [
    ("decode", &["throughput"], "throughput"),
    ("prefill", &["first_token"], "prefill_throughput"),
    ("encoding", &["encoding_throughput", "single_text"], "encoded_tokens"),
];

/// A run is one of prefill where arithmetic bounds it, and of decoding otherwise: a few rows of a short prompt wait for
/// memory as decoding does.
const COMPUTE: &str = "compute";

/// The table of these reports, numbered from 1, a row for each engine of a run.
pub(crate) fn table(reports: &[Value]) -> Result<String> {
    let mut others: Vec<&str> = Vec::new();
    for row in reports.iter().flat_map(rows).filter(|row| !is_tuned(row)) {
        if !others.contains(&name(row)) {
            others.push(name(row));
        }
    }
    let mut text = String::from("| run | phase | precision | engine | tok/s | share of the limit |");
    others.iter().for_each(|other| _ = write!(text, " ÷ {other} |"));
    text += "\n|---:|---|---|---|---:|---:|";
    others.iter().for_each(|_| text += "---:|");
    text.push('\n');
    let mut lines = 0;
    for (phase, compared, shown) in PHASES {
        for (run, report) in (1..).zip(reports) {
            let measured = || rows(report).filter(|row| row["state"] == "measured");
            let share = |row: &Value| row["limit"][phase]["median"].as_f64();
            let is_shown = |row: &Value| {
                let is_of_prefill = row["limit"]["prefill"]["bound"] == COMPUTE;
                share(row).is_some() && is_of_prefill == (phase == "prefill")
            };
            for row in measured().filter(|row| is_tuned(row) && is_shown(row)) {
                let own = metric(row, shown).context("a measured row without its metric")?;
                let precision = row["precision"]["observed"].as_str().unwrap_or("?");
                let share = 100.0 * share(row).unwrap_or_default();
                write!(text, "| {run} | {phase} | {precision} | {} | {own:.0} | {share:.0} % |", name(row))?;
                for other in &others {
                    let other = measured().find(|row| name(row) == *other);
                    let ratio = other.and_then(|other| Some((other, own / metric(other, shown)?)));
                    match ratio {
                        None => text += " – |",
                        Some((other, ratio)) => {
                            let mark = if is_decided(report, compared, [name(row), name(other)]) {
                                ""
                            } else {
                                "≈ "
                            };
                            write!(text, " {mark}{ratio:.2} |")?;
                        }
                    }
                }
                text.push('\n');
                lines += 1;
            }
        }
    }
    if lines == 0 {
        return Err(BadInput("none of these runs has an engine with a share of the limit".into()).into());
    }
    Ok(text)
}

/// The report of a run's directory.
pub(crate) fn report(results: &Path) -> Result<Value> {
    let file = results.join("report.json");
    let text = std::fs::read_to_string(&file);
    let text = text.map_err(|error| BadInput(format!("cannot read {}: {error}", file.display())))?;
    serde_json::from_str(&text).with_context(|| file.display().to_string())
}

fn rows(report: &Value) -> impl Iterator<Item = &Value> {
    report["rows"].as_array().into_iter().flatten()
}

fn name(row: &Value) -> &str {
    row["framework"].as_str().unwrap_or("?")
}

fn is_tuned(row: &Value) -> bool {
    row["kind"] == "tuned"
}

fn metric(row: &Value, name: &str) -> Option<f64> {
    row["metrics"].as_array()?.iter().find(|metric| metric["metric"] == name)?["typical"].as_f64()
}

/// Whether the run has a verdict on this pair: a difference, or equivalence.
fn is_decided(report: &Value, metrics: &[&str], pair: [&str; 2]) -> bool {
    let mut comparisons = report["comparisons"].as_array().into_iter().flatten();
    let of_pair = |comparison: &&Value| {
        let (a, b) = (comparison["a"].as_str(), comparison["b"].as_str());
        metrics.iter().any(|metric| comparison["metric"] == *metric)
            && a != b
            && pair.iter().all(|name| [a, b].contains(&Some(*name)))
    };
    comparisons.find(of_pair).is_some_and(|comparison| comparison["verdict"] != "inconclusive")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(name: &str, kind: &str, throughput: f64, prefill: &str) -> Value {
        let metric = |name: &str, typical: f64| json!({"metric": name, "typical": typical});
        json!({
            "framework": name, "kind": kind, "state": "measured", "precision": {"observed": "f32"},
            "limit": {"decode": {"median": 0.5}, "prefill": {"median": 0.7, "bound": prefill}},
            "metrics": [metric("throughput", throughput), metric("prefill_throughput", 10.0 * throughput)],
        })
    }

    #[test]
    fn each_engine_has_a_row_for_a_run_and_a_ratio_to_every_other_column() {
        let comparison = json!({"metric": "throughput", "a": "y", "b": "x", "verdict": "slower"});
        let short = json!({"rows": [row("x", "tuned", 60.0, "memory"), row("y", "stock", 40.0, "memory")], "comparisons": [comparison]});
        let long = json!({"rows": [row("x", "tuned", 60.0, "compute"), row("z", "stock", 120.0, "compute")]});
        let table = table(&[short, long]).unwrap();
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| 1 | decode | f32 | x | 60 | 50 % | 1.50 | – |",
                "| 2 | prefill | f32 | x | 600 | 70 % | – | ≈ 0.50 |",
            ]
        );
    }

    #[test]
    fn runs_without_an_engine_are_refused() {
        assert!(table(&[json!({"rows": [row("y", "stock", 1.0, "compute")]})]).is_err());
    }
}
