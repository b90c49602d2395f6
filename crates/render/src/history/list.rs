//! The records themselves.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table, TableStyle};
use history::{Figure, Record};
use serde_json::json;

use super::{Found, filter, flat};
use crate::cli::Format;
use crate::judge::metrics::Metric;
use crate::report::number;

const METRICS: [Metric; 4] = [Metric::Throughput, Metric::Latency, Metric::Load, Metric::PeakMemory];

/// The table has these metrics; the other formats have all.
pub(super) fn rendered(found: &Found, metrics: &[Metric], format: Format) -> String {
    // The default fits a terminal: one interval, of what people look at first.
    let (metrics, intervals) = if metrics.is_empty() { (&METRICS[..], 1) } else { (metrics, metrics.len()) };
    let table = |style| table(&found.records, metrics, intervals, style);
    match format {
        Format::Table if found.records.is_empty() => String::new(),
        Format::Table => format!("{}\n", table(UTF8_FULL_CONDENSED)),
        Format::Markdown => format!("{}\n", table(ASCII_MARKDOWN)),
        Format::Json => document("records", &found.records, found),
        Format::Csv => flat::csv(&found.records.iter().map(flat::line).collect::<Vec<_>>()),
    }
}

/// `{"schema": 1, NAME: .., "skipped": ..}`
pub(super) fn document(name: &str, content: &impl serde::Serialize, found: &Found) -> String {
    let document = json!({"schema": history::SCHEMA, name: content, "skipped": found.skipped});
    format!("{document:#}\n")
}

/// The first `intervals` metrics with theirs.
fn table(records: &[Record], metrics: &[Metric], intervals: usize, style: TableStyle) -> Table {
    let several = several_machines(records.iter().map(|record| record.machine.fingerprint.as_str()));
    let titles: Vec<String> = metrics.iter().map(|&metric| title(metric)).collect();
    let mut header = vec!["Time (UTC)", "Framework", "Model", "Precision", "Prompts → new tokens"];
    let first = header.len();
    header.extend(titles.iter().map(String::as_str));
    header.extend(["Parity", "Commit"]);
    header.extend(several.then_some("Machine"));
    let lines = records.iter().map(|record| {
        let case = &record.case;
        let mut line = vec![
            time(&record.time),
            record.framework.clone(),
            case.model.clone(),
            case.precision.clone(),
            filter::case(case),
        ];
        let figures = metrics.iter().enumerate().map(|(at, metric)| {
            let figure = record.metrics.get(metric.name());
            figure.map_or("–".into(), |figure| self::figure(figure, at < intervals))
        });
        line.extend(figures);
        line.extend([parity(record), filter::commit(record)]);
        line.extend(several.then(|| filter::machine(record)));
        line
    });
    grid(&header, lines, first..first + metrics.len(), style)
}

pub(super) fn several_machines<'a>(mut fingerprints: impl Iterator<Item = &'a str>) -> bool {
    let first = fingerprints.next();
    fingerprints.any(|fingerprint| Some(fingerprint) != first)
}

/// Of figures in the columns `right`.
pub(super) fn grid(
    header: &[&str],
    lines: impl Iterator<Item = Vec<String>>,
    right: std::ops::Range<usize>,
    style: TableStyle,
) -> Table {
    let mut table = Table::new();
    table.load_style(style);
    table.set_header(header);
    table.add_rows(lines);
    for column in table.column_iter_mut().skip(right.start).take(right.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// To the minute.
pub(super) fn time(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}

/// "throughput (tok/s)"
pub(super) fn title(metric: Metric) -> String {
    format!("{} ({})", metric.name(), metric.unit())
}

fn figure(figure: &Figure, with_interval: bool) -> String {
    match figure.interval.filter(|_| with_interval) {
        Some((low, high)) => format!("{} ({} … {})", number(figure.median), number(low), number(high)),
        None => number(figure.median),
    }
}

/// What was found, or why nothing was.
fn parity(record: &Record) -> String {
    let found = record.parity.as_ref().map(|parity| parity.text.as_str());
    let interrupted = if record.interrupted { ", interrupted" } else { "" };
    match (record.state.as_str(), found) {
        ("measured", found) => format!("{}{interrupted}", found.unwrap_or("not checked")),
        (state @ ("struck" | "labelled"), Some(found)) => format!("{state}: {found}{interrupted}"),
        (state, _) => format!("{}{interrupted}", state.replace('_', " ")),
    }
}
