//! The command line as typed. It becomes a `Request`, which knows nothing of flags.

pub(crate) mod commands;
pub(crate) mod encode;
pub(crate) mod help;
pub(crate) mod request;
mod results;
pub(crate) mod spelling;
pub(crate) mod work;

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
pub(crate) use commands::{
    CheckArgs, DoctorArgs, HistoryArgs, ListArgs, ListKind, SetupArgs, ShowArgs, WorkerCheckArgs,
};
use comparison::plan;
use comparison::plan::ab;
use comparison::plan::sweep::SweepKind;
use comparison::plan::{StudyKind, StudyRequest};
use help::{OUTPUT, VERSION, after_help, after_long_help};
pub(crate) use render::Format;
pub(crate) use request::ChatFlag;
pub(crate) use request::RequestArgs;
pub(crate) use request::ScreenArgs;
pub(crate) use request::{ModelArgs, models};
pub(crate) use results::{DiffArgs, ReportArgs, ResultsArgs};
use work::{ParityArgs, ProfileArgs, RunArgs};

use crate::measure;
pub(crate) use crate::measure::places::GivenPlaces as Places;

/// Compares inference frameworks on the same weights, precision and prompts, each in a process of its
/// own, and says whether a difference is real.
///
/// Without a command, `compare` runs.
#[derive(Debug, Parser)]
#[command(name = "photofinish", version = VERSION, args_conflicts_with_subcommands = true)]
#[command(after_help = after_help(), after_long_help = after_long_help())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) compare: CompareArgs,
    /// Resolve the command and print its plan; nothing is built, fetched or measured
    #[arg(long, global = true, help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) screen: ScreenArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure frameworks side by side (the default command)
    #[command(after_help = after_help(), after_long_help = after_long_help())]
    Compare(Box<CompareArgs>),
    /// Run a model once on one framework: continue, embed, rerank, classify, infer
    ///
    /// What it does follows from the model: a decoder continues --prompt, a model of masked diffusion fills in behind
    /// it, an encoder turns --text into vectors or scores, or scores a --pair, and the outputs of an ONNX file are
    /// written to --output. --tokens-file writes the logits of given tokens.
    Run(Box<RunArgs>),
    /// Repeat a comparison while a setting changes, or with an optimisation on and off
    Sweep(Box<SweepArgs>),
    /// Check whether a run, version or commit is slower than another, as a gate for CI
    Check(Box<CheckArgs>),
    /// Compare outputs with a reference, layer by layer and token by token
    Parity(ParityArgs),
    /// Show where a framework's CPU time goes, or one run on a timeline
    Profile(ProfileArgs),
    /// Show the answer and the table of a run again
    Show(ShowArgs),
    /// Show two runs from anywhere side by side
    Diff(Box<DiffArgs>),
    /// List, filter and export all runs, or show their trends
    History(Box<HistoryArgs>),
    /// Write the page of a run again, open it, or pack the run to be sent
    Report(ReportArgs),
    /// Download what the frameworks need, or prepare models
    ///
    /// The cache directory is ${XDG_CACHE_HOME:-~/.cache}/photofinish. LIBTORCH and ORT_DYLIB_PATH, if set, are used
    /// instead of a download. A comparison downloads missing pieces by itself.
    Setup(SetupArgs),
    /// List frameworks, models, suites, the cache, or what each framework ships
    #[command(alias = "ls")]
    List(ListArgs),
    /// Check what can run here, and print what to do for the rest
    Doctor(DoctorArgs),
    /// Check that a worker, in any language, follows the protocol
    WorkerCheck(WorkerCheckArgs),
    /// Print the completions of a shell: `photofinish completions bash > FILE`
    #[command(hide = true)]
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
        #[command(flatten)]
        places: Places,
    },
    /// Print the man page, in roff
    #[command(hide = true)]
    Man,
    /// Print the fairness rules as a page
    #[command(hide = true)]
    Rules,
    /// Print a reference page: every command and flag, or the fields of files
    #[command(hide = true)]
    Reference {
        #[arg(value_enum, default_value_t = ReferencePage::Commands)]
        page: ReferencePage,
    },
    /// Answer questions about a model's tokenizer and chat template, for this program itself
    #[command(name = measure::tokenizer::COMMAND, hide = true)]
    TextProcess {
        /// Directory of the prepared model
        bundle: PathBuf,
    },
    /// Make memory ready for the process that loads next, for this program itself
    #[command(name = measure::machine::readings::COMMAND, hide = true)]
    MemoryProcess { bytes: usize },
}

/// Settings that concern this machine only: no request holds them.
#[derive(Debug, Clone, Args)]
pub(crate) struct HereArgs {
    /// No progress on stderr
    #[arg(short, long, help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReferencePage {
    Commands,
    Fields,
}

