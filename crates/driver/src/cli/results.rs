//! The flags of commands that work on earlier results, as typed: `diff`, `report`.

use std::path::PathBuf;

use clap::Args;
use comparison::judge::Metric;
use comparison::judge::regression::parse_metric;
use comparison::plan;
use comparison::plan::flags;

use super::commands::Output;
use super::{Format, Places};

#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArgs {
    /// A report.json, a results directory, a history.jsonl (#RUN picks one of its runs; the default is its newest), or
    /// a RUN of the history
    pub(crate) a: String,
    pub(crate) b: String,
    /// Metrics to compare, by their names in JSON; all: every one [default: those of the table]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_metric)]
    pub(crate) metrics: Vec<String>,
    /// Margin of equivalence: smaller differences count as none
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = flags::share)]
    pub(crate) margin: f64,
    /// Directory of the results
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    /// Format of the output on stdout
    #[arg(long = "format", value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReportArgs {
    /// A results directory [default: the newest one]; several runs of one case are combined; parts of one study (`sweep
    /// --cells 1/4`) make one table
    #[arg(value_name = "DIR")]
    pub(crate) directories: Vec<PathBuf>,
    /// Also write the outputs of the whole study there, if several parts are given
    #[arg(short, long = "output", value_name = "OUT", requires = "directories")]
    pub(crate) out: Option<PathBuf>,
    /// Format of the table, if several directories are given
    #[arg(long, value_enum, default_value_t = Format::Table, requires = "directories")]
    pub(crate) format: Format,
    /// Print an entry of BibTeX and a sentence to cite the run with, and write nothing
    #[arg(long, conflicts_with_all = ["rejudge", "archive", "out", "picture", "open"])]
    pub(crate) cite: bool,
    /// Judge the samples again with today's rules, and list the verdicts that changed. The outputs go to DIR/rejudged
    #[arg(long)]
    pub(crate) rejudge: bool,
    /// Replace the old outputs by the new judgement
    #[arg(long, requires = "rejudge")]
    pub(crate) in_place: bool,
    /// Open the page of the run in the browser, and write nothing
    #[arg(long, conflicts_with_all = ["rejudge", "archive", "out", "picture"])]
    pub(crate) open: bool,
    /// Pack the run's facts into DIR.tar.gz, without paths and without the names of the machine and its user
    #[arg(long, conflicts_with_all = ["rejudge", "in_place"])]
    pub(crate) archive: bool,
    /// With --archive: sign it by this key of OpenSSH. The signature is DIR.tar.gz.sig
    #[arg(long, value_name = "KEY", requires = "archive")]
    pub(crate) sign: Option<PathBuf>,
    /// Check the signature of an archive, ARCHIVE.sig, and the sha256 of each file in it
    #[arg(long, value_name = "ARCHIVE", requires = "signers", conflicts_with_all = ["directories", "rejudge", "archive",
        "cite", "out", "picture", "open"])]
    pub(crate) verify: Option<PathBuf>,
    /// With --verify: the public keys of those who may sign, one a line, as in KEY.pub or github.com/NAME.keys
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub(crate) signers: Option<PathBuf>,
    /// Write a picture of one metric, such as throughput: METRIC.png and METRIC.svg in the results directory
    #[arg(long, value_name = "METRIC", value_parser = parse_one, conflicts_with_all = ["rejudge", "in_place", "archive"])]
    pub(crate) picture: Option<Metric>,
    /// Title of the picture [default: the frameworks and the model]
    #[arg(long, value_name = "TEXT", requires = "picture")]
    pub(crate) title: Option<String>,
    #[command(flatten)]
    pub(crate) from: ResultsArgs,
}

/// A metric by its name, or by its words.
pub(super) fn parse_one(text: &str) -> Result<Metric, String> {
    Metric::parse(text).ok_or_else(|| {
        let names: Vec<String> = Metric::ALL.iter().copied().map(Metric::flag).collect();
        format!("there are {}", names.join(", "))
    })
}

/// Where results are.
#[derive(Debug, Clone, Args)]
pub(crate) struct ResultsArgs {
    /// Directory of the results
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) places: Places,
}

impl ResultsArgs {
    /// The directory that was typed, or the usual one.
    pub(crate) fn directory(&self) -> plan::Result<PathBuf> {
        match &self.results_dir {
            Some(directory) => Ok(directory.clone()),
            None => self.places.find().map(|places| places.results()),
        }
    }
}
