//! `photofinish history`: all runs listed, filtered, as trends, and exported.

mod filter;

use std::path::{Path, PathBuf};

use ::history::{History, Record, Skipped};
use judge::records::{self, HISTORY};
use measure::environment;
use measure::results::write_whole;
use plan::{Failure, Result};

use crate::cli::history::{FilterArgs, HistoryArgs, HistoryCommand, ListArgs};
use crate::output::{print, screen};

/// The result of a query of the history.
struct Found {
    path: PathBuf,
    /// Oldest first.
    records: Vec<Record>,
    skipped: Vec<Skipped>,
}

pub(crate) fn history(args: &HistoryArgs) -> Result<u8> {
    match &args.command {
        Some(HistoryCommand::Export { directory, filters }) => export(&find(filters)?, directory)?,
        None => {
            let ListArgs { filters, metrics, trend, format } = &args.list;
            let Found { records, skipped, .. } = find(filters)?;
            let rendered = if *trend { render::history::trend } else { render::history::list };
            print(&rendered(&records, &skipped, metrics, (*format).into(), &screen()))?;
        }
    }
    Ok(0)
}

/// Tells on stderr which lines were skipped, and why no record is left.
fn find(asked: &FilterArgs) -> Result<Found> {
    let directory = match &asked.results_dir {
        Some(directory) => directory.clone(),
        None => asked.places.find()?.results(),
    };
    let this = match asked.machine.as_str() {
        "this" => records::fingerprint(&environment::read(&asked.places.find()?, String::new())),
        _ => String::new(),
    };
    let path = directory.join(HISTORY);
    let History { records, skipped } =
        ::history::read(&path).map_err(|error| Failure::usage(error.to_string()))?;
    for Skipped { line, reason } in &skipped {
        eprintln!("warning: line {line} of {} is not a record and is passed over: {reason}", path.display());
    }
    let all = records.len();
    let records = filter::filter(records, asked, &this);
    if all == 0 {
        eprintln!(
            "no runs in {} yet: `cargo xtask compare` or `photofinish compare` adds one",
            path.display()
        );
    } else if records.is_empty() {
        eprintln!("no record of {} matches ({all} in the history)", path.display());
    }
    Ok(Found { path, records, skipped })
}

/// Writes each file of the layout whole or not at all. The layout has no states, so records without valid figures
/// (failed, unsupported, struck) are left out.
fn export(found: &Found, directory: &Path) -> Result<()> {
    let cannot = |what: &Path, error: std::io::Error| {
        Failure::usage(format!("cannot write {}: {error}", what.display()))
    };
    let exported: Vec<&Record> =
        found.records.iter().filter(|record| render::history::is_exported(record)).collect();
    std::fs::create_dir_all(directory).map_err(|error| cannot(directory, error))?;
    for (name, contents) in render::history::export(&exported).map_err(Failure::failed)? {
        write_whole(directory, name, &contents).map_err(|error| cannot(&directory.join(name), error))?;
    }
    let left_out = found.records.len() - exported.len();
    let why = match left_out {
        0 => String::new(),
        _ => format!("; {left_out} left out, which failed, were struck or could not run"),
    };
    eprintln!(
        "exported {} of {} records of {} to {}{why}",
        exported.len(),
        found.records.len(),
        found.path.display(),
        directory.display()
    );
    Ok(())
}
