//! What people type, as typed. `plan` resolves it.

mod values;

use std::path::PathBuf;

use bundle::Precision;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::check::args::{CheckArgs, DiffArgs};
use crate::chronicle::args::HistoryArgs;
use values::{
    parse_device, parse_margin, parse_minutes, parse_rounds, parse_seconds, parse_temperature, parse_top_p,
    precisions,
};

/// Compares inference frameworks on the same weights, precision and prompts, each in a process of its
/// own, and says whether a difference is real.
///
/// Without a command, `compare` runs.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) compare: CompareArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure frameworks side by side (the default command)
    Compare(Box<CompareArgs>),
    /// Compare again and again while one thing or several change: a table of cells
    Sweep(Box<SweepArgs>),
    /// What an optimisation is worth: each framework with it and without it
    Ab(Box<AbArgs>),
    /// Continue a prompt on one framework, greedily or drawing tokens
    Generate(GenerateArgs),
    /// Write the logits of given token sequences to a safetensors file
    Score(ScoreArgs),
    /// Hold frameworks against a reference layer by layer, token by token and process by process
    Parity(ParityArgs),
    /// Page and pictures of what was measured earlier, or of the whole history
    Report(crate::page::ReportArgs),
    /// Divide a study into jobs for many machines
    Plan(crate::studies::shards::PlanArgs),
    /// Run a plan, or one shard of it
    Run(crate::studies::shards::RunArgs),
    /// Lay the results of shards together, each machine apart
    Merge(crate::studies::merge::MergeArgs),
    /// Say whether anything is worse than in another run, or than another build: a gate for CI
    Check(Box<CheckArgs>),
    /// Set two runs from anywhere beside each other
    Diff(Box<DiffArgs>),
    /// What is kept of every run: listed, filtered, as trends, exported
    History(Box<HistoryArgs>),
    /// Print the fairness rules (the source of docs/fairness.md)
    #[command(hide = true)]
    Rules,
}

/// Where things are; for tests and unusual layouts.
#[derive(Debug, Clone, Args)]
pub(crate) struct Places {
    /// Directory of configs/ [default: that of the checkout]
    #[arg(long, value_name = "DIR", hide = true, global = false)]
    pub(crate) configs: Option<PathBuf>,
    /// Directory of the worker binaries [default: the driver's own]
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) workers: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
    Markdown,
    Csv,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DecodeArg {
    /// Feed given tokens whatever the logits say: equal work by construction
    Forced,
    /// Feed each engine its own most likely token
    Greedy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

/// Settings that every command shares.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// A name from configs/models, a directory, a .gguf file, hf:owner/name, or synthetic:NAME
    #[arg(long, value_name = "MODEL", default_value = "smollm2-135m")]
    pub(crate) model: Vec<String>,
    /// [default: f32 on a CPU, f16 on CUDA]
    #[arg(long, value_parser = precisions(), value_delimiter = ',')]
    pub(crate) precision: Vec<Precision>,
    /// auto, cpu or cuda[:N]; auto is the CPU
    #[arg(long, default_value = "auto", value_parser = parse_device)]
    pub(crate) device: String,
    /// Threads that may compute at once [default: all cores this process may use]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Vec<u16>,
    /// No graph optimisation or JIT for anyone
    #[arg(long)]
    pub(crate) no_jit: bool,
    /// Force f32 for everyone
    #[arg(long, conflicts_with = "precision")]
    pub(crate) no_half: bool,
    /// Time limit of one worker process, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    /// No progress on stderr
    #[arg(long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) places: Places,
}

impl ModelArgs {
    /// The one that is meant, where several make no sense.
    pub(crate) fn model(&self) -> &str {
        self.model.first().map_or("", String::as_str)
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CompareArgs {
    /// Names from configs/engines [default: candle,tch,ort]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) frameworks: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// A prompt; may be given several times
    #[arg(long, conflicts_with_all = ["prompts", "suite"])]
    pub(crate) prompt: Vec<String>,
    /// Prompts from a file: a line each, or TOML as in configs/suites
    #[arg(long, value_name = "FILE", conflicts_with = "suite")]
    pub(crate) prompts: Option<PathBuf>,
    /// Prompts and settings by name from configs/suites
    #[arg(long, value_name = "NAME")]
    pub(crate) suite: Option<String>,
    /// Compare at each of these precisions in turn, each a comparison of its own, and tell what each costs and
    /// saves: speed, memory, agreement with f32
    #[arg(long, value_name = "int8,int4,nf4", value_parser = precisions(), value_delimiter = ',',
          conflicts_with_all = ["precision", "no_half"])]
    pub(crate) quantize: Vec<Precision>,
    /// Cut or extend every prompt to exactly this many tokens
    #[arg(long, visible_alias = "seq", value_name = "N", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Tokens that are in the KV cache before each prompt, put there untimed [default: 0]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) context: Vec<u32>,
    /// Tokens to generate for each prompt [default: 32, or the suite's]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: Vec<u32>,
    /// Rounds: in each, every framework runs once, in a process of its own. auto adds rounds, from 6 to
    /// 30, until the verdicts on throughput are clear or --time-budget ends [default: auto]
    #[arg(long, value_name = "auto|N", value_parser = parse_rounds)]
    pub(crate) rounds: Option<RoundsArg>,
    /// Minutes after which automatic rounds end, once there are 6
    #[arg(long, value_name = "MINUTES", default_value_t = 6.0, value_parser = parse_minutes)]
    pub(crate) time_budget: f64,
    /// Differences within this many percent are taken for none
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = parse_margin)]
    pub(crate) margin: f64,
    /// Give verdicts although the machine is noisy; what was noticed is printed
    #[arg(long)]
    pub(crate) accept_noise: bool,
    /// How long to wait for a quiet machine before starting, and before a noisy round is done again
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = parse_seconds)]
    pub(crate) patience: f64,
    /// Also load from a cold page cache, in processes of their own [default: on; in sweeps off]
    #[arg(long, value_enum)]
    pub(crate) cold_load: Option<OnOff>,
    /// Measured iterations in each process [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) iterations: Option<u32>,
    /// Sequences computed together [default: 1]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Vec<u32>,
    /// What a decode step is fed
    #[arg(long, value_enum, default_value_t = DecodeArg::Forced, conflicts_with = "temperature")]
    pub(crate) decode: DecodeArg,
    /// A temperature above 0 has every engine draw its own tokens, from the same random numbers
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Off computes the whole prefix again for every token
    #[arg(long, value_enum, default_value_t = OnOff::On)]
    pub(crate) kv_cache: OnOff,
    /// Refuse or strike what breaks a fairness rule; =false only labels it
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true,
          default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) fair_comparison: bool,
    /// Framework whose f32 logits the others are compared with [default: the first that runs]
    #[arg(long, value_name = "FRAMEWORK")]
    pub(crate) reference: Option<String>,
    /// Seed of the order of the rounds, and of tokens that are drawn [default: drawn, and recorded]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Pause before each measured iteration, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = parse_seconds)]
    pub(crate) delay: f64,
    /// A look in under a minute: 2 rounds, 1 iteration; too little evidence for a verdict
    #[arg(long)]
    pub(crate) quick: bool,
    /// Where results are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    /// What to print on stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    /// What a study asks for beyond what can be typed.
    #[arg(skip)]
    pub(crate) study: crate::plan::Study,
}

