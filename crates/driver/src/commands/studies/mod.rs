//! Studies: the same comparison again and again while something changes. Each cell is a whole comparison, with
//! its own reference, parity gate, fairness rules and verdicts; a study only lays them side by side.

mod ab;
mod cell;
mod columns;
mod kinds;
pub(crate) mod merge;
mod scaling;
pub(crate) mod shards;
mod store;
mod table;

use std::path::Path;

use clap::Parser;
use serde::Serialize;

use crate::axes::{self, Settings};
use crate::cli::{AbArgs, Cli, Command, CompareArgs, Format, OnOff, RoundsArg, SweepArgs};
use crate::compare;
use crate::configs::Suite;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::places::Places;
use crate::report::{SCHEMA, Summary};

pub(crate) use kinds::Kind;

use ab::Outcome;
use cell::Cell;
use scaling::Scaling;
use shards::Shard;
use store::Store;

/// What is to be done.
struct Study {
    /// "sweep forward", "ab kv-cache".
    name: String,
    view: View,
    cells: Vec<(Settings, CompareArgs)>,
    /// The part of a plan that it is, if it is one.
    shard: Option<Shard>,
}

/// How cells are laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
enum View {
    Sweep(Kind),
    /// Names of the two arms.
    Ab([String; 2]),
}

/// The outcome as one value; table, Markdown, CSV and JSON are renderings of it.
#[derive(Debug, Serialize)]
struct Document {
    schema: u32,
    study: String,
    command: Vec<String>,
    started: String,
    /// What the suite that named it shows and what it does not.
    #[serde(skip_serializing_if = "String::is_empty")]
    analysis: String,
    /// What was planned and has no cell was not reached.
    planned: Vec<Settings>,
    cells: Vec<Cell>,
    scaling: Vec<Scaling>,
    /// Of an A/B study.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outcomes: Vec<Outcome>,
    interrupted: bool,
    /// Directory that holds every comparison.
    results: String,
    #[serde(skip)]
    view: View,
    summary: Summary,
}

/// Rounds and iterations of a cell unless told: there are many cells, and the first question is the shape of
/// the curve. Six rounds give verdicts.
const ROUNDS: u32 = 3;
const QUICK_ROUNDS: u32 = 1;

pub(crate) fn sweep(args: &SweepArgs) -> Result<u8> {
    sweep_study(args)?.run(&args.compare, args.resume.as_deref())
}

fn sweep_study(args: &SweepArgs) -> Result<Study> {
    let mut compare = args.compare.clone();
    let rounds = if compare.quick { QUICK_ROUNDS } else { ROUNDS };
    compare.rounds.get_or_insert(RoundsArg::Fixed(rounds));
    compare.iterations.get_or_insert(1);
    compare.cold_load.get_or_insert(OnOff::Off);
    args.kind.complete(&mut compare)?;
    Ok(Study {
        name: format!("sweep {}", args.kind.name()),
        view: View::Sweep(args.kind),
        cells: axes::cells(&compare),
        shard: None,
    })
}

pub(crate) fn ab(args: &AbArgs) -> Result<u8> {
    ab_study(args)?.run(&args.compare, args.resume.as_deref())
}

fn ab_study(args: &AbArgs) -> Result<Study> {
    let places = Places::find(&args.compare.model.places)?;
    let mut compare = args.compare.clone();
    compare.iterations.get_or_insert(1);
    compare.cold_load.get_or_insert(OnOff::Off);
    ab::study(&args.what, compare, &places)
}

/// A suite that names a study: its command, with the flags that were given beside `--suite`.
pub(crate) fn suite(name: &str, suite: &Suite) -> Result<u8> {
    let mut typed: Vec<String> = std::env::args().skip(1).collect();
    if typed.first().is_some_and(|first| first == "compare") {
        typed.remove(0);
    }
    if let Some(at) = typed.iter().position(|word| word == "--suite") {
        typed.drain(at..(at + 2).min(typed.len()));
    }
    typed.retain(|word| !word.starts_with("--suite="));
    let command = suite.command.split_whitespace().map(str::to_owned);
    let words = ["driver".to_owned()].into_iter().chain(command).chain(typed);
    let cannot = |error: clap::Error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        Failure::usage(format!(
            "suite {name:?} is `driver {}`, and with what was given beside it: {line}",
            suite.command
        ))
    };
    let analysis = suite.analysis.split_whitespace().collect::<Vec<_>>().join(" ");
    match Cli::try_parse_from(words).map_err(cannot)?.command {
        Some(Command::Sweep(mut args)) => {
            args.compare.study.analysis = analysis;
            sweep(&args)
        }
        Some(Command::Ab(mut args)) => {
            args.compare.study.analysis = analysis;
            ab(&args)
        }
        _ => Err(Failure::usage(format!("suite {name:?}: its command is neither a sweep nor an ab"))),
    }
}

