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
    let metrics = if metrics.is_empty() { &METRICS } else { metrics };
    match format {
        Format::Table if found.records.is_empty() => String::new(),
        Format::Table => format!("{}\n", table(&found.records, metrics, UTF8_FULL_CONDENSED)),
        Format::Markdown => format!("{}\n", table(&found.records, metrics, ASCII_MARKDOWN)),
        Format::Json => document("records", &found.records, found),
        Format::Csv => flat::csv(&found.records.iter().map(flat::line).collect::<Vec<_>>()),
    }
}

/// `{"schema": 1, NAME: .., "skipped": ..}`
pub(super) fn document(name: &str, content: &impl serde::Serialize, found: &Found) -> String {
    let document = json!({"schema": history::SCHEMA, name: content, "skipped": found.skipped});
    format!("{document:#}\n")
}

fn table(records: &[Record], metrics: &[Metric], style: TableStyle) -> Table {
    let several = several_machines(records.iter().map(|record| record.machine.fingerprint.as_str()));
    let mut header = vec!["Time (UTC)", "Framework", "Model", "Precision", "Prompts → new tokens"];
    let first = header.len();
    header.extend(metrics.iter().map(|metric| metric.title()));
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
        line.extend(metrics.iter().map(|metric| figure(record.metrics.get(metric.name()))));
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
    for column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// To the minute.
pub(super) fn time(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}

/// With its interval, where there is one.
pub(super) fn figure(figure: Option<&Figure>) -> String {
    let Some(figure) = figure else { return "–".into() };
    match figure.interval {
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
