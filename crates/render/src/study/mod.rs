//! Renderings of a study for people, and as CSV.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table, TableStyle};

use super::cell::{Cell, CellRow};
use super::columns::Column;
use super::kinds::Kind;
use super::{Document, View, ab, cell};
use crate::axes::{Axis, Settings};
use crate::judge::metrics::Metric;
use crate::report::{State, Summary};

pub(super) fn table(document: &Document) -> String {
    let mut text = format!("{}\n\n{}\n", heading(document), grid(document, UTF8_FULL_CONDENSED));
    if let Some(curve) = curve(document, UTF8_FULL_CONDENSED) {
        text += &format!("\n{curve}\n");
    }
    for line in findings(document) {
        text += &format!("{line}\n");
    }
    if !document.analysis.is_empty() {
        text += &format!("\n{}\n", crate::report::wrapped(&document.analysis));
    }
    text += &format!("\nEvery comparison, and report.html: {}\n", document.results);
    text
}

pub(super) fn markdown(document: &Document) -> String {
    let mut text = format!("{}\n\n{}\n\n", heading(document), grid(document, ASCII_MARKDOWN));
    if let Some(curve) = curve(document, ASCII_MARKDOWN) {
        text += &format!("{curve}\n\n");
    }
    for line in findings(document) {
        text += &format!("- {line}\n");
    }
    if !document.analysis.is_empty() {
        text += &format!("\n{}\n", crate::report::wrapped(&document.analysis));
    }
    text
}

fn grid(document: &Document, style: TableStyle) -> String {
    match &document.view {
        View::Sweep(kind) => sweep(document, *kind, style),
        View::Ab(arms) => ab::grid(document, arms, style),
    }
}

fn sweep(document: &Document, kind: Kind, style: TableStyle) -> String {
    let (axes, columns) = (axes(document), kind.columns());
    let mut table = Table::new();
    table.load_style(style);
    let titles = axes.iter().map(|axis| axis.title().to_owned()).chain(["Framework".to_owned()]);
    table.set_header(titles.chain(columns.iter().map(|column| column.title())));
    for cell in &document.cells {
        let place =
            || axes.iter().map(|axis| cell.settings.get(axis).map_or("–".into(), ToString::to_string));
        for row in &cell.rows {
            let figures = columns.iter().map(|column| column.text(cell, row, &document.scaling));
            table.add_row(place().chain([row.framework.clone()]).chain(figures));
        }
        if cell.refused.is_some() {
            let mut figures = vec!["–".to_owned(); columns.len()];
            if let Some(last) = figures.last_mut() {
                *last = "not run".into();
            }
            table.add_row(place().chain(["all".to_owned()]).chain(figures));
        }
    }
    align(&mut table, axes.len() + 1);
    table.to_string()
}

pub(super) fn align(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Iterations from the first, of a study of warm-up.
fn curve(document: &Document, style: TableStyle) -> Option<String> {
    if document.view != View::Sweep(Kind::Warmup) {
        return None;
    }
    let rows: Vec<&CellRow> = document.cells.iter().flat_map(|cell| &cell.rows).collect();
    let longest = rows.iter().map(|row| row.steadiness.curve.len()).max().filter(|&longest| longest > 0)?;
    let mut table = Table::new();
    table.load_style(style);
    let titles =
        rows.iter().flat_map(|row| [format!("{} first token (ms)", row.framework), "ms a token".into()]);
    table.set_header(["Iteration".to_owned()].into_iter().chain(titles));
    for index in 0..longest {
        let figures = rows.iter().flat_map(|row| {
            let point = row.steadiness.curve.get(index);
            let text = |value: Option<f64>| value.map_or("–".to_owned(), crate::report::number);
            [text(point.map(|point| point.first_token_ms)), text(point.and_then(|point| point.gap_ms))]
        });
        table.add_row([(index + 1).to_string()].into_iter().chain(figures));
    }
    align(&mut table, 1);
    Some(table.to_string())
}

/// A line for each cell, framework and figure.
pub(super) fn csv(document: &Document) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let axes: Vec<Axis> =
        document.planned.first().into_iter().flat_map(|settings| settings.keys().copied()).collect();
    let names = axes.iter().map(|axis| axis.title().to_lowercase().replace(' ', "_"));
    let rest =
        ["contender", "state", "parity", "metric", "median", "min", "max", "rounds"].map(str::to_owned);
    let mut write = |record: Vec<String>| writer.write_record(record).expect("memory can be written");
    write(names.chain(rest).collect());
    let word = |state: State| {
        let value = serde_json::to_value(state).expect("a name");
        value.as_str().unwrap_or_default().to_owned()
    };
    for cell in &document.cells {
        let place =
            || axes.iter().map(|axis| cell.settings.get(axis).map_or(String::new(), ToString::to_string));
        let rounds = cell.rounds.to_string();
        let mut line = |row: [String; 3], metric: String, figures: [Option<f64>; 3]| {
            let figures = figures.map(|value| value.map_or(String::new(), |value| value.to_string()));
            write(place().chain(row).chain([metric]).chain(figures).chain([rounds.clone()]).collect());
        };
        if cell.refused.is_some() {
            line([String::new(), "not_run".into(), "not run".into()], String::new(), [None; 3]);
        }
        for row in &cell.rows {
            let start = || [row.framework.clone(), word(row.state), row.parity.clone()];
            if row.metrics.is_empty() {
                line(start(), String::new(), [None; 3]);
            }
            for (metric, figure) in &row.metrics {
                let figures = [figure.median, figure.min, figure.max].map(Some);
                line(start(), metric.name().to_owned(), figures);
            }
            let View::Sweep(kind) = &document.view else { continue };
            for column in kind.columns().into_iter().filter(|column| !matches!(column, Column::Metric(_))) {
                if let (Some(name), Some(value)) = (column.name(), column.value(cell, row)) {
                    line(start(), name, [Some(value), None, None]);
                }
            }
        }
    }
    String::from_utf8(writer.into_inner().expect("memory can be flushed")).expect("fields are UTF-8")
}
