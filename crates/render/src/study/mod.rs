//! A study: its cells side by side.

mod crossed;
mod figures;
mod grids;
#[cfg(test)]
mod tests;

use foreign::markdown as plain;
use judge::report::Summary;
use judge::study::StudyReport;
use plan::StudyView;

use crate::comparison::answer;
use crate::screen::{Screen, Tone};
use crate::table::Table;
use crate::words;

pub use figures::csv;

/// The study as text for a terminal.
pub fn table(report: &StudyReport, screen: &Screen) -> String {
    let mut text = answer(&report.summary, screen);
    text += &format!("\n{}\n", screen.paragraph(Tone::Plain, &report.summary.heading));
    text += &format!("{}\n", grid(report, screen.verbose).terminal(screen));
    if let Some((_, more)) = more(report) {
        text += &format!("\n{}\n", more.terminal(screen));
    }
    for line in findings(report) {
        let tone = if line.starts_with("warning: ") { Tone::Warning } else { Tone::Plain };
        text += &screen.lines(tone, line);
    }
    if !report.analysis.is_empty() {
        text += &format!("\n{}", screen.paragraph(Tone::Plain, &report.analysis));
    }
    text + "\n"
        + &screen.lines(Tone::Plain, &format!("Every comparison, and report.html: {}", report.results))
}

/// The study as Markdown, for pull requests.
pub fn markdown(report: &StudyReport) -> String {
    let Summary { answer, heading, .. } = &report.summary;
    let (answer, heading) = (plain(&answer.join(" ")), plain(heading));
    let mut text = format!("**{answer}**\n\n{heading}\n\n{}\n\n", grid(report, false).markdown());
    if let Some((_, more)) = more(report) {
        text += &format!("{}\n\n", more.markdown());
    }
    for line in findings(report) {
        text += &format!("- {}\n", plain(line));
    }
    if !report.analysis.is_empty() {
        text += &format!("\n{}\n", words::wrapped(&plain(&report.analysis)));
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
pub(crate) fn findings(report: &StudyReport) -> impl Iterator<Item = &String> {
    report.summary.verdicts.iter().chain(&report.summary.details)
}
