//! `photofinish history`: all runs listed, filtered, as trends, and exported.

use std::path::{Path, PathBuf};

use ::history::{Apart, Found, History, Record, Skipped};
use judge::records::{self, HISTORY};
use measure::environment;
use measure::results::write_whole;
use plan::{Failure, Result};
use render::history::is_exported;

use crate::cli::history::{FilterArgs, HistoryArgs, HistoryCommand, ListArgs};
use crate::output::{print, screen};

/// Reasons to keep a record out of an export: an arm of a study has a place there.
const NOT_EXPORTED: [Apart; 2] = [Apart::Noisy, Apart::Quick];

pub(crate) fn history(args: &HistoryArgs) -> Result<u8> {
    match &args.command {
        Some(HistoryCommand::Export { directory, filters }) => {
            let (found, _, path) = find(filters, &NOT_EXPORTED)?;
            let read = found.records.len();
            let from = format!("of {read} records of {}", path.display());
            export(&found.records, directory, &from)?;
            tell(&found);
        }
        None => {
            let ListArgs { filters, metrics, trend, format } = &args.list;
            let (found, skipped, _) = find(filters, &Apart::ALL)?;
            let rendered = if *trend { render::history::trend } else { render::history::list };
            print(&rendered(&found.records, (&found.apart, &skipped), metrics, (*format).into(), &screen()))?;
            tell(&found);
        }
    }
    Ok(0)
}

/// Says on stderr how many records are kept apart.
fn tell(found: &Found) {
    if let Some(note) = render::history::kept_apart(&found.apart) {
        foreign::say!("{note}");
    }
}

/// The records that match, the lines that are none, and the file. Tells on stderr which lines were skipped, and why no
/// record is left.
fn find(asked: &FilterArgs, apart: &[Apart]) -> Result<(Found, Vec<Skipped>, PathBuf)> {
    let directory = match &asked.results_dir {
        Some(directory) => directory.clone(),
        None => asked.places.find()?.results(),
    };
    let this = match asked.machine.as_str() {
        "this" => records::fingerprint(&environment::read(&asked.places.find()?, String::new())),
        _ => String::new(),
    };
    let path = directory.join(HISTORY);
    let History { records, skipped } = read(&path)?;
    for Skipped { line, reason } in &skipped {
        foreign::say!(
            "warning: line {line} of {} is not a record and is passed over: {reason}",
            path.display()
        );
    }
    let all = records.len();
    let found = asked.filter(&this, apart).select(records);
    if all == 0 {
        foreign::say!(
            "no runs in {} yet: `cargo xtask compare` or `photofinish compare` adds one",
            path.display()
        );
    } else if found.records.is_empty() && found.apart.is_empty() {
        foreign::say!("no record of {} matches ({all} in the history)", path.display());
    }
    Ok((found, skipped, path))
}

fn read(path: &Path) -> Result<History> {
    ::history::read(path).map_err(|error| Failure::usage(error.to_string()))
}

/// Makes the directory of an export, so that a bad one is refused before anything is measured.
pub(super) fn prepare_export(directory: Option<&Path>) -> Result<()> {
    let Some(directory) = directory else { return Ok(()) };
    std::fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))
}

/// Exports the records of these results directories, of runs or of studies with their cells, from the history in
/// `results`.
pub(super) fn export_runs(runs: &[String], results: &Path, directory: Option<&Path>) -> Result<()> {
    let Some(directory) = directory else { return Ok(()) };
    let names: Vec<&str> = runs.iter().filter_map(|run| Path::new(run).file_name()?.to_str()).collect();
    let is_own = |record: &Record| names.contains(&record.run.split('/').next().unwrap_or_default());
    let mut records = read(&results.join(HISTORY))?.records;
    records.retain(is_own);
    let from = format!("of {} records of this run", records.len());
    export(&records, directory, &from).map_err(|failure| Failure::failed(failure.to_string()))
}

fn cannot_write(what: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot write {}: {error}", what.display()))
}

/// Writes each file of the layout whole or not at all. The layout has no states, so records without valid figures
/// (failed, unsupported, struck) are left out.
fn export(records: &[Record], directory: &Path, from: &str) -> Result<()> {
    let exported: Vec<&Record> = records.iter().filter(|record| is_exported(record)).collect();
    prepare_export(Some(directory))?;
    for (name, contents) in render::history::export(&exported).map_err(Failure::failed)? {
        write_whole(directory, name, &contents)
            .map_err(|error| cannot_write(&directory.join(name), &error))?;
    }
    let left_out = records.len() - exported.len();
    let why = match left_out {
        0 => String::new(),
        _ => format!("; {left_out} left out, which failed, were struck or could not run"),
    };
    foreign::say!("exported {} {from} to {}{why}", exported.len(), directory.display());
    Ok(())
}
