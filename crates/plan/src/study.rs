//! Studies: a comparison that is repeated while settings change.

use serde::{Deserialize, Serialize};

use crate::sweep::SweepKind;
use crate::{Request, Settings};

/// The kind of study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StudyKind {
    Sweep(SweepKind),
    /// The name of a switch, or two engines.
    Ab(Vec<String>),
}

/// A study as requested. Shards and `--resume` store and compare it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyRequest {
    pub kind: StudyKind,
    pub request: Request,
}

/// The layout of the cells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StudyView {
    Sweep(SweepKind),
    /// Names of the two arms.
    Ab([String; 2]),
    /// Switches in every combination.
    Crossed,
}

/// A study, divided into cells.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyPlan {
    /// Name of the study: "sweep forward", "ab kv-cache".
    pub name: String,
    pub view: StudyView,
    pub cells: Vec<CellPlan>,
}

/// One comparison of a study.
#[derive(Debug, Clone, PartialEq)]
pub struct CellPlan {
    /// The cell's place on the axes.
    pub settings: Settings,
    pub request: Request,
}

impl StudyRequest {
    /// Whether both ask for the same measurements. Settings that affect no figure are not part of a request;
    /// the suite's analysis and published figures do not affect any either and are ignored here.
    pub fn measures_the_same(&self, other: &StudyRequest) -> bool {
        let plain = |study: &StudyRequest| {
            let mut study = study.clone();
            study.request.study.analysis.clear();
            study.request.study.published = None;
            study
        };
        plain(self) == plain(other)
    }
}

impl StudyPlan {
    /// The places of all cells.
    pub fn settings(&self) -> Vec<Settings> {
        self.cells.iter().map(|cell| cell.settings.clone()).collect()
    }
}
