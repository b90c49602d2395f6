//! Several comparisons, one for each precision, side by side: what each costs and saves.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table, TableStyle};

use super::table::{figure, parity, precision};
use super::{Report, Row, SCHEMA};
use crate::judge::metrics::Metric;

const METRICS: [Metric; 4] =
    [Metric::Load, Metric::PrefillThroughput, Metric::Throughput, Metric::PeakMemory];
const NOTE: &str = "Precisions were measured one after another: a difference between two of them is told, not \
                    tested; verdicts are those of each comparison above.";

/// For a terminal, below the tables of the comparisons.
pub(crate) fn table(reports: &[Report]) -> String {
    format!("{}\n{NOTE}\n", grid(reports, UTF8_FULL_CONDENSED))
}

pub(crate) fn markdown(reports: &[Report]) -> String {
    format!("{}\n\n{NOTE}\n", grid(reports, ASCII_MARKDOWN))
}

pub(crate) fn json(reports: &[Report]) -> String {
    let all = serde_json::json!({ "schema": SCHEMA, "reports": reports });
    serde_json::to_string_pretty(&all).expect("reports have string keys and no failing serialiser")
}

/// The lines of all comparisons under one header: each names its precision.
pub(crate) fn csv(reports: &[Report]) -> String {
    let mut text = String::new();
    for (index, report) in reports.iter().enumerate() {
        let lines = super::csv(report);
        let body =
            if index == 0 { lines.as_str() } else { lines.split_once('\n').map_or("", |(_, rest)| rest) };
        text += body;
    }
    text
}

fn grid(reports: &[Report], style: TableStyle) -> String {
    let mut table = Table::new();
    table.load_style(style);
    let titles = METRICS.map(|metric| metric.title().to_owned());
    let ends = ["Parity", "Top-1 of f32", "KL from f32"].map(str::to_owned);
    let header = ["Precision", "Framework"].map(str::to_owned).into_iter().chain(titles).chain(ends);
    table.set_header(header);
    for row in reports.iter().flat_map(|report| &report.rows) {
        let figures = METRICS.map(|metric| figure(row, metric));
        let (top1, kl) = loss(row);
        let start = [precision(row), row.framework.clone()];
        table.add_row(start.into_iter().chain(figures).chain([parity(row), top1, kl]));
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Against the unquantised model in f32. Above 16 bits it is what the parity gate itself found.
fn loss(row: &Row) -> (String, String) {
    let Some(agreement) = &row.agreement else { return ("–".into(), "–".into()) };
    let (top1, kl) = match agreement.quantisation_loss {
        Some(loss) => (loss.top1, loss.mean_kl),
        None => (agreement.top1, agreement.mean_kl),
    };
    (format!("{:.1} %", top1 * 100.0), format!("{kl:.1e}"))
}
