//! The flags of commands that run no model, and of `check`, as typed.

use std::path::PathBuf;

use bundle::Precision;
use clap::{Args, ValueEnum};
use comparison::history::{Apart, Filter};
use comparison::judge::Metric;
use comparison::judge::regression::CheckAsked;
use comparison::plan::{self, Request, flags};
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, Duration, OffsetDateTime};

use super::results::parse_one;
use super::{Format, HereArgs, Places, RequestArgs, ResultsArgs};
use crate::measure::bundles::Rule;

// The flags of `photofinish check`, as typed.

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CheckArgs {
    /// An archive that `photofinish report DIR --archive` made: its run is judged again from its samples, and its report
    /// must agree
    #[arg(value_name = "ARCHIVE", exclusive = true)]
    pub(crate) archive: Option<PathBuf>,
    /// The baseline: a report.json, a results directory, a history.jsonl (#RUN picks one of its runs), a git commit or
    /// RUN of the history, or latest
    #[arg(long, value_name = "FILE|COMMIT|RUN|latest")]
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
    /// A commit of the repository of the framework that --frameworks names: a branch, a tag, a hash
    #[arg(long, value_name = "REV", conflicts_with_all = ["baseline", "base_workers", "base_version", "current"])]
    pub(crate) base: Option<String>,
    /// With --base: the commit to judge [default: the checkout as it is]
    #[arg(long, value_name = "REV", requires = "base")]
    pub(crate) head: Option<String>,
    /// With --base: a checkout of the framework's repository
    #[arg(long, value_name = "DIR", default_value = ".", requires = "base")]
    pub(crate) checkout: PathBuf,
    #[command(flatten)]
    pub(crate) asked: CheckAsked,
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

// The flags of `photofinish history`, as typed.

#[derive(Debug, Clone, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Metrics to show for each record, with their intervals [default: throughput,peak-memory; with --trend: throughput]
    #[arg(long, alias = "metric", value_name = "NAME,…", value_delimiter = ',', value_parser = parse_one)]
    pub(crate) metrics: Vec<Metric>,
    /// Show a figure from commit to commit, with what changed: a table for each machine, framework and case
    #[arg(long)]
    pub(crate) trend: bool,
    /// Combine the runs of each machine and case: how many times better each framework is than another over all runs
    #[arg(long, conflicts_with_all = ["trend", "export", "metrics"])]
    pub(crate) combined: bool,
    /// Write the page and pictures of all runs over time
    #[arg(long, conflicts_with_all = ["trend", "combined", "export", "metrics", "format", "frameworks", "model", "precision", "machine",
        "since", "commit", "study", "all", "last"])]
    pub(crate) page: bool,
    /// Write inference_metrics.json and .csv, in the layout that other tools of this field read, and pictures
    #[arg(long, value_name = "DIR", conflicts_with_all = ["trend", "metrics", "format"])]
    pub(crate) export: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// Filters that select records.
#[derive(Debug, Clone, Args)]
pub(crate) struct FilterArgs {
    /// By label, as in the table: candle, tch-base
    #[arg(long, alias = "framework", value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) frameworks: Vec<String>,
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) model: Vec<String>,
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) precision: Vec<String>,
    /// this, the start of a fingerprint, or all
    #[arg(long, value_name = "MACHINE", default_value = "all")]
    pub(crate) machine: String,
    /// Runs that began at this date or later (2026-11-21, or with a time as in RFC 3339; UTC), or in the last N
    /// days (30d)
    #[arg(long, value_name = "DATE|Nd", value_parser = parse_since)]
    pub(crate) since: Option<OffsetDateTime>,
    /// The start of a commit
    #[arg(long, value_name = "COMMIT")]
    pub(crate) commit: Option<String>,
    /// Cells of studies: sweep, "sweep forward", ab
    #[arg(long, value_name = "NAME")]
    pub(crate) study: Option<String>,
    /// Include runs that were noisy, quick or struck, and cells of studies (marked)
    #[arg(long)]
    pub(crate) all: bool,
    /// The last N of the runs that match
    #[arg(long, value_name = "N", value_parser = flags::number())]
    pub(crate) last: Option<u32>,
    /// Directory that holds history.jsonl
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) places: Places,
}

impl FilterArgs {
    /// The filter; `this` is the fingerprint of this machine. Without --all, records with a reason of `apart` are kept
    /// apart.
    pub(crate) fn filter(&self, this: &str, apart: &[Apart]) -> Filter {
        let machine = match self.machine.as_str() {
            "all" => "",
            "this" => this,
            fingerprint => fingerprint,
        };
        Filter {
            frameworks: self.frameworks.clone(),
            models: self.model.clone(),
            precisions: self.precision.clone(),
            machine: machine.to_owned(),
            since: self.since,
            commit: self.commit.clone(),
            study: self.study.clone(),
            last: self.last,
            keep_apart: if self.all { Vec::new() } else { apart.to_vec() },
        }
    }
}

fn parse_since(text: &str) -> Result<OffsetDateTime, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u16>().ok());
    let ago = days.map(|days| OffsetDateTime::now_utc() - Duration::days(days.into()));
    let date = || Date::parse(text, format_description!("[year]-[month]-[day]")).ok();
    ago.or_else(|| date().map(|date| date.midnight().assume_utc()))
        .or_else(|| OffsetDateTime::parse(text, &Rfc3339).ok())
        .ok_or_else(|| "a date (2026-11-21), a time of RFC 3339 (2026-11-21T15:14:00Z), or days (30d)".into())
}

// The flags of commands that say what there is and provide it: `setup`, `doctor`, `list`, `show`.

