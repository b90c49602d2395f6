//! The list of records.

use history::{Figure, Record, Skipped};
use judge::case;
use judge::metrics::Metric;
use judge::report::number;
use serde_json::json;

use super::flat;
use crate::Format;
use crate::screen::Screen;
use crate::table::{Column, Table};
use crate::words::{self, or_dash};

const METRICS: [Metric; 4] = [Metric::Throughput, Metric::Latency, Metric::Load, Metric::PeakMemory];

/// The records, one by one. Tables show these `metrics`, or the default ones if there are none. The other formats show
/// all.
pub fn list(
    records: &[Record],
    skipped: &[Skipped],
    metrics: &[Metric],
    format: Format,
    screen: &Screen,
) -> String {
    // The default fits a terminal: only the most important metric has its interval.
    let (metrics, intervals) = if metrics.is_empty() { (&METRICS[..], 1) } else { (metrics, metrics.len()) };
    let table = || table(records, metrics, intervals);
    match format {
        Format::Table if records.is_empty() => String::new(),
        Format::Table => format!("{}\n", table().terminal(screen)),
        Format::Markdown => format!("{}\n", table().markdown()),
        Format::Json => document("records", &records, skipped),
        Format::Csv => flat::table(&records.iter().map(flat::line).collect::<Vec<_>>()).csv(),
    }
}

/// A JSON document of the form `{"schema": 1, NAME: .., "skipped": ..}`.
pub(super) fn document(name: &str, content: &impl serde::Serialize, skipped: &[Skipped]) -> String {
    let document = json!({"schema": history::SCHEMA, name: content, "skipped": skipped});
    format!("{document:#}\n")
}

/// The table; only the first `intervals` metrics show theirs.
fn table(records: &[Record], metrics: &[Metric], intervals: usize) -> Table {
    let several = several_machines(records.iter().map(|record| record.machine.fingerprint.as_str()));
    let start = ["Time (UTC)", "Framework", "Model", "Precision", "Prompts → new tokens"].map(Column::left);
    let figures =
        metrics.iter().map(|&metric| Column::right(format!("{} ({})", metric.name(), metric.unit())));
    let end = ["Parity", "Commit"].into_iter().chain(several.then_some("Machine")).map(Column::left);
    let mut table = Table::new(start.into_iter().chain(figures).chain(end));
    for record in records {
        let case = &record.case;
        let start = [
            words::minute(&record.time),
            record.framework.clone(),
            case.model.clone(),
            case.precision.clone(),
            case::in_short(case),
        ];
        let figures = metrics.iter().enumerate().map(|(at, metric)| {
            or_dash(record.metrics.get(metric.name()), |found| figure(found, at < intervals))
        });
        let end = [parity(record), words::commit(record)];
        let machine = several.then(|| words::machine(record));
        table.add(start.into_iter().chain(figures).chain(end).chain(machine));
    }
    table
}

pub(super) fn several_machines<'a>(mut fingerprints: impl Iterator<Item = &'a str>) -> bool {
    let first = fingerprints.next();
    fingerprints.any(|fingerprint| Some(fingerprint) != first)
}

fn figure(figure: &Figure, with_interval: bool) -> String {
    match figure.interval.filter(|_| with_interval) {
        Some((low, high)) => format!("{} ({} … {})", number(figure.median), number(low), number(high)),
        None => number(figure.median),
    }
}

/// The result of parity, or the reason why there is none.
fn parity(record: &Record) -> String {
    let found = record.parity.as_ref().map(|parity| parity.text.as_str());
    let interrupted = if record.interrupted { ", interrupted" } else { "" };
    match (record.state.as_str(), found) {
        ("measured", found) => format!("{}{interrupted}", found.unwrap_or("not checked")),
        (state @ ("struck" | "labelled"), Some(found)) => format!("{state}: {found}{interrupted}"),
        (state, _) => format!("{}{interrupted}", state.replace('_', " ")),
    }
}
