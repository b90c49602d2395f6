//! What people type after `check` and `diff`.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use statistics::SIGNIFICANCE;

use super::repeat::{self, Typed};
use crate::cli::CompareArgs;
use crate::judge::metrics::Metric;

const _: () = assert!(SIGNIFICANCE == 0.05, "the help below says 5 %");

#[derive(Debug, Clone, Args)]
pub(crate) struct Own {
    /// What to hold the current run against: a report.json, a results directory, a history.jsonl (#RUN picks one
    /// of its runs), a git commit or RUN of the history, or latest
    #[arg(long, value_name = "FILE|COMMIT|RUN|latest", required_unless_present = "base_workers")]
    pub(crate) baseline: Option<String>,
    /// The run to judge [default: measured now, with the baseline's settings and the flags given here]
    #[arg(long, value_name = "FILE|RUN|latest", conflicts_with = "base_workers")]
    pub(crate) current: Option<String>,
    /// Workers of another build: each framework runs as NAME (the driver's own worker) and as NAME@base (DIR's),
    /// interleaved in one comparison
    #[arg(long, value_name = "DIR", conflicts_with = "baseline")]
    pub(crate) base_workers: Option<PathBuf>,
    /// A change for the worse by more than this, if it is certain at the 5 % level, is a regression. For all
    /// metrics, or for one: 5%,load=20%
    #[arg(long, value_name = "PERCENT | METRIC=PERCENT,…", default_value = "5%", value_delimiter = ',',
          value_parser = parse_threshold)]
    threshold: Vec<Threshold>,
    /// Metrics that are judged, by their names in JSON; all: every one [default: those of the table]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_metric)]
    pub(crate) metrics: Vec<String>,
    /// Compare although these differ; a difference is printed all the same
    #[arg(long, value_enum, value_name = "WHAT,…", value_delimiter = ',')]
    pub(crate) allow_different: Vec<Different>,
    /// What to print on stdout; github also adds to the job's summary
    #[arg(id = "output", long = "format", value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
    Markdown,
    Csv,
    /// Annotations of a GitHub workflow
    Github,
    /// A JUnit report in XML
    Junit,
}

const EXIT_CODES: &str = "Exit code: 0 no regression; 1 a framework failed or computed something else; 2 bad usage, or runs \
    that cannot be compared; 3 not measurable; 4 a regression (docs/regressions.md)";

impl Own {
    pub(crate) fn thresholds(&self) -> Thresholds {
        Thresholds(self.threshold.clone())
    }

    pub(crate) fn allows(&self, what: Different) -> bool {
        self.allow_different.contains(&what)
    }
}

/// Its own flags, and those of the comparison that it may have to run. Both have a `--format`; this one's wins.
#[derive(Debug, Clone)]
pub(crate) struct CheckArgs {
    pub(crate) own: Own,
    pub(crate) compare: CompareArgs,
    /// Flags of a comparison, as they were typed.
    pub(crate) typed: Vec<Typed>,
}

impl Args for CheckArgs {
    fn augment_args(command: Command) -> Command {
        let command = Own::augment_args(command).after_help(EXIT_CODES);
        CompareArgs::augment_args(command.next_help_heading("What is measured"))
            .mut_arg("format", |format| format.long("format-of-comparison").hide(true))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for CheckArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(CheckArgs {
            typed: repeat::typed(matches),
            own: Own::from_arg_matches(matches)?,
            compare: CompareArgs::from_arg_matches(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Never refuses: what differs between the runs is said.
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
    pub(crate) places: crate::cli::Places,
}