/// Flags that take a list are the axes: every combination of their values is a comparison of its own.
#[derive(Debug, Clone, Args)]
pub(crate) struct SweepArgs {
    #[arg(value_enum)]
    pub(crate) kind: crate::studies::Kind,
    /// Go on with an interrupted sweep: its results directory. Finished cells are not repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) compare: CompareArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AbArgs {
    /// kv-cache, jit, half or fused: on against off, on every framework. Or two names from configs/engines
    #[arg(value_name = "kv-cache|jit|half|fused | VARIANT VARIANT", num_args = 1..=2, required = true)]
    pub(crate) what: Vec<String>,
    /// Go on with an interrupted study: its results directory. Finished cells are not repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) compare: CompareArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GenerateArgs {
    /// A name from configs/engines
    #[arg(long, value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text to continue
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    /// Token ids to continue, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: u32,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Equal seeds draw equal tokens from equal logits [default: drawn, and printed]
    #[arg(long, value_name = "N", requires = "temperature")]
    pub(crate) seed: Option<u64>,
    /// table prints the text; json one object
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// How tokens are drawn. The worker draws them, the same way for every engine.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SamplingArgs {
    /// Draw tokens from the logits divided by T; 0 takes the most likely [default: 0]
    #[arg(long, value_name = "T", value_parser = parse_temperature)]
    pub(crate) temperature: Option<f32>,
    /// Draw among the K most likely tokens alone
    #[arg(long, value_name = "K", requires = "temperature", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) top_k: Option<u32>,
    /// Draw among the fewest tokens that have this share of the probability, above 0 up to 1
    #[arg(long, value_name = "P", requires = "temperature", value_parser = parse_top_p)]
    pub(crate) top_p: Option<f32>,
}

impl SamplingArgs {
    /// What to draw with, if tokens are drawn.
    pub(crate) fn sampling(&self, seed: impl FnOnce() -> u64) -> Option<protocol::Sampling> {
        let temperature = self.temperature.filter(|&temperature| temperature > 0.0)?;
        let top_k = self.top_k.map(|count| count as usize);
        Some(protocol::Sampling { temperature, top_k, top_p: self.top_p, seed: seed() })
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ScoreArgs {
    /// A name from configs/engines
    #[arg(long, value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// JSON: [[id, ..], ..], sequences of equal length
    #[arg(long, value_name = "IDS.json")]
    pub(crate) tokens_file: PathBuf,
    /// Where to write `logits` f32 [batch, positions, vocabulary]
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) out: PathBuf,
    /// Also write `hidden.0` (embeddings) … `hidden.L`
    #[arg(long)]
    pub(crate) hidden_states: bool,
    /// Positions fed at a time; 0 feeds all at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) piece: usize,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ParityArgs {
    /// Names from configs/engines [default: candle,tch,ort]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) frameworks: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Framework whose f32 results the others are held against [default: the first that runs]
    #[arg(long, value_name = "FRAMEWORK")]
    pub(crate) reference: Option<String>,
    /// A prompt; may be given several times [default: those of the default suite]
    #[arg(long, conflicts_with_all = ["prompts", "tokens"])]
    pub(crate) prompt: Vec<String>,
    /// Prompts from a file: a line each, or TOML as in configs/suites
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    pub(crate) prompts: Option<PathBuf>,
    /// Token ids of a prompt, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    /// Tokens to generate for each prompt [default: 32, or the suite's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: Option<u32>,
    /// Where results are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    /// What to print on stdout: table, json or markdown
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// How often to repeat, as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoundsArg {
    Auto,
    Fixed(u32),
}
