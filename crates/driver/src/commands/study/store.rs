//! The results directory of a study: the request, a line for each finished cell, and the outcome. `--resume` does not
//! measure a finished cell again.

use std::path::{Path, PathBuf};

use comparison::facts::agreement;
use comparison::judge;
use comparison::judge::records;
use comparison::judge::report::SCHEMA;
use comparison::judge::study::{Cell, StudyReport};
use comparison::plan::{Failure, Result, Settings, StudyPlan, StudyRequest, StudySettings, StudyView};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::commands::compare::study_outputs;
use crate::measure::results::{self, complete_lines, pretty};
use crate::measure::{Places, Results, places, progress};

pub(crate) const CELLS: &str = "cells.jsonl";
pub(super) const ASKED: &str = "study.json";

pub(super) struct Store {
    results: Results,
    asked: Asked,
    /// Whether this run made the directory.
    is_new: bool,
}

/// The facts that a resumed study must agree with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Asked {
    schema: u32,
    study: String,
    view: StudyView,
    planned: Vec<Settings>,
    asked: StudyRequest,
    started: String,
    /// The hardware: figures of two machines are not one study.
    machine: Computer,
    /// Where the workers are: cells of two builds are not one study.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workers: Option<PathBuf>,
    /// The settings of all cells of the study, of which these are a part.
    whole: Vec<Settings>,
}

/// A machine, described for reports that show several side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Computer {
    /// Fingerprint, as in the history.
    pub(crate) fingerprint: String,
    pub(crate) name: String,
}

impl Asked {
    pub(super) fn new(asked: &StudyRequest, plan: &StudyPlan, whole: &[Settings], places: &Places) -> Asked {
        Asked {
            schema: SCHEMA,
            study: plan.name.clone(),
            view: plan.view.clone(),
            planned: plan.settings(),
            asked: asked.clone(),
            started: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            machine: computer(places),
            workers: Some(places.workers.clone()),
            whole: whole.to_vec(),
        }
    }

    /// The report of these cells together.
    fn report(self, cells: Vec<Cell>, interrupted: bool, results: String) -> StudyReport {
        let StudySettings { analysis, published, .. } = self.asked.request.study;
        judge::study::new(StudyReport {
            schema: SCHEMA,
            study: self.study,
            command: progress::typed(),
            started: self.started,
            analysis,
            published,
            planned: self.planned,
            cells,
            scaling: Vec::new(),
            outcomes: Vec::new(),
            interrupted,
            results,
            view: self.view,
        })
    }

    /// The difference from an earlier study, if there is one.
    fn difference(&self, earlier: &Asked) -> Option<String> {
        Some(if earlier.study != self.study {
            format!("it is a `{}`", earlier.study)
        } else if earlier.machine != self.machine {
            "it was begun on another machine".to_owned()
        } else if earlier.workers.is_some() && earlier.workers != self.workers {
            "it was begun with other workers".to_owned()
        } else if earlier.planned != self.planned {
            "it has other cells".to_owned()
        } else if !self.asked.measures_the_same(&earlier.asked) {
            "it was asked for with other settings".to_owned()
        } else {
            return None;
        })
    }
}

impl Store {
    /// Opens the directory of this study with its finished cells: a new one, or that of `resume`.
    pub(super) fn open(asked: Asked, parent: &Path, resume: Option<&Path>) -> Result<(Store, Vec<Cell>)> {
        let Some(directory) = resume else {
            let mut results = Results::create(parent, OffsetDateTime::now_utc(), &asked.study, CELLS)?;
            results.write(ASKED, pretty(&asked));
            return Ok((Store { results, asked, is_new: true }, Vec::new()));
        };
        let earlier = read_asked(directory, "is not a study that can be resumed")?;
        if let Some(what) = asked.difference(&earlier) {
            return Err(Failure::usage(format!(
                "{} cannot be resumed by this command: {what}; give the command as it was, and --resume",
                directory.display()
            )));
        }
        let (results, lines) = Results::reopen(directory, CELLS)?;
        let cells = cells(directory, lines.iter().map(String::as_str))?;
        Ok((Store { results, asked: earlier, is_new: false }, cells))
    }

    pub(super) fn directory(&self) -> &Path {
        self.results.directory()
    }

