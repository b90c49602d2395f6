//! The table that people get, for the terminal and in Markdown.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table, TableStyle};

use super::findings::findings;
use super::{Report, Row, State, prompts};
use crate::evidence::End;
use crate::judge::metrics::Metric;
use crate::plan::{DEFAULT_SUITE, Rounds};

/// For a terminal.
pub(crate) fn table(report: &Report) -> String {
    let mut text = format!("{}\n\n{}\n", heading(report), grid(report, UTF8_FULL_CONDENSED));
    if let Some(by_prompt) = prompts::grid(report, UTF8_FULL_CONDENSED) {
        text += &format!("{by_prompt}\n");
    }
    let (findings, rest) = findings(report);
    for line in findings.iter().chain(&rest) {
        text += &format!("{line}\n");
    }
    // What is always run needs no telling each time.
    if let Some(analysis) = analysis(report).filter(|_| report.plan.suite.as_deref() != Some(DEFAULT_SUITE)) {
        text += &format!("\n{}\n", wrapped(&analysis));
    }
    text += &format!("\nEvery sample, and report.html: {}\n", report.results);
    text
}

/// For README files and pull requests.
pub(crate) fn markdown(report: &Report) -> String {
    let mut text = format!("{}\n\n{}\n\n", heading(report), grid(report, ASCII_MARKDOWN));
    if let Some(by_prompt) = prompts::grid(report, ASCII_MARKDOWN) {
        text += &format!("{by_prompt}\n\n");
    }
    let (findings, rest) = findings(report);
    for line in &findings {
        text += &format!("- {line}\n");
    }
    if !rest.is_empty() {
        let warnings = match report.warnings.len() {
            0 => String::new(),
            1 => "1 warning, and ".into(),
            count => format!("{count} warnings, and "),
        };
        // GitHub renders Markdown within, after a blank line.
        text += &format!("\n<details>\n<summary>{warnings}what else was measured</summary>\n\n");
        for line in &rest {
            text += &format!("- {line}\n");
        }
        text += "\n</details>\n";
    }
    if let Some(analysis) = analysis(report) {
        text += &format!("\n{}\n", wrapped(&analysis));
    }
    text
}

/// What the suite, or the file of prompts, says that it shows.
fn analysis(report: &Report) -> Option<String> {
    let plan = &report.plan;
    let name = plan.suite.as_ref().map_or("These prompts".to_owned(), |suite| format!("Suite {suite}"));
    (!plan.analysis.is_empty()).then(|| format!("{name}: {}", plan.analysis))
}

/// As lines of at most 100 characters, or of a single longer word.
pub(crate) fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one from the start");
        if line.is_empty() {
            *line = word.to_owned();
        } else if line.chars().count() + 1 + word.chars().count() <= 100 {
            *line += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

fn grid(report: &Report, style: TableStyle) -> String {
    let mut table = Table::new();
    table.load_style(style);
    let labels = report.rows.iter().map(|row| row.framework.clone());
    table.set_header([String::new()].into_iter().chain(labels));
    for metric in Metric::TABLE {
        let cells = report.rows.iter().map(|row| figure(row, metric));
        table.add_row([metric.title().to_owned()].into_iter().chain(cells));
    }
    table.add_row(["Precision".to_owned()].into_iter().chain(report.rows.iter().map(precision)));
    table.add_row(["Parity".to_owned()].into_iter().chain(report.rows.iter().map(parity)));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// What is not measured is a dash; the reason stands below the table.
pub(super) fn figure(row: &Row, metric: Metric) -> String {
    match row.median(metric) {
        None if row.rounds == 0 => "–".into(),
        None => "not available".into(),
        Some(value) => number(value),
    }
}

