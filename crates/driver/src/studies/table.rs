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

/// In words. What a study says of its cells is not split any further.
pub(super) fn summary(document: &Document) -> Summary {
    Summary { heading: heading(document), verdicts: Vec::new(), details: findings(document) }
}

fn heading(document: &Document) -> String {
    let (done, planned) = (document.cells.len(), document.planned.len());
    let cells = if done == planned { format!("{done} cells") } else { format!("{done} of {planned} cells") };
    let rounds: Vec<usize> =
        document.cells.iter().map(|cell| cell.rounds).filter(|&rounds| rounds > 0).collect();
    let rounds = match (rounds.iter().min(), rounds.iter().max()) {
        (Some(least), Some(most)) if least == most => format!(", {least} rounds each"),
        (Some(least), Some(most)) => format!(", {least} to {most} rounds each"),
        _ => String::new(),
    };
    let shared = shared(document);
    let shared = if shared.is_empty() { String::new() } else { format!(" ({})", shared.join(", ")) };
    format!("{}{shared}: {cells}{rounds}", document.study)
}

/// Axes with one value, which have no column.
fn shared(document: &Document) -> Vec<String> {
    let columns = axes(document);
    let first = document.planned.first();
    let single = first.into_iter().flatten().filter(|(axis, _)| !columns.contains(axis));
    single.map(|(axis, value)| format!("{} {value}", axis.title().to_lowercase())).collect()
}

/// Axes that have a column: those that vary and those that the study is named for.
pub(super) fn axes(document: &Document) -> Vec<Axis> {
    let own: &[Axis] = match &document.view {
        View::Sweep(kind) => kind.own_axes(),
        View::Ab(_) => &[Axis::Framework],
    };
    let Some(first) = document.planned.first() else { return Vec::new() };
    let varied = varied(&document.planned);
    first.keys().filter(|axis| own.contains(axis) || varied.contains(axis)).copied().collect()
}

/// Axes on which cells differ.
pub(super) fn varied(planned: &[Settings]) -> Vec<Axis> {
    let Some(first) = planned.first() else { return Vec::new() };
    let varies = |axis: &&Axis| planned.iter().any(|settings| settings.get(axis) != first.get(axis));
    first.keys().filter(varies).copied().collect()
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

fn findings(document: &Document) -> Vec<String> {
    let mut lines = Vec::new();
    let axes = axes(document);
    let name = |cell: &Cell| cell::name(&cell.settings, &axes);
    if document.interrupted {
        let (done, planned) = (document.cells.len(), document.planned.len());
        lines.push(format!("interrupted: {done} of {planned} cells are done; --resume goes on"));
    }
    for cell in &document.cells {
        lines.extend(cell.refused.iter().map(|reason| format!("{}: not run: {reason}", name(cell))));
        for row in cell.rows.iter().filter(|row| row.state != State::Measured) {
            lines.extend(
                row.reasons.iter().map(|reason| format!("{}: {}: {reason}", name(cell), row.framework)),
            );
        }
    }
    lines.extend(document.scaling.iter().filter_map(|scaling| scaling.sentence(&axes)));
    match &document.view {
        View::Sweep(kind) => {
            lines.extend(verdicts(document, *kind));
            lines.extend(short_warmups(document, *kind));
        }
        View::Ab(_) => lines.extend(ab::sentences(document)),
    }
    let mut warnings: Vec<(&str, Vec<String>)> = Vec::new();
    for cell in &document.cells {
        for warning in &cell.warnings {
            match warnings.iter_mut().find(|(text, _)| text == warning) {
                Some((_, cells)) => cells.push(name(cell)),
                None => warnings.push((warning, vec![name(cell)])),
            }
        }
    }
    for (warning, cells) in warnings {
        let place = match cells.len() {
            count if count == document.cells.len() => String::new(),
            1 => format!("{}: ", cells[0]),
            count => format!("{count} cells, {} the first: ", cells[0]),
        };
        lines.push(format!("warning: {place}{warning}"));
    }
    lines
}

/// Of the figure that the study is about, where there were rounds enough.
fn verdicts(document: &Document, kind: Kind) -> Vec<String> {
    let rounds = document.cells.iter().map(|cell| cell.rounds).max().unwrap_or(0);
    let fewest = statistics::MIN_ROUNDS;
    let is_compared = document.cells.iter().any(|cell| cell.rows.len() > 1);
    if !is_compared || rounds == 0 {
        return Vec::new();
    }
    if rounds < fewest {
        return vec![format!(
            "inconclusive: a verdict takes {fewest} rounds in each cell, and there were {rounds} (--rounds {fewest})"
        )];
    }
    let deciding = match kind {
        Kind::Forward => Metric::PrefillThroughput,
        Kind::Memory => Metric::PeakMemory,
        _ => Metric::Throughput,
    };
    let axes = axes(document);
    let of_cell = |cell: &Cell| {
        let name = cell::name(&cell.settings, &axes);
        let name = if name.is_empty() { name } else { format!("{name}: ") };
        let compared = cell.verdicts.iter().filter(move |verdict| verdict.metric == deciding);
        compared.map(|verdict| format!("{name}{}", verdict.sentence)).collect::<Vec<_>>()
    };
    document.cells.iter().flat_map(of_cell).collect()
}

fn short_warmups(document: &Document, kind: Kind) -> Vec<String> {
    if kind != Kind::Warmup {
        return Vec::new();
    }
    let of_row = |row: &CellRow| {
        let short = row.steadiness.short_warmup.as_ref()?;
        Some(format!(
            "{}: a script with {} tokens of warm-up and {} of test would have reported {:.1} tok/s, {:+.1} % from the steady {:.1} at the same places",
            row.framework,
            short.warmup_tokens,
            short.test_tokens,
            short.tokens_per_second,
            100.0 * short.error,
            short.steady_tokens_per_second,
        ))
    };
    document.cells.iter().flat_map(|cell| &cell.rows).filter_map(of_row).collect()
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
