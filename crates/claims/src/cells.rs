//! The cells of a study and their contenders, or the reason why there is nothing to read.

use judge::study::{Cell, CellRow, StudyReport};
use plan::{Setting, Settings};

/// The cell at a place, if it was measured.
pub(crate) fn cell<'a>(report: &'a StudyReport, at: &Settings) -> Result<&'a Cell, String> {
    let is_there = |cell: &&Cell| at.iter().all(|(axis, value)| cell.settings.get(axis) == Some(value));
    let place = || match place(at) {
        place if place.is_empty() => "the study".to_owned(),
        place => place,
    };
    let mut found = report.cells.iter().filter(is_there);
    let cell = found.next().ok_or_else(|| format!("{} was not measured", place()))?;
    if found.next().is_some() {
        return Err(format!("{} has several cells: the claim must say which", place()));
    }
    match &cell.refused {
        Some(reason) => Err(format!("{}: {reason}", place())),
        None => Ok(cell),
    }
}

/// A contender with figures, in a cell of a machine that was quiet.
pub(crate) fn quiet_row<'a>(
    report: &'a StudyReport,
    at: &Settings,
    framework: &str,
) -> Result<(&'a Cell, &'a CellRow), String> {
    let cell = cell(report, at)?;
    let row = row(cell, framework)?;
    quiet(cell)?;
    Ok((cell, row))
}

/// A contender that takes part in verdicts.
pub(crate) fn row<'a>(cell: &'a Cell, framework: &str) -> Result<&'a CellRow, String> {
    let row = cell.rows.iter().find(|row| row.framework == framework);
    let row = row.ok_or_else(|| format!("{framework} was not measured"))?;
    if row.state.takes_part() {
        return Ok(row);
    }
    let reason = row.reasons.first().map_or_else(String::new, |reason| format!(": {reason}"));
    Err(format!("{framework} is {}{reason}", row.state.words()))
}

pub(crate) fn quiet(cell: &Cell) -> Result<(), String> {
    if cell.is_noisy() { Err("the machine was too noisy for a verdict on speed".into()) } else { Ok(()) }
}

/// "new tokens 15, int8".
pub(crate) fn place(at: &Settings) -> String {
    let told = at.iter().map(|(axis, value)| match value {
        Setting::Name(name) => name.clone(),
        Setting::Number(number) => format!("{} {number}", axis.title().to_lowercase()),
    });
    told.collect::<Vec<_>>().join(", ")
}
