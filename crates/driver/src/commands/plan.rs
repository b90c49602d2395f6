//! `photofinish plan`: one study on many machines. A plan of its cells is cut into shards that any scheduler can run on
//! their own (`run`); `merge` lays together what they measured. A cell, with all its frameworks, is never divided: its
//! verdicts need rounds on one machine.

use std::path::Path;

use clap::Parser;
use judge::records::hex;
use measure::resolve::drawn_seed;
use measure::results::write_whole;
use measure::saved::pretty;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use plan::ab::engines_of;
use plan::{Failure, Result, Settings, StudyRequest, StudyView};

use super::compare::first_line;
use crate::cli::{Cli, Command, Places, PlanArgs};
use crate::output::print;

/// Version of the plan file.
pub(super) const SCHEMA: u32 = 2;

/// The file that every shard is run from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlanFile {
    schema: u32,
    pub(super) study: String,
    /// What was asked for, with the seed, so that every shard draws what the whole would have drawn.
    pub(super) asked: StudyRequest,
    pub(super) view: StudyView,
    pub(super) planned: Vec<Settings>,
    pub(super) shards: Vec<Job>,
}

/// What one job does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(super) index: usize,
    /// Label of the machine it is for.
    pub(super) machine: Option<String>,
    /// Of `planned`, counted from 0.
    pub(super) cells: Vec<usize>,
}

/// What a results directory says of the plan that it is a part of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shard {
    pub(super) plan: PlanFile,
    pub(super) sha256: String,
    /// `None`: all of it.
    pub(super) index: Option<usize>,
}

impl Shard {
    /// Label of the machine that it was for.
    pub(super) fn machine(&self) -> Option<&str> {
        self.plan.shards[self.index?].machine.as_deref()
    }
}

impl Shard {
    /// A shard of `plan`, or all of it.
    pub(super) fn new(plan: PlanFile, index: Option<usize>) -> Shard {
        let sha256 = hex(&Sha256::digest(pretty(&plan)));
        Shard { plan, sha256, index }
    }
}

pub(crate) fn plan(args: &PlanArgs) -> Result<u8> {
    let (mut asked, places) = parse(&args.command)?;
    asked.request.seed.get_or_insert_with(drawn_seed);
    let places = places.find()?;
    // A name that does not exist is better found now than by every job.
    engines_of(&asked.request, &places)?;
    let study = asked.plan(&places)?;
    let planned = study.settings();
    let count = args.shards as usize;
    if count > planned.len() {
        return Err(Failure::usage(format!(
            "--shards {count}: `{}` has {} cells, and a cell is not divided",
            study.name,
            planned.len()
        )));
    }
    let machines: Vec<Option<String>> =
        if args.machines.is_empty() { vec![None] } else { args.machines.iter().cloned().map(Some).collect() };
    let parts = divide(planned.len(), count);
    let jobs = machines.iter().flat_map(|machine| parts.iter().map(move |cells| (machine, cells)));
    let jobs = jobs.enumerate().map(|(index, (machine, cells))| Job {
        index,
        machine: machine.clone(),
        cells: cells.clone(),
    });
    let plan = PlanFile {
        schema: SCHEMA,
        study: study.name,
        view: study.view,
        asked,
        shards: jobs.collect(),
        planned,
    };
    save(&args.out, &(pretty(&plan) + "\n"))?;
    let last = plan.shards.len() - 1;
    print(&format!(
        "{}: {} cells in {} shards: {}\nrun each of 0 to {last}: photofinish run --plan {} --shard I\n",
        plan.study,
        plan.planned.len(),
        plan.shards.len(),
        args.out.display(),
        args.out.display(),
    ))?;
    Ok(0)
}

/// Cells of each shard, dealt there and back again: neighbours cost about the same, and the last axis' larger
/// values do not all fall to one.
fn divide(cells: usize, shards: usize) -> Vec<Vec<usize>> {
    let mut parts = vec![Vec::new(); shards];
    for cell in 0..cells {
        let (row, place) = (cell / shards, cell % shards);
        parts[if row % 2 == 0 { place } else { shards - 1 - place }].push(cell);
    }
    parts
}

/// The study that a command stands for.
fn parse(arguments: &[String]) -> Result<(StudyRequest, Places)> {
    let words = ["photofinish".to_owned()].into_iter().chain(arguments.iter().cloned());
    let typed = arguments.join(" ");
    let cli = Cli::try_parse_from(words)
        .map_err(|error| Failure::usage(format!("`{typed}` cannot be planned: {}", first_line(&error))))?;
    match cli.command {
        Some(Command::Sweep(args)) if args.resume.is_none() => Ok((args.study(), args.compare.here.places)),
        Some(Command::Ab(args)) if args.resume.is_none() => Ok((args.study(), args.compare.here.places)),
        _ => Err(Failure::usage(format!(
            "`{typed}` cannot be planned: there are `sweep` and `ab`, without --resume; \
             a single comparison is a sweep of one cell"
        ))),
    }
}

/// Reads a plan that `photofinish plan` wrote.
pub(super) fn read(path: &Path) -> Result<PlanFile> {
    let unreadable = |reason: &dyn std::fmt::Display| {
        Failure::usage(format!(
            "{} is not a plan: {reason}; make one with `photofinish plan`",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(path).map_err(|e| unreadable(&e))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| unreadable(&e))?;
    if value.get("schema").and_then(serde_json::Value::as_u64) != Some(SCHEMA.into()) {
        return Err(unreadable(&"it is of another version"));
    }
    let plan: PlanFile = serde_json::from_value(value).map_err(|e| unreadable(&e))?;
    let cells = plan.planned.len();
    if plan.shards.is_empty() {
        return Err(unreadable(&"it has no shards"));
    }
    if plan.shards.iter().flat_map(|job| &job.cells).any(|&cell| cell >= cells) {
        return Err(unreadable(&"a shard names a cell that it does not have"));
    }
    Ok(plan)
}

/// Writes a file whole or not at all.
pub(super) fn save(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot =
        |reason: &dyn std::fmt::Display| Failure::usage(format!("cannot write {}: {reason}", path.display()));
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| cannot(&"it names no file"))?;
    write_whole(directory, name, text.as_bytes()).map_err(|e| cannot(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_falls_to_one_shard_and_shards_are_even() {
        assert_eq!(divide(7, 3), [vec![0, 5, 6], vec![1, 4], vec![2, 3]]);
        for (cells, shards) in [(1, 1), (12, 5), (9, 9)] {
            let mut all = divide(cells, shards).concat();
            all.sort_unstable();
            assert_eq!(all, (0..cells).collect::<Vec<_>>());
        }
    }
}
