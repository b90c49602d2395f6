//! A study: its cells side by side.

mod crossed;
mod figures;
mod grids;
mod published;
#[cfg(test)]
mod tests;
mod words;

use judge::study::StudyReport;
use plan::StudyView;
use untrusted::markdown as plain;

use crate::screen::{Screen, Tone};
use crate::table::Table;
use crate::words::warnings::sentence as warning;
use crate::words::{Json, Line, Summary, verdicts, wrapped};

pub use figures::csv;
pub(crate) use published::{TITLE as PUBLISHED, table as published};
pub(crate) use words::summary;

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
        StudyView::Crossed => crossed::contributions(report),
    }
}

/// The second table of a study that has one, with its title.
pub(crate) fn more(report: &StudyReport) -> Option<(&'static str, Table)> {
    let iterations = || grids::curve(report).map(|curve| ("Iterations", curve));
    crossed::combinations(report).map(|table| ("Every combination", table)).or_else(iterations)
}

/// The sentences below the table.
pub(crate) fn findings(summary: &Summary) -> impl Iterator<Item = &Line> {
    summary.details.iter()
}