impl Study {
    fn run(self, asked: &CompareArgs, resume: Option<&Path>) -> Result<u8> {
        interrupt::listen()?;
        let places = Places::find(&asked.model.places)?;
        let (mut store, mut done) = Store::open(&self, asked, resume, &places)?;
        let planned: Vec<Settings> = self.cells.iter().map(|(settings, _)| settings.clone()).collect();
        // A shard names its cells as the whole would.
        let axes = table::varied(self.shard.as_ref().map_or(&planned, |shard| &shard.plan.planned));
        let mut failure = None;
        let mut usage = None;
        for (index, (settings, args)) in self.cells.iter().enumerate() {
            let mut args = args.clone();
            args.study.name.clone_from(&self.name);
            if done.iter().any(|cell| cell.settings == *settings) {
                continue;
            }
            if !asked.model.quiet {
                eprintln!("cell {} of {}: {}", index + 1, planned.len(), cell::name(settings, &axes));
            }
            let cell = match compare::measure(&args, &places, Some(store.directory())) {
                Ok((report, unsaved)) => {
                    failure = unsaved.map(Failure::failed);
                    if report.interrupted {
                        failure = Some(Failure::Interrupted);
                    }
                    if failure.is_some() {
                        break;
                    }
                    Cell::of(settings.clone(), &report)
                }
                Err(Failure::Interrupted) => {
                    failure = Some(Failure::Interrupted);
                    break;
                }
                Err(Failure::Spoken(code)) => {
                    failure = Some(Failure::Spoken(code));
                    break;
                }
                // A combination that cannot run is a row with its reason.
                Err(error) => {
                    let cell = Cell::refused(settings.clone(), error.to_string());
                    usage = Some(error);
                    cell
                }
            };
            store.append(&cell);
            done.push(cell);
        }
        // What is wrong with every cell is wrong with what was asked.
        if let Some(error) = usage
            && done.iter().all(|cell| cell.refused.is_some())
            && done.iter().all(|cell| cell.refused == done[0].refused)
        {
            store.discard();
            return Err(error);
        }
        let analysis = asked.study.analysis.clone();
        let results = store.directory().display().to_string();
        let document =
            self.document(planned, done, analysis, failure.is_some(), (store.started().to_owned(), results));
        let unsaved = store.finish(&document);
        crate::print(&document.rendered(asked.format))?;
        if matches!(failure, Some(Failure::Interrupted)) && !document.cells.is_empty() {
            eprintln!("to go on: the same command with --resume {}", store.directory().display());
        }
        match (failure, unsaved) {
            (Some(failure), _) => Err(failure),
            (None, Some(reason)) => Err(Failure::failed(reason)),
            (None, None) => Ok(document.exit_code()),
        }
    }

    fn document(
        self,
        planned: Vec<Settings>,
        cells: Vec<Cell>,
        analysis: String,
        interrupted: bool,
        (started, results): (String, String),
    ) -> Document {
        let outcomes = match &self.view {
            View::Ab(_) => ab::outcomes(&cells),
            View::Sweep(_) => Vec::new(),
        };
        let scaling = match &self.view {
            View::Sweep(kind) => scaling::of(*kind, &cells),
            View::Ab(_) => ab::scaling(&outcomes),
        };
        let mut document = Document {
            schema: SCHEMA,
            study: self.name,
            command: std::env::args().collect(),
            analysis,
            started,
            planned,
            cells,
            scaling,
            outcomes,
            interrupted,
            results,
            view: self.view,
            summary: Summary::default(),
        };
        document.summary = table::summary(&document);
        document
    }
}

impl Document {
    /// The worst of its cells; 0 where cells could not be measured by their nature.
    fn exit_code(&self) -> u8 {
        self.cells.iter().map(|cell| cell.exit_code).max().unwrap_or(0)
    }

    fn rendered(&self, format: Format) -> String {
        match format {
            Format::Table => table::table(self),
            Format::Json => compare::pretty(self) + "\n",
            Format::Markdown => table::markdown(self),
            Format::Csv => table::csv(self),
        }
    }
}
