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
pub(crate) enum Different {
    /// Another machine, or this one at another speed
    Machine,
    /// What was computed, and how it was measured
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

/// For one metric, or for all.
#[derive(Debug, Clone, PartialEq)]
struct Threshold {
    metric: Option<String>,
    share: f64,
}

/// By metric.
#[derive(Debug, Clone)]
pub(crate) struct Thresholds(Vec<Threshold>);

impl Thresholds {
    /// One for all.
    pub(crate) fn all(share: f64) -> Thresholds {
        Thresholds(vec![Threshold { metric: None, share }])
    }

    /// As a share.
    pub(crate) fn of(&self, metric: &str) -> f64 {
        let last = |of: Option<&str>| self.0.iter().rev().find(|threshold| threshold.metric.as_deref() == of);
        last(Some(metric)).or_else(|| last(None)).map_or(DEFAULT_THRESHOLD, |threshold| threshold.share)
    }
}

const EXIT_CODES: &str = "Exit code: 0 no regression; 1 a framework failed or computed something else; 2 bad usage, or runs \
    that cannot be compared; 3 not measurable; 4 a regression (docs/regressions.md)";
const DEFAULT_THRESHOLD: f64 = 0.05;

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

fn parse_threshold(text: &str) -> Result<Threshold, String> {
    match text.split_once('=') {
        None => Ok(Threshold { metric: None, share: parse_share(text)? }),
        Some((metric, share)) => {
            Ok(Threshold { metric: Some(parse_metric(metric)?), share: parse_share(share)? })
        }
    }
}

/// "5%" or "5".
fn parse_share(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("a number of percent from 0 to 1000, as in 5%".into()),
    }
}

fn parse_metric(text: &str) -> Result<String, String> {
    let name = text.trim().replace('-', "_");
    let names: Vec<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
    if name == ALL || names.contains(&name.as_str()) {
        return Ok(name);
    }
    Err(format!("there are {}, and {ALL}", names.join(", ")))
}

/// Every metric that there is.
pub(crate) const ALL: &str = "all";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_may_have_a_threshold_of_its_own() {
        let thresholds = ["5%", "load=20%", "peak-memory=1.5"].map(|text| parse_threshold(text).unwrap());
        let thresholds = Thresholds(thresholds.into());
        assert_eq!((thresholds.of("latency"), thresholds.of("load")), (0.05, 0.2));
        assert_eq!(thresholds.of("peak_memory"), 0.015);
        assert!(parse_threshold("speed=3%").unwrap_err().contains("throughput"));
        assert!(parse_threshold("-1%").is_err() && parse_threshold("load").is_err());
    }

    #[test]
    fn a_threshold_for_one_metric_leaves_the_others_theirs() {
        let thresholds = Thresholds(vec![parse_threshold("load=20%").unwrap()]);
        assert_eq!((thresholds.of("latency"), thresholds.of("load")), (0.05, 0.2));
    }
}
