//! `driver report`: pages and pictures of what was measured earlier.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{history, write};
use crate::cli::Places as PlacesArgs;
use crate::failure::{Failure, Result};
use crate::places::Places;
use crate::records::HISTORY;

#[derive(Debug, Clone, Args)]
pub(crate) struct ReportArgs {
    /// A results directory; latest: the newest there is; history: every run over time
    #[arg(value_name = "DIR|latest|history", default_value = "latest")]
    what: PathBuf,
    /// Where results are kept
    #[arg(long, value_name = "DIR")]
    results_dir: Option<PathBuf>,
    #[command(flatten)]
    places: PlacesArgs,
}

pub(crate) fn report(args: &ReportArgs) -> Result<u8> {
    let results = || match &args.results_dir {
        Some(directory) => Ok(directory.clone()),
        None => Places::find(&args.places).map(|places| places.results()),
    };
    // A directory of that name is meant where there is one.
    let written = match args.what.to_str() {
        Some("latest") if !args.what.is_dir() => write(&latest(&results()?)?)?,
        Some("history") if !args.what.is_dir() => {
            let directory = results()?;
            history::write(&directory.join(HISTORY), &directory)?
        }
        _ => write(&args.what)?,
    };
    let lines: String = written.iter().map(|path| format!("{}\n", path.display())).collect();
    crate::print(&lines)?;
    Ok(0)
}

/// Names begin with the time of the run, so the last by name is the newest.
fn latest(results: &Path) -> Result<PathBuf> {
    let none = |reason: String| Failure::usage(format!("no results in {}: {reason}", results.display()));
    let entries = std::fs::read_dir(results).map_err(|e| none(e.to_string()))?;
    let directories = entries.flatten().map(|entry| entry.path());
    let newest = directories.filter(|path| path.join("report.json").is_file()).max();
    newest.ok_or_else(|| none("measure something first, or name another place with --results-dir".into()))
}
