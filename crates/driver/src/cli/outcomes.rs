//! What people type after the commands that work on what was measured: `diff`, `report`.

use std::path::PathBuf;

use clap::Args;
use judge::regression::thresholds::{parse_metric, parse_share};

use super::Places;
use super::check::Output;

#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArgs {
    /// A report.json, a results directory, a history.jsonl (#RUN picks one of its runs; else its newest), or a RUN
    /// of the history
    pub(crate) a: String,
    pub(crate) b: String,
    /// Metrics that are compared, by their names in JSON; all: every one [default: those of the table]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_metric)]
    pub(crate) metrics: Vec<String>,
    /// Differences within this many percent are taken for none
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = parse_share)]
    pub(crate) margin: f64,
    /// Where results are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    /// What to print on stdout
    #[arg(long = "format", value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) places: Places,
}
#[derive(Debug, Clone, Args)]
pub(crate) struct ReportArgs {
    /// A results directory; latest: the newest there is; history: every run over time
    #[arg(value_name = "DIR|latest|history", default_value = "latest")]
    pub(crate) what: PathBuf,
    /// Decide again from the samples, with today's rules, and say which verdicts changed. The outputs go to
    /// DIR/rejudged
    #[arg(long)]
    pub(crate) rejudge: bool,
    /// Write what was decided again over the old outputs
    #[arg(long, requires = "rejudge")]
    pub(crate) in_place: bool,
    /// Where results are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) places: Places,
}
