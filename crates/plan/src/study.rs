//! Studies: the same comparison again and again while something changes.

use configs::Engine;
use serde::{Deserialize, Serialize};

use crate::sweep::SweepKind;
use crate::{Request, Result, Settings};

/// The engines that there are: files of `configs/engines`, read by whoever plans.
pub trait Engines {
    /// The engine of this name; the error says which there are.
    fn engine(&self, name: &str) -> Result<Engine>;

    /// Those that are compared when none is named.
    fn usual(&self) -> Result<Vec<Engine>>;
}

/// What is varied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StudyKind {
    Sweep(SweepKind),
    /// The name of a switch, or two engines.
    Ab(Vec<String>),
}

/// A study as it was asked for: what shards and `--resume` store and compare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyRequest {
    pub kind: StudyKind,
    pub request: Request,
}

/// How cells are laid out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StudyView {
    Sweep(SweepKind),
    /// Names of the two arms.
    Ab([String; 2]),
}

/// A study, cell by cell.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyPlan {
    /// "sweep forward", "ab kv-cache".
    pub name: String,
    pub view: StudyView,
    pub cells: Vec<CellPlan>,
}

/// One comparison of a study.
#[derive(Debug, Clone, PartialEq)]
pub struct CellPlan {
    /// Its place on the axes.
    pub settings: Settings,
    pub request: Request,
}

impl StudyRequest {
    /// The same measurements: whatever bears on no figure is left out of the comparison by not being part of a
    /// request. What the suite says of itself changes no figure either.
    pub fn measures_the_same(&self, other: &StudyRequest) -> bool {
        let plain = |study: &StudyRequest| {
            let mut study = study.clone();
            study.request.study.analysis.clear();
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
