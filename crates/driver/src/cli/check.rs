//! The flags of `photofinish check`, as typed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use judge::regression::thresholds::{Threshold, Thresholds, parse_metric, parse_threshold};
use statistics::SIGNIFICANCE;

use super::{HereArgs, RequestArgs};

const _: () = assert!(SIGNIFICANCE == 0.05, "the help below says 5 %");

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CheckArgs {
    /// An archive that `photofinish report DIR --archive` made: its run is judged again from its samples, and its report
    /// must agree
    #[arg(value_name = "ARCHIVE", exclusive = true)]
    pub(crate) archive: Option<PathBuf>,
    /// The baseline: a report.json, a results directory, a history.jsonl (#RUN picks one of its runs), a git commit or
    /// RUN of the history, or latest
    #[arg(long, value_name = "FILE|COMMIT|RUN|latest", required_unless_present_any = ["archive", "base_workers", "base_version"])]
    pub(crate) baseline: Option<String>,
    /// The run to judge [default: measured now, with the baseline's settings and the flags given here]
    #[arg(long, value_name = "FILE|RUN|latest", conflicts_with_all = ["base_workers", "base_version"])]
    pub(crate) current: Option<String>,
    /// Workers of another build: each framework runs as NAME (this program's own worker) and as NAME@base (the worker
    /// in DIR), interleaved in one comparison
    #[arg(long, value_name = "DIR", conflicts_with = "baseline")]
    pub(crate) base_workers: Option<PathBuf>,
    /// Another version of each framework: it runs as NAME and, with this version, as NAME@base, interleaved in one
    /// comparison. A release, the path of its sources or library, or git:URL#REVISION
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["baseline", "base_workers"])]
    pub(crate) base_version: Option<String>,
    /// A change for the worse is a regression if it exceeds this threshold and is significant at the 5 % level. One
    /// value for all metrics, or a value for one: 5%,load=20%
    #[arg(long, value_name = "PERCENT | METRIC=PERCENT,…", default_value = "5%", value_delimiter = ',',
          value_parser = parse_threshold)]
    threshold: Vec<Threshold>,
    /// Metrics to judge, by their names in JSON; all: every one [default: those of the table]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_metric)]
    pub(crate) metrics: Vec<String>,
    /// Compare even if these differ; every difference is still printed
    #[arg(long, value_enum, value_name = "WHAT,…", value_delimiter = ',')]
    pub(crate) allow_different: Vec<Different>,
    /// Format of the output on stdout; github also adds to the job's summary
    #[arg(long = "format", value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    /// Directory of the results
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    #[command(flatten, next_help_heading = "What is measured")]
    pub(crate) request: RequestArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Different {
    /// Another machine, or this one at another speed
    Machine,
    /// The work that was computed, and how it was measured
    Settings,
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
    that cannot be compared; 3 not measurable; 4 a regression (docs/how-to/gate-ci.md)";

impl CheckArgs {
    pub(crate) fn thresholds(&self) -> Thresholds {
        Thresholds(self.threshold.clone())
    }

    pub(crate) fn allows(&self, what: Different) -> bool {
        self.allow_different.contains(&what)
    }
}

/// The flags of `photofinish gate`, as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct GateArgs {
    /// The framework whose repository this is, by its name in configs/engines
    #[arg(long, value_name = "NAME")]
    pub(crate) framework: String,
    /// The commit to compare with: a branch, a tag, a hash
    #[arg(long, value_name = "REV")]
    pub(crate) base: String,
    /// The commit to judge [default: the checkout as it is]
    #[arg(long, value_name = "REV")]
    pub(crate) head: Option<String>,
    /// A checkout of the framework's repository
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) checkout: PathBuf,
    /// Flags of `photofinish check`: --threshold 5% (here 3%, unless given), --model NAME, --format github, ..
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAG OF CHECK")]
    pub(crate) check: Vec<String>,
}
