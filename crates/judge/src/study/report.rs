//! The outcome of a study as one value.

use configs::Published;
use plan::{Axis, Settings, StudyView};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cell::Cell;
use super::scaling::Scaling;
use super::{Outcome, ab};
use crate::report;
use facts::reading;

/// The outcome as one value. Crate `render` makes the table, Markdown, CSV and JSON from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyReport {
    pub schema: u32,
    pub study: String,
    pub command: Vec<String>,
    pub started: String,
    /// The analysis of the suite that named it: its conclusions and their limits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub analysis: String,
    /// Published figures, to be shown next to these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Published>,
    /// Places of all planned cells. A planned cell that is missing was not reached.
    pub planned: Vec<Settings>,
    pub cells: Vec<Cell>,
    pub scaling: Vec<Scaling>,
    /// The outcomes of an A/B study.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Outcome>,
    pub interrupted: bool,
    /// Directory that holds every comparison.
    pub results: String,
    pub view: StudyView,
}

/// Reads `report.json` of a study back. The error is one sentence.
pub fn read(value: Value) -> Result<StudyReport, String> {
    report::check_schema(&value)?;
    let report: StudyReport = reading::typed(value, "the report of a study")?;
    report.cells.iter().try_for_each(Cell::check)?;
    Ok(report)
}

/// The axes with a column: those that vary and those that the study is named for.
pub fn axes(document: &StudyReport) -> Vec<Axis> {
    let own: &[Axis] = match &document.view {
        StudyView::Sweep(kind) => kind.own_axes(),
        StudyView::Ab(_) | StudyView::Crossed => &[Axis::Framework],
    };
    let Some(first) = document.planned.first() else { return Vec::new() };
    let varied = varied(&document.planned);
    first.keys().filter(|axis| own.contains(axis) || varied.contains(axis)).copied().collect()
}

/// Axes on which cells differ.
pub fn varied(planned: &[Settings]) -> Vec<Axis> {
    let Some(first) = planned.first() else { return Vec::new() };
    let varies = |axis: &&Axis| planned.iter().any(|settings| settings.get(axis) != first.get(axis));
    first.keys().filter(varies).copied().collect()
}

impl StudyReport {
    /// The worst exit code of its cells; 0 if the remaining cells could not be measured by their nature.
    pub fn exit_code(&self) -> u8 {
        self.cells.iter().map(|cell| cell.exit_code).max().unwrap_or(0)
    }
}

/// Fills in everything that is derived from the cells of `report`: outcomes, scaling.
pub fn new(mut report: StudyReport) -> StudyReport {
    if ab::has_mistakes(&report.planned) {
        ab::by_cost(&mut report.cells);
    }
    report.outcomes = match &report.view {
        StudyView::Ab(_) => ab::outcomes(&report.cells),
        StudyView::Sweep(_) | StudyView::Crossed => Vec::new(),
    };
    report.scaling = match &report.view {
        StudyView::Sweep(kind) => super::scaling::along(*kind, &report.cells),
        StudyView::Ab(_) => ab::scaling(&report.outcomes),
        StudyView::Crossed => Vec::new(),
    };
    report
}
