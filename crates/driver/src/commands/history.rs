//! `photofinish history`: all runs listed, filtered, as trends, and exported.

use std::path::{Path, PathBuf};

use comparison::history::{Apart, Found, History, Record, Skipped};
use comparison::judge::combined::Runs;
use comparison::judge::records::{self, HISTORY};
use comparison::plan::{Failure, Result};
use render::combined::Combined;
use render::export;
use render::history::{List, Trends, is_exported};

use super::report;
use crate::cli::commands::{FilterArgs, HistoryArgs};
use crate::measure::places;
use crate::measure::results::write_whole;
use crate::output::{print, screen};

/// Records that an export leaves out. Arms of studies are exported.
const NOT_EXPORTED: [Apart; 2] = [Apart::Noisy, Apart::Quick];
/// Records that a trend leaves out. Each arm of an A/B study has its own trend.
pub(super) const NO_TREND: [Apart; 4] = [Apart::Struck, Apart::Noisy, Apart::Quick, Apart::Sweep];

pub(crate) fn history(args: &HistoryArgs) -> Result<u8> {
    let HistoryArgs { filters, metrics, trend, combined, page, export: into, format } = args;
    if *page {
        return report::page_of_history(&results(filters)?);
    }
    if let Some(directory) = into {
        let (found, _, path) = find(filters, &NOT_EXPORTED)?;
        let read = found.records.len();
        let from = format!("of {read} records of {}", path.display());
        let (exported, why) = whole(&found.records);
        prepare_export(Some(directory))?;
        write(&exported, directory)?;
        protocol::say!("exported {} {from} to {}{why}", exported.len(), directory.display());
        tell(&found);
        return Ok(0);
    }
    let apart: &[Apart] = if *trend || *combined { &NO_TREND } else { &Apart::ALL };
    let (found, skipped, _) = find(filters, apart)?;
    let shown =
        render::history::Found { records: &found.records, apart: &found.apart, skipped: &skipped, metrics };
    if *combined {
        print(&export(&Combined(&Runs::by_case(&found.records)), *format, &screen()))?;
        tell(&found);
        return Ok(0);
    }
    print(&if *trend {
        export(&Trends(shown), *format, &screen())
    } else {
        export(&List(shown), *format, &screen())
    })?;
    tell(&found);
    Ok(0)
}

/// The directory that holds the history.
fn results(asked: &FilterArgs) -> Result<PathBuf> {
    match &asked.results_dir {
        Some(directory) => Ok(directory.clone()),
        None => asked.places.find().map(|places| places.results()),
    }
}

/// Prints on stderr how many records are excluded.
fn tell(found: &Found) {
    if let Some(note) = render::history::kept_apart(&found.apart) {
        protocol::say!("{note}");
    }
}

/// The records that match, the lines that are none, and the file. Prints on stderr which lines were skipped,
/// and why no record is left.
fn find(asked: &FilterArgs, apart: &[Apart]) -> Result<(Found, Vec<Skipped>, PathBuf)> {
    let directory = results(asked)?;
    let this = match asked.machine.as_str() {
        "this" => records::fingerprint(&places::read(&asked.places.find()?, String::new())),
        _ => String::new(),
    };
    let path = directory.join(HISTORY);
    let History { records, skipped } = read(&path)?;
    for Skipped { line, reason } in &skipped {
        protocol::say!(
            "warning: line {line} of {} is not a record and is passed over: {reason}",
            path.display()
        );
    }
    let all = records.len();
    let found = asked.filter(&this, apart).select(records);
    if all == 0 {
        protocol::say!("no runs in {} yet: `photofinish compare` adds one", path.display());
    } else if found.records.is_empty() && found.apart.is_empty() {
        protocol::say!("no record of {} matches ({all} in the history)", path.display());
    }
    Ok((found, skipped, path))
}

pub(super) fn read(path: &Path) -> Result<History> {
    crate::history_file::read(path).map_err(|error| Failure::usage(error.to_string()))
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
    let (own, why) = whole(&records);
    let added = add(&own, directory).map_err(|failure| Failure::failed(failure.to_string()))?;
    let (count, all) = (own.len(), records.len());
    protocol::say!(
        "exported {count} of {all} records of this run to {}, which has {added}{why}",
        directory.display()
    );
    Ok(())
}

fn cannot_write(what: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot write {}: {error}", what.display()))
}

/// The records that have a place in the layout, and a note on those left out. The layout has no states, so
/// that records without valid figures (failed, unsupported, struck) are left out.
fn whole(records: &[Record]) -> (Vec<&Record>, String) {
    let exported: Vec<&Record> = records.iter().filter(|record| is_exported(record)).collect();
    let why = match records.len() - exported.len() {
        0 => String::new(),
        left_out => format!("; {left_out} left out, which failed, were struck or could not run"),
    };
    (exported, why)
}

/// Adds records to the history in a directory, and writes its files from all of them. Returns their number.
fn add(records: &[&Record], directory: &Path) -> Result<usize> {
    prepare_export(Some(directory))?;
    let own = directory.join(HISTORY);
    let before = read(&own)?.records;
    // Runs that begin in the same second in two directories have one name.
    let key = |record: &Record| (record.run.clone(), record.time.clone(), record.framework.clone());
    let is_new = |record: &&&Record| !before.iter().any(|known| key(known) == key(record));
    let new: Vec<Record> = records.iter().filter(is_new).map(|record| (*record).clone()).collect();
    crate::history_file::append(&own, &new).map_err(|error| Failure::usage(error.to_string()))?;
    loop {
        let all = read(&own)?.records;
        write(&whole(&all).0, directory)?;
        // Another run may have added its own meanwhile, and written its files before these.
        if read(&own)?.records.len() == all.len() {
            return Ok(all.len());
        }
    }
}

/// Writes each file of the layout whole or not at all.
fn write(records: &[&Record], directory: &Path) -> Result<()> {
    for (name, contents) in render::history::export(records).map_err(Failure::failed)? {
        write_whole(directory, name, &contents)
            .map_err(|error| cannot_write(&directory.join(name), &error))?;
    }
    Ok(())
}