#[derive(Debug, Clone, Args)]
pub(crate) struct SetupArgs {
    #[command(flatten)]
    pub(crate) asked: setup::Asked,
    /// Prepare models instead: download, convert, verify. Names, directories, .gguf or .onnx files, hf:owner/name,
    /// synthetic:NAME
    #[arg(long, value_name = "MODEL,…", value_delimiter = ',', num_args = 1..,
          conflicts_with_all = ["only", "to", "references", "device"])]
    pub(crate) models: Vec<String>,
    /// Precisions of --models
    #[arg(long, value_parser = flags::precision(), value_delimiter = ',', default_value = "f32", requires = "models",
          hide_possible_values = true)]
    pub(crate) precision: Vec<Precision>,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    /// Also hash every file of the installed libraries, which takes seconds
    #[arg(long)]
    pub(crate) deep: bool,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    /// What to list [default: frameworks, models and suites]
    #[arg(value_enum)]
    pub(crate) kind: Option<ListKind>,
    /// With `cache`: remove prepared models that are not used any more; --dry-run removes nothing
    ///
    /// A model that is in use stays. A removed one is prepared again when a run asks for it.
    #[arg(long)]
    pub(crate) prune: bool,
    /// With --prune: days without use after which a prepared model is removed; 0 removes all [default: 30]
    #[arg(long, value_name = "DAYS", requires = "prune")]
    pub(crate) unused_for: Option<u32>,
    /// With --prune: prepared models to keep, by the name of the model or of the directory
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "prune")]
    pub(crate) keep: Vec<String>,
    /// With `footprint`: names from `list frameworks` [default: candle,tch,ort]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) frameworks: Vec<String>,
    /// With `footprint`: also build each worker twice from nothing, for the time of a build and the smallest size; takes
    /// minutes for each
    #[arg(long)]
    pub(crate) build: bool,
    /// Format of the output on stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) here: HereArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListKind {
    /// Names for --frameworks
    #[value(alias = "engines")]
    Frameworks,
    /// Names for --model. Paths, .gguf and .onnx files, hf:owner/name and synthetic:NAME are models, too
    Models,
    /// Names for --suite
    Suites,
    /// Prepared models in the cache, with sizes and last uses
    Cache,
    /// What must be shipped to run each framework, measured: program, libraries, files, start-up
    Footprint,
}

impl ListArgs {
    /// Refuses a flag of another kind.
    pub(crate) fn check(&self) -> plan::Result<()> {
        let of_cache = self.prune;
        let of_footprint = self.build || !self.frameworks.is_empty();
        if of_cache && self.kind != Some(ListKind::Cache) {
            return Err(plan::Failure::usage("--prune is for `photofinish list cache`"));
        }
        if of_footprint && self.kind != Some(ListKind::Footprint) {
            return Err(plan::Failure::usage(
                "--frameworks and --build are for `photofinish list footprint`",
            ));
        }
        Ok(())
    }

    /// Which prepared models --prune removes.
    pub(crate) fn rule(&self) -> Rule {
        Rule { unused_for: self.unused_for.unwrap_or(UNUSED_DAYS), keep: self.keep.clone() }
    }
}

const UNUSED_DAYS: u32 = 30;

/// A results directory that is shown.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShowArgs {
    /// A results directory of a run or a study [default: the newest one]
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Format of the output on stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) from: ResultsArgs,
}

// The flags of `photofinish worker-check`.

#[derive(Debug, Clone, Args)]
#[command(after_help = WORKER_CHECK_EXIT_CODES)]
pub(crate) struct WorkerCheckArgs {
    /// The worker: the path of a program in any language, or a name of `photofinish list frameworks`
    #[arg(value_name = "PATH|NAME")]
    pub(crate) worker: String,
    /// The model that it works on, as for a comparison
    #[arg(short, long, value_name = "MODEL", default_value = "synthetic:llama-tiny")]
    pub(crate) model: String,
    /// The precision that it is asked for
    #[arg(long, value_parser = flags::precision(), default_value = "f32")]
    pub(crate) precision: Precision,
    /// auto, cpu or cuda[:N]; auto is the CPU
    #[arg(long, value_parser = flags::device, default_value = "cpu")]
    pub(crate) device: String,
    /// Threads that it may compute with [default: all cores this process may use]
    #[arg(short, long, value_name = "N", value_parser = flags::count(1, 1024))]
    pub(crate) threads: Option<u32>,
    /// Longest wait for one line
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = flags::timeout)]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) here: HereArgs,
}

const WORKER_CHECK_EXIT_CODES: &str =
    "Exit code: 0 every phase holds; 1 one does not; 2 bad usage (docs/how-to/add-an-engine.md)";

impl WorkerCheckArgs {
    /// The settings that a worker of configs/engines is started with.
    pub(crate) fn request(&self) -> Request {
        Request {
            models: vec![self.model.clone()],
            precisions: vec![self.precision],
            device: self.device.clone(),
            threads: self.threads.into_iter().collect(),
            timeout_s: self.timeout,
            ..Request::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_a_time_and_days_are_moments() {
        let at = |text: &str| parse_since(text).map(|moment| moment.unix_timestamp());
        assert_eq!(at("2026-11-21"), Ok(1_795_219_200));
        assert_eq!(at("2026-11-21T01:00:00+01:00"), Ok(1_795_219_200));
        let now = OffsetDateTime::now_utc().unix_timestamp();
        assert!((now - 2 * 86_400 - at("2d").unwrap()).abs() < 60);
        for text in ["", "d", "-1d", "yesterday", "2026-13-01", "70000d"] {
            assert!(at(text).is_err(), "{text}");
        }
    }
}
