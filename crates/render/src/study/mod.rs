//! A study: its cells side by side.

mod figures;
mod grids;
#[cfg(test)]
mod tests;

use judge::study::StudyReport;

use crate::words;

pub use figures::csv;
pub(crate) use grids::{curve, grid};

/// The study as text for a terminal.
pub fn table(report: &StudyReport) -> String {
    let mut text = format!("{}\n\n{}\n", report.summary.heading, grid(report, false).terminal());
    if let Some(curve) = curve(report) {
        text += &format!("\n{}\n", curve.terminal());
    }
    for line in findings(report) {
        text += &format!("{line}\n");
    }
    if !report.analysis.is_empty() {
        text += &format!("\n{}\n", words::wrapped(&report.analysis));
    }
    text + &format!("\nEvery comparison, and report.html: {}\n", report.results)
}

/// The study as Markdown, for pull requests.
pub fn markdown(report: &StudyReport) -> String {
    let mut text = format!("{}\n\n{}\n\n", report.summary.heading, grid(report, false).markdown());
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
