//! A study: its cells side by side.

mod figures;
mod grids;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use TITLE as PUBLISHED;
use comparison::judge::metrics::Metric;
use comparison::judge::report::{State, number};
use comparison::judge::study::{Cell, CellRow, StudyReport};
use comparison::plan::{Axis, StudyView};
pub use figures::csv;
use protocol::untrusted::markdown as plain;
pub(crate) use published_table as published;
pub(crate) use words::summary;

use crate::table::{self, Column, Screen, Table, Tone};
use crate::words::verdicts::{self, warnings_sentence as warning};
use crate::words::{DASH, Json, Line, Summary, or_dash, titled, wrapped};

/// The study as text for a terminal.
pub fn table(report: &StudyReport, screen: &Screen) -> String {
    let summary = summary(report);
    let mut text = screen.paragraph(Tone::Strong, &summary.answer.join(" "));
    text += &format!("\n{}\n", screen.paragraph(Tone::Plain, &summary.heading));
    text += &format!("{}\n", grid(report, screen.verbose).terminal(screen));
    for more in more(report).map(|(_, more)| more).into_iter().chain(published(report)) {
        text += &format!("\n{}\n", more.terminal(screen));
    }
    for line in findings(&summary) {
        text += &screen.lines(line.tone, &line.text);
    }
    if !report.analysis.is_empty() {
        text += &format!("\n{}", screen.paragraph(Tone::Plain, &report.analysis));
    }
    text + "\n"
        + &screen.lines(Tone::Plain, &format!("Every comparison, and report.html: {}", report.results))
}

/// The study with its sentences, for files.
pub fn told(report: &StudyReport) -> Json {
    let mut json = Json::new(report);
    json.each("cells", &report.cells, |json, cell| {
        let tell = |json: &mut Json, found: &_| {
            verdicts::tell(json, found, verdicts::sentence(found, cell.origin.margin))
        };
        json.each("verdicts", &cell.verdicts, tell);
        json.set("warnings", Json::new(&cell.warnings.iter().map(warning).collect::<Vec<_>>()));
    });
    json.set("summary", Json::new(&summary(report)));
    json
}

/// The study as JSON, indented.
pub fn json(report: &StudyReport) -> String {
    told(report).pretty()
}

/// The study as Markdown, for pull requests.
pub fn markdown(report: &StudyReport) -> String {
    let summary = summary(report);
    let (answer, heading) = (plain(&summary.answer.join(" ")), plain(&summary.heading));
    let mut text = format!("**{answer}**\n\n{heading}\n\n{}\n\n", grid(report, false).markdown());
    for more in more(report).map(|(_, more)| more).into_iter().chain(published(report)) {
        text += &format!("{}\n\n", more.markdown());
    }
    for line in findings(&summary) {
        text += &format!("- {}\n", plain(&line.text));
    }
    if !report.analysis.is_empty() {
        text += &format!("\n{}\n", wrapped(&plain(&report.analysis)));
    }
    text
}

/// The main table. With `ranges`, the least and the largest of each figure of a sweep are below its median.
pub(crate) fn grid(report: &StudyReport, ranges: bool) -> Table {
    match &report.view {
        StudyView::Sweep(kind) => grids::sweep(report, *kind, ranges),
        StudyView::Ab(arms) => grids::ab(report, arms),
    }
}

/// The second table of a study that has one, with its title.
pub(crate) fn more(report: &StudyReport) -> Option<(&'static str, Table)> {
    grids::curve(report).map(|curve| ("Iterations", curve))
}

/// The sentences below the table.
pub(crate) fn findings(summary: &Summary) -> impl Iterator<Item = &Line> {
    summary.details.iter()
}

// The figures that a suite's source published, and those of this machine below each.

/// Title of the table.
pub(crate) const TITLE: &str = "Published figures, and ours";

/// The metrics that published tables have.
const PUBLISHED_FIGURES: [Metric; 5] =
    [Metric::Load, Metric::ColdStart, Metric::Latency, Metric::Throughput, Metric::PeakMemory];

/// Each published row, followed by a row for each cell that measured the column compared with it.
pub(crate) fn published_table(report: &StudyReport) -> Option<Table> {
    let published = report.published.as_ref()?;
    let titles = ["Row", "Model"].map(Column::left).into_iter();
    let mut table =
        Table::new(titles.chain(PUBLISHED_FIGURES.map(|metric| Column::right(metric.short_title()))));
    for row in &published.rows {
        let figure = |metric: Metric| or_dash(row.figures.get(metric.name()).copied(), number);
        let start = [format!("Published: {}", row.name), "the source's".to_owned()];
        table.add(start.into_iter().chain(PUBLISHED_FIGURES.map(figure)).map(table::Cell::from));
        let precision = row.precision.name();
        let at =
            |cell: &&Cell| cell.settings.get(&Axis::Precision).is_none_or(|at| at.to_string() == precision);
        for cell in report.cells.iter().filter(at) {
            let model = or_dash(cell.settings.get(&Axis::Model), ToString::to_string);
            let name = format!("{}, {precision}", row.framework);
            let ours = cell.rows.iter().find(|ours| ours.framework == row.framework);
            table.add(line(name, model, ours, cell.refused.is_some()));
        }
    }
    Some(table.captioned(format!(
        "Published by {}, measured with {}; the figures of this machine are below each row. They are of other hardware: \
         compare rows with each other, not with the source's",
        published.source, published.conditions
    )))
}

/// Ours: the figures, or that there are none, and why is in the table of the study.
fn line(name: String, model: String, ours: Option<&CellRow>, is_refused: bool) -> Vec<table::Cell> {
    let Some(row) = ours else {
        let why = if is_refused { "not run" } else { "not measured" };
        let nothing = PUBLISHED_FIGURES.map(|_| DASH.to_owned());
        return [format!("{name}: {why}"), model].into_iter().chain(nothing).map(table::Cell::from).collect();
    };
    let tone = if row.state == State::Struck { Tone::Struck } else { Tone::Plain };
    let figures = PUBLISHED_FIGURES.map(|metric| or_dash(row.typical(metric), number));
    let start = [titled(&name, row.state, &row.reasons), model];
    start.into_iter().chain(figures).map(|text| table::Cell::from(text).toned(tone)).collect()
}