    /// The report of these cells together.
    pub(super) fn report(&self, cells: Vec<Cell>, interrupted: bool) -> StudyReport {
        self.asked.clone().report(cells, interrupted, self.directory().display().to_string())
    }

    pub(super) fn append(&mut self, cell: &Cell) {
        self.results.append(cell);
    }

    /// Saves the outcome. Returns the reason if something could not be saved.
    pub(super) fn finish(&mut self, report: &StudyReport) -> Option<String> {
        let outputs = study_outputs(report, self.directory());
        for (name, contents) in &outputs.files {
            self.results.write(name, contents);
        }
        self.results.finish().or(outputs.missing)
    }

    /// Removes a new directory in which nothing was measured.
    pub(super) fn discard(self) {
        if self.is_new {
            // It holds no result.
            let _ = std::fs::remove_dir_all(self.directory());
        }
    }
}

fn computer(places: &Places) -> Computer {
    let environment = places::read(places, String::new());
    Computer { fingerprint: records::fingerprint(&environment), name: environment.cpu }
}

/// Reads `study.json` of a directory; the error for an unusable file begins with `what`.
fn read_asked(directory: &Path, what: &str) -> Result<Asked> {
    let path = directory.join(ASKED);
    let unusable = |reason: &str| Failure::usage(format!("{} {what}: {reason}", path.display()));
    let text = results::text(&path)?.ok_or_else(|| unusable("there is no such file"))?;
    agreement::document(&text, SCHEMA, "what a study was asked").map_err(|why: String| unusable(&why))
}

fn cells<'a>(directory: &Path, lines: impl Iterator<Item = &'a str>) -> Result<Vec<Cell>> {
    let path = directory.join(CELLS);
    let read = |(index, line): (usize, &str)| {
        let cell: Cell = serde_json::from_str(line).map_err(|error| {
            Failure::usage(format!("{} holds a line that is not a cell: {error}", path.display()))
        })?;
        let refused = |why| Failure::usage(format!("{}, line {}: {why}", path.display(), index + 1));
        cell.check().map_err(refused)?;
        Ok(cell)
    };
    lines.enumerate().map(read).collect()
}

/// The finished cells of a directory. A line that was cut off in mid-write counts as a missing cell.
fn read_cells(directory: &Path) -> Result<Vec<Cell>> {
    let path = directory.join(CELLS);
    let text = complete_lines(&path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    cells(directory, text.lines())
}

/// The report of several parts of a study, which one machine measured.
pub(crate) fn together(directories: &[PathBuf]) -> Result<StudyReport> {
    let mut parts = Vec::new();
    for directory in directories {
        parts.push((directory, read_asked(directory, "is not of a study")?, read_cells(directory)?));
    }
    let (first, asked, _) = &parts[0];
    let mut cells = Vec::new();
    for (directory, other, _) in &parts {
        let is_same = other.whole == asked.whole && other.asked.measures_the_same(&asked.asked);
        let why = match () {
            () if !is_same => "is of another study",
            () if other.machine != asked.machine => "was measured on another machine",
            () => continue,
        };
        let (first, directory) = (first.display(), directory.display());
        return Err(Failure::usage(format!("{directory} {why} than {first}: report them separately")));
    }
    for settings in &asked.whole {
        let mut found = Vec::new();
        for (directory, _, own) in &parts {
            found.extend(own.iter().filter(|cell| cell.settings == *settings).map(|cell| (directory, cell)));
        }
        if let [(a, _), (b, _), ..] = found.as_slice() {
            let (a, b) = (a.display(), b.display());
            return Err(Failure::usage(format!("{a} and {b} measured the same cell: give one of them")));
        }
        cells.extend(found.first().map(|(_, cell)| (*cell).clone()));
    }
    let started = parts.iter().map(|(_, asked, _)| asked.started.clone()).min().unwrap_or_default();
    let whole = Asked { started, planned: asked.whole.clone(), ..asked.clone() };
    Ok(whole.report(cells, false, "in the directories of the parts".to_owned()))
}

/// The report so far of a study that was killed; `None` if the directory does not hold a study.
pub(crate) fn unfinished(directory: &Path) -> Result<Option<StudyReport>> {
    if !directory.join(ASKED).is_file() {
        return Ok(None);
    }
    let asked = read_asked(directory, "cannot be shown")?;
    Ok(Some(asked.report(read_cells(directory)?, true, directory.display().to_string())))
}
