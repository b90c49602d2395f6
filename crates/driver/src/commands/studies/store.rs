//! The results directory of a study: what was asked, a line for each finished cell, and the outcome. A cell that
//! is in it is not measured again on `--resume`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::cell::Cell;
use super::shards::Shard;
use super::{Document, Study, table};
use crate::axes::Settings;
use crate::cli::{CompareArgs, Format};
use crate::compare;
use crate::failure::{Failure, Result};
use crate::page;
use crate::places::Places;
use crate::report::SCHEMA;
use crate::results::Results;
use crate::{environment, records};

const CELLS: &str = "cells.jsonl";
const ASKED: &str = "study.json";

pub(super) struct Store {
    results: Results,
    asked: Asked,
    /// Made by this run.
    is_new: bool,
}

/// What a resumed study must agree with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Asked {
    schema: u32,
    study: String,
    planned: Vec<Settings>,
    /// Every other argument that bears on the figures, as parsed.
    arguments: String,
    started: String,
    /// What computes: figures of two machines are not one study.
    #[serde(default)]
    machine: Option<Computer>,
    /// The part of a plan that this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shard: Option<Shard>,
}

/// A machine, for those who put several side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Computer {
    /// As in the history.
    pub(super) fingerprint: String,
    pub(super) name: String,
}

impl Store {
    /// The directory of this study with the cells that are done: a new one, or that of `resume`.
    pub(super) fn open(
        study: &Study,
        asked: &CompareArgs,
        resume: Option<&Path>,
        places: &Places,
    ) -> Result<(Store, Vec<Cell>)> {
        let started = OffsetDateTime::now_utc();
        let mut asked_now = Asked {
            schema: SCHEMA,
            study: study.name.clone(),
            planned: study.cells.iter().map(|(settings, _)| settings.clone()).collect(),
            arguments: arguments(asked),
            started: started.format(&Rfc3339).unwrap_or_default(),
            machine: Some(computer(places)),
            shard: study.shard.clone(),
        };
        let Some(directory) = resume else {
            let parent = asked.results_dir.clone().unwrap_or_else(|| places.results());
            let mut results = Results::create(&parent, started, &study.name, CELLS)?;
            results.write(ASKED, &compare::pretty(&asked_now));
            return Ok((Store { results, asked: asked_now, is_new: true }, Vec::new()));
        };
        let path = directory.join(ASKED);
        let unreadable = |reason: &dyn std::fmt::Display| {
            Failure::usage(format!("{} is not a study that can be resumed: {reason}", path.display()))
        };
        let text = std::fs::read_to_string(&path).map_err(|e| unreadable(&e))?;
        let earlier: Asked = serde_json::from_str(&text).map_err(|e| unreadable(&e))?;
        asked_now.started.clone_from(&earlier.started);
        if earlier != asked_now {
            let what = if earlier.study != asked_now.study {
                format!("it is a `{}`", earlier.study)
            } else if earlier.machine != asked_now.machine {
                "it was begun on another machine".to_owned()
            } else if earlier.shard != asked_now.shard {
                "it is another shard, or of another plan".to_owned()
            } else if earlier.planned != asked_now.planned {
                "it has other cells".to_owned()
            } else {
                "it was asked for with other settings".to_owned()
            };
            return Err(Failure::usage(format!(
                "{} cannot be resumed by this command: {what}; give the command as it was, and --resume",
                directory.display()
            )));
        }
        let (results, lines) = Results::reopen(directory, CELLS)?;
        let cells =
            lines.iter().map(|line| serde_json::from_str(line)).collect::<std::result::Result<_, _>>();
        let cells = cells.map_err(|e| unreadable(&e))?;
        Ok((Store { results, asked: earlier, is_new: false }, cells))
    }

    pub(super) fn directory(&self) -> &Path {
        self.results.directory()
    }

    pub(super) fn started(&self) -> &str {
        &self.asked.started
    }

    pub(super) fn append(&mut self, cell: &Cell) {
        self.results.append(cell);
    }

    /// Saves the outcome; the reason if something could not be saved.
    pub(super) fn finish(&mut self, document: &Document) -> Option<String> {
        self.results.write("report.json", &compare::pretty(document));
        self.results.write("report.md", &table::markdown(document));
        self.results.write("report.csv", &table::csv(document));
        let unsaved = self.results.finish();
        unsaved.or_else(|| Some(page::write(self.directory()).err()?.to_string()))
    }

    /// Takes away a new directory in which nothing was measured.
    pub(super) fn discard(self) {
        if self.is_new {
            // It holds nothing of worth, and is no result.
            let _ = std::fs::remove_dir_all(self.directory());
        }
    }
}

fn computer(places: &Places) -> Computer {
    let environment = environment::read(places, String::new());
    Computer { fingerprint: records::fingerprint(&environment), name: environment.cpu }
}

/// What a directory of a shard holds.
pub(super) struct Part {
    pub(super) machine: Computer,
    pub(super) shard: Shard,
    pub(super) started: String,
    pub(super) cells: Vec<Cell>,
}

/// Reads a directory that `driver run` made. A line that was cut off in mid-write is a cell that is missing.
pub(super) fn read_part(directory: &Path) -> Result<Part> {
    let unreadable = |file: &str, reason: &dyn std::fmt::Display| {
        let path = directory.join(file);
        Failure::usage(format!(
            "{} is not of a shard: {reason}; give directories of `driver run`",
            path.display()
        ))
    };
    let read = |file: &str| std::fs::read_to_string(directory.join(file)).map_err(|e| unreadable(file, &e));
    let asked: Asked = serde_json::from_str(&read(ASKED)?).map_err(|e| unreadable(ASKED, &e))?;
    let text = read(CELLS)?;
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let cells: std::result::Result<Vec<Cell>, _> = whole.lines().map(serde_json::from_str).collect();
    Ok(Part {
        machine: asked
            .machine
            .ok_or_else(|| unreadable(ASKED, &"it does not say which machine it ran on"))?,
        shard: asked.shard.ok_or_else(|| unreadable(ASKED, &"it is a study of its own"))?,
        started: asked.started,
        cells: cells.map_err(|e| unreadable(CELLS, &e))?,
    })
}

/// As parsed, less what bears on no figure.
fn arguments(asked: &CompareArgs) -> String {
    let mut asked = asked.clone();
    asked.format = Format::Table;
    asked.results_dir = None;
    asked.model.quiet = false;
    format!("{asked:?}")
}
