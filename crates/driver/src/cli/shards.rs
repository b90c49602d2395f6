//! `photofinish shard` and its commands `plan`, `run` and `merge`, as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Format, Places};

#[derive(Debug, Subcommand)]
pub(crate) enum ShardCommand {
    /// Divide a study into jobs for many machines
    Plan(PlanArgs),
    /// Run a plan, or one shard of it
    Run(RunArgs),
    /// Merge the results of shards; machines stay separate
    Merge(MergeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Number of jobs to divide the study into, for each machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) shards: u32,
    /// Labels of machines, as the scheduler calls them; each machine runs the whole study
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) machines: Vec<String>,
    /// File to write the plan to
    #[arg(short, long = "output", value_name = "FILE", default_value = "plan.json")]
    pub(crate) out: PathBuf,
    /// The study: `-- sweep forward --batch 1,2,4`, `-- ab kv-cache`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Number of the shard, from 0 [default: the whole plan]
    #[arg(long, value_name = "I")]
    pub(crate) shard: Option<usize>,
    /// File of the plan
    #[arg(long, value_name = "FILE", default_value = "plan.json")]
    pub(crate) plan: PathBuf,
    /// Continue an interrupted shard: its results directory. Finished cells are not repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// Directory of the results
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    /// No progress on stderr
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// Results directories of the shards
    #[arg(required = true, value_name = "DIR")]
    pub(crate) directories: Vec<PathBuf>,
    /// Also write report.json, report.md and report.csv to this directory
    #[arg(short, long = "output", value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}