/// The flags of a comparison, and where its outcome goes.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    /// Directory of the results
    #[arg(long, value_name = "DIR", help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) results_dir: Option<PathBuf>,
    /// Format of the output [default: by the ending of --output, else table]
    #[arg(long = "format", value_enum, help_heading = OUTPUT, hide_short_help = true)]
    format_asked: Option<Format>,
    /// Write to FILE in place of stdout: .md, .json or .csv
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) output: Option<PathBuf>,
    /// With --format markdown: the answer and the table alone
    #[arg(long, help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) short: bool,
    /// Refuse another plan than the one with this digest: `--dry-run --seed N` prints it, to be registered in advance
    #[arg(long, value_name = "DIGEST", value_parser = digest, help_heading = plan::flags::EVIDENCE, hide_short_help = true)]
    pub(crate) registered: Option<String>,
    /// Also write inference_metrics.json and .csv with pictures to DIR, in the layout of `history --export`
    #[arg(long, value_name = "DIR", help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) export: Option<PathBuf>,
    /// Show below the figures the text that each framework chose in the last requests of warm-up
    #[arg(long, help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) show_text: bool,
    #[command(flatten)]
    pub(crate) here: HereArgs,
}

impl Cli {
    /// The file that the output goes to, if that is not stdout.
    pub(crate) fn output(&self) -> Option<&Path> {
        let args = match &self.command {
            None => &self.compare,
            Some(Command::Compare(args)) => args,
            Some(Command::Sweep(args)) => &args.compare,
            Some(_) => return None,
        };
        args.output.as_deref()
    }
}

impl CompareArgs {
    /// The format of the output: as asked, else as the file's ending says.
    pub(crate) fn format(&self) -> Format {
        let ending = self.output.as_deref().and_then(Path::extension).and_then(|ending| ending.to_str());
        let of_file = match ending {
            Some("md") => Format::Markdown,
            Some("json") => Format::Json,
            Some("csv") => Format::Csv,
            _ => Format::Table,
        };
        self.format_asked.unwrap_or(of_file)
    }
}

/// Flags that take a list are the axes. Every combination of their values is a comparison of its own.
#[derive(Debug, Clone, Args)]
pub(crate) struct SweepArgs {
    #[arg(help = what_help(), num_args = 1..=2, required = true, value_name = "WHAT | COLUMN COLUMN")]
    pub(crate) what: Vec<String>,
    /// For `sweep optimised`: which of cache, jit, precision and fused [default: those that a framework has]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_switch)]
    pub(crate) switches: Vec<plan::Switch>,
    #[command(flatten)]
    pub(crate) cells: CellArgs,
    #[command(flatten)]
    pub(crate) compare: CompareArgs,
}

/// What can be swept, a line each.
fn what_help() -> String {
    let line = |(name, about): (String, String)| format!("- {name}: {about}\n");
    let settings: String = SweepKind::named().map(line).collect();
    let switched: String =
        ab::SWITCHED.map(|(name, about)| line((name.to_owned(), about.to_owned()))).concat();
    format!(
        "A setting:\n{settings}On against off, on every framework:\n{switched}Or two columns, by the names of \
         `photofinish list frameworks`: the second against the first"
    )
}

/// Which cells of a study are measured.
#[derive(Debug, Clone, Args)]
pub(crate) struct CellArgs {
    /// Continue an interrupted study: its results directory. Finished cells are not repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// One part of the cells: 1/4 is the first of four. `photofinish report DIR DIR` makes one table of all parts
    #[arg(long, value_name = "I/N", value_parser = parse_part)]
    pub(crate) cells: Option<Part>,
}

/// A part of a study's cells: which, from 1, and of how many.
pub(crate) type Part = (usize, usize);

/// The first digits of a SHA-256, at least eight.
fn digest(text: &str) -> Result<String, String> {
    let is_one = (8..=64).contains(&text.len()) && text.chars().all(|digit| digit.is_ascii_hexdigit());
    is_one.then(|| text.to_lowercase()).ok_or_else(|| "a digest has 8 to 64 hexadecimal digits".to_owned())
}

fn parse_switch(text: &str) -> Result<plan::Switch, String> {
    plan::Switch::named(text).ok_or_else(|| "one of cache, jit, precision and fused".into())
}

fn parse_part(text: &str) -> Result<Part, String> {
    let numbers = text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
    let part = numbers.filter(|(part, of)| (1..=*of).contains(part));
    part.ok_or_else(|| "a part is I/N, such as 1/4: the first of four".to_owned())
}

impl SweepArgs {
    pub(crate) fn study(&self) -> StudyRequest {
        let mut request = self.compare.request.request();
        request.study.switches.clone_from(&self.switches);
        let setting = match self.what.as_slice() {
            [what] => SweepKind::from_str(what, false).ok(),
            _ => None,
        };
        if let Some(kind) = setting {
            return StudyRequest { kind: StudyKind::Sweep(kind), request };
        }
        StudyRequest { kind: StudyKind::Ab(self.what.clone()), request }
    }
}

/// The reason for a parse error, in clap's own words.
pub(crate) fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests;
