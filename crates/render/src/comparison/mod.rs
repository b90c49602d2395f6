//! A comparison: its main table, and every figure as CSV.

mod figures;
pub mod precisions;
#[cfg(test)]
mod tests;
mod texts;

use judge::metrics::Metric;
use judge::report::{Report, Row, findings, number};

use crate::table::{Cell, Column, Table};
use crate::words;

pub use figures::csv;
pub use texts::texts;

/// The comparison as text for a terminal.
pub fn table(report: &Report) -> String {
    let mut text = format!("{}\n\n{}\n", report.summary.heading, grid(report, false).terminal());
    if let Some(by_prompt) = by_prompt(report) {
        text += &format!("{}\n", by_prompt.terminal());
    }
    let (findings, rest) = findings(report);
    for line in findings.iter().chain(&rest) {
        text += &format!("{line}\n");
    }
    // The analysis of the default suite need not be repeated each time.
    if let Some(analysis) =
        analysis(report).filter(|_| report.plan.suite.as_deref() != Some(configs::DEFAULT_SUITE))
    {
        text += &format!("\n{}\n", words::wrapped(&analysis));
    }
    text += &format!("\nEvery sample, and report.html: {}\n", report.results);
    text
}

/// The comparison as Markdown, for README files and pull requests.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("{}\n\n{}\n\n", report.summary.heading, grid(report, false).markdown());
    if let Some(by_prompt) = by_prompt(report) {
        text += &format!("{}\n\n", by_prompt.markdown());
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
        // GitHub renders Markdown inside, after a blank line.
        text += &format!("\n<details>\n<summary>{warnings}what else was measured</summary>\n\n");
        for line in &rest {
            text += &format!("- {line}\n");
        }
        text += "\n</details>\n";
    }
    if let Some(analysis) = analysis(report) {
        text += &format!("\n{}\n", words::wrapped(&analysis));
    }
    text
}

/// The analysis by the suite, or by the file of prompts.
fn analysis(report: &Report) -> Option<String> {
    let plan = &report.plan;
    let name = plan.suite.as_ref().map_or("These prompts".to_owned(), |suite| format!("Suite {suite}"));
    (!plan.analysis.is_empty()).then(|| format!("{name}: {}", plan.analysis))
}

/// The main table: a row for each metric, a column for each framework. On request, the 95 % intervals of the medians
/// are below them.
pub(crate) fn grid(report: &Report, intervals: bool) -> Table {
    let labels = report.rows.iter().map(|row| Column::right(row.framework.clone()));
    let mut table = Table::new([Column::left("")].into_iter().chain(labels));
    let mut add = |title: &str, cell: &dyn Fn(&Row) -> Cell| {
        table.add([Cell::from(title)].into_iter().chain(report.rows.iter().map(cell)));
    };
    for metric in Metric::TABLE {
        add(metric.title(), &|row| median(row, metric, intervals));
    }
    add("Precision", &|row| row.precision_words().into());
    add("Parity", &|row| row.parity_words().into());
    table
}

/// The metrics that the main table has no room for, one row each.
pub(crate) fn further_metrics(report: &Report) -> Table {
    let labels = report.rows.iter().map(|row| Column::right(row.framework.clone()));
    let mut table = Table::new([Column::left("")].into_iter().chain(labels));
    for metric in Metric::ALL.into_iter().filter(|metric| !Metric::TABLE.contains(metric)) {
        let medians = report.rows.iter().map(|row| median(row, metric, true));
        table.add([Cell::from(metric.title())].into_iter().chain(medians));
    }
    table
}

/// The median over processes; on request, its 95 % interval is below it.
fn median(row: &Row, metric: Metric, interval: bool) -> Cell {
    let own = row.metrics.iter().find(|figure| figure.metric == metric);
    let interval = own.filter(|_| interval).and_then(words::interval);
    Cell::with_small(figure(row, metric), words::range(interval))
}

/// A dash replaces what was not measured; the reason is below the table.
fn figure(row: &Row, metric: Metric) -> String {
    match row.median(metric) {
        None if row.rounds == 0 => words::DASH.into(),
        None => "not available".into(),
        Some(value) => number(value),
    }
}

/// One line for each prompt and each measured framework. `None` if a single prompt would repeat the main table.
pub(crate) fn by_prompt(report: &Report) -> Option<Table> {
    if report.prompts.len() < 2 {
        return None;
    }
    let figures = Metric::OF_A_PROMPT.map(|metric| Column::right(metric.title()));
    let mut table = Table::new(["Prompt", "Framework"].map(Column::left).into_iter().chain(figures));
    for prompt in &report.prompts {
        for row in prompt.rows.iter().filter(|row| row.metrics.iter().any(|f| f.median.is_some())) {
            let start = [format!("{} ({} tokens)", prompt.name, prompt.tokens), row.framework.clone()];
            let figures = row.metrics.iter().map(|figure| words::or_dash(figure.median, number));
            table.add(start.into_iter().chain(figures));
        }
    }
    (!table.rows.is_empty()).then(|| table.captioned("Median over processes, of each prompt's samples alone"))
}
