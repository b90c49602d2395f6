//! The flags of commands that run no model, and of `check` and `gate`, as typed.

// `photofinish cache`.

use std::path::PathBuf;

use bundle::Precision;
use clap::{Args, Subcommand, ValueEnum};
use comparison::history::{Apart, Filter};
use comparison::judge::Metric;
use comparison::judge::regression::CheckAsked;
use comparison::plan::{Request, flags};
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, Duration, OffsetDateTime};

use super::results::parse_one;
use super::{Format, HereArgs, Places, RequestArgs, ResultsArgs};
use crate::measure::bundles::Rule;

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) command: Option<CacheCommand>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum CacheCommand {
    /// Remove prepared models that are not used any more; --dry-run lists them and removes nothing
    ///
    /// A model that is in use stays. A removed one is prepared again when a run asks for it.
    Prune(PruneArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PruneArgs {
    /// Days without use after which a prepared model is removed; 0 removes all
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub(crate) unused_for: u32,
    /// Prepared models to keep, by the name of the model or of the directory
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) keep: Vec<String>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ShownArgs {
    /// Format of the output on stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) places: Places,
}

impl PruneArgs {
    pub(crate) fn rule(&self) -> Rule {
        Rule { unused_for: self.unused_for, keep: self.keep.clone() }
    }
}

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

// `photofinish footprint` as typed.

#[derive(Debug, Clone, Args)]
pub(crate) struct FootprintArgs {
    /// Names from configs/engines [default: candle,tch,ort]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) frameworks: Vec<String>,
    /// Also build each worker twice from nothing, for the time of a build and the smallest size; takes minutes for each
    #[arg(long)]
    pub(crate) build: bool,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    /// Format of the output on stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

// The flags of `photofinish history`, as typed.

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct HistoryArgs {
    #[command(subcommand)]
    pub(crate) command: Option<HistoryCommand>,
    #[command(flatten)]
    pub(crate) list: HistoryListArgs,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum HistoryCommand {
    /// Write inference_metrics.json and .csv, in the layout that other tools of this field read, and pictures
    Export {
        /// Directory to write to; it is created if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        #[command(flatten)]
        filters: FilterArgs,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct HistoryListArgs {
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Metrics to show for each record, with their intervals [default: throughput,peak-memory; with --trend: throughput]
    #[arg(long, alias = "metric", value_name = "NAME,…", value_delimiter = ',', value_parser = parse_one)]
    pub(crate) metrics: Vec<Metric>,
    /// Show a figure from commit to commit, with what changed: a table for each machine, framework and case
    #[arg(long)]
    pub(crate) trend: bool,
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

// The flags of commands that say what there is and provide it: `setup`, `doctor`, `list`, `prepare`, `open`.

#[derive(Debug, Clone, Args)]
pub(crate) struct SetupArgs {
    #[command(flatten)]
    pub(crate) asked: setup::Asked,
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
    /// What to list [default: all three]
    #[arg(value_enum)]
    pub(crate) kind: Option<ListKind>,
    /// Format of the output on stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) places: Places,
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
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PrepareArgs {
    /// Names from configs/models, directories, .gguf or .onnx files, hf:owner/name, or synthetic:NAME
    #[arg(required = true, value_name = "MODEL", value_delimiter = ',')]
    pub(crate) models: Vec<String>,
    /// Precisions to prepare
    #[arg(long, value_parser = flags::precision(), value_delimiter = ',', default_value = "f32")]
    pub(crate) precision: Vec<Precision>,
    #[command(flatten)]
    pub(crate) here: HereArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OpenArgs {
    /// A results directory [default: the newest one]
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) from: ResultsArgs,
}

// The flags of `photofinish worker-check`.

#[derive(Debug, Clone, Args)]
#[command(after_help = WORKER_CHECK_EXIT_CODES)]
pub(crate) struct WorkerCheckArgs {
    /// The worker: the path of a program in any language, or a name from configs/engines
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
