//! The answer, which every output begins with: at most two sentences, one table, and the lines that explain it.

mod below;
mod grid;
mod sentences;
pub(crate) mod standing;
#[cfg(test)]
mod tests;

use judge::Report;

pub(crate) use below::{about, notes};
pub(crate) use grid::{grid, in_full};
pub(crate) use sentences::{brief, listed, sentences};

/// The most rounds that a contender completed.
fn rounds(report: &Report) -> usize {
    report.rows.iter().map(|row| row.rounds).max().unwrap_or(0)
}

/// Whether there are rounds enough for verdicts, and the machine was quiet enough.
fn has_verdicts(report: &Report) -> bool {
    report.noise().is_none() && rounds(report) >= statistics::MIN_ROUNDS
}
