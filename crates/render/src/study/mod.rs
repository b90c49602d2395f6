//! A study: its cells side by side.

mod figures;
mod grids;
#[cfg(test)]
mod tests;

use judge::report::Summary;
use judge::study::StudyReport;

use crate::comparison::answer;
use crate::screen::{Screen, Tone};
use crate::words;

pub use figures::csv;
pub(crate) use grids::{curve, grid};

/// The study as text for a terminal.
pub fn table(report: &StudyReport, screen: &Screen) -> String {
    let mut text = answer(&report.summary, screen);
    text += &format!("\n{}\n", screen.paragraph(Tone::Plain, &report.summary.heading));
    text += &format!("{}\n", grid(report, screen.verbose).terminal(screen));
    if let Some(curve) = curve(report) {
        text += &format!("\n{}\n", curve.terminal(screen));
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
    let mut text = format!("**{}**\n\n{heading}\n\n{}\n\n", answer.join(" "), grid(report, false).markdown());
    if let Some(curve) = curve(report) {
        text += &format!("{}\n\n", curve.markdown());
    }
    for line in findings(report) {
        text += &format!("- {line}\n");
    }
    if !report.analysis.is_empty() {
        text += &format!("\n{}\n", words::wrapped(&report.analysis));
    }
    text
}

/// The sentences below the table.
pub(crate) fn findings(report: &StudyReport) -> impl Iterator<Item = &String> {
    report.summary.verdicts.iter().chain(&report.summary.details)
}
