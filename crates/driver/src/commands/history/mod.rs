//! `driver history`: what is kept of every run, listed, filtered, as trends, and exported.

pub(crate) mod args;
mod export;
mod filter;
mod flat;
mod list;
mod trend;

use std::path::PathBuf;

use history::{Record, Skipped};

use self::args::{FilterArgs, HistoryArgs, HistoryCommand};
use crate::environment;
use crate::failure::{Failure, Result};
use crate::places::Places;
use crate::records::{self, HISTORY};

/// What was asked for of a history.
struct Found {
    path: PathBuf,
    /// Oldest first.
    records: Vec<Record>,
    skipped: Vec<Skipped>,
}

pub(crate) fn history(args: &HistoryArgs) -> Result<u8> {
    match &args.command {
        Some(HistoryCommand::Export { directory, filters }) => export::export(&find(filters)?, directory)?,
        None => {
            let found = find(&args.list.filters)?;
            let text = if args.list.trend {
                trend::rendered(&found, &args.list.metric, args.list.format)
            } else {
                list::rendered(&found, &args.list.metric, args.list.format)
            };
            crate::print(&text)?;
        }
    }
    Ok(0)
}

/// Says on stderr what was passed over, and why nothing is left.
fn find(asked: &FilterArgs) -> Result<Found> {
    let places = || Places::find(&asked.places);
    let directory = match &asked.results_dir {
        Some(directory) => directory.clone(),
        None => places()?.results(),
    };
    let this = match asked.machine.as_str() {
        "this" => records::fingerprint(&environment::read(&places()?, String::new())),
        _ => String::new(),
    };
    let path = directory.join(HISTORY);
    let history::History { records, skipped } =
        history::read(&path).map_err(|error| Failure::usage(error.to_string()))?;
    for Skipped { line, reason } in &skipped {
        eprintln!("warning: line {line} of {} is no record and is passed over: {reason}", path.display());
    }
    let all = records.len();
    let records = filter::filter(records, asked, &this);
    if all == 0 {
        eprintln!("no runs in {} yet: `cargo xtask compare` or `driver compare` adds one", path.display());
    } else if records.is_empty() {
        eprintln!("none of the {all} records in {} is meant by these filters", path.display());
    }
    Ok(Found { path, records, skipped })
}
