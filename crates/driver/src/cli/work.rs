//! Commands that give one framework one job, as typed.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};
use comparison::plan::work::encode;
use comparison::plan::{DenoiseAsked, Failure, Result, SamplingAsked, VectorsAsked, flags};

use super::encode::{Ids, ParityTextsArgs};
use super::request::GraphFlags;
use super::{ChatFlag, Format, HereArgs, ModelArgs};

/// What runs such a job.
#[derive(Debug, Clone, Args)]
pub(crate) struct OnArgs {
    /// A name of `photofinish list frameworks`
    #[arg(long, alias = "frameworks", value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
}

/// What `run` does, and the flags that belong to each task. Others are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunTask {
    Generate,
    Transcribe,
    Denoise,
    Embed,
    Rerank,
    Classify,
    Infer,
    Score,
}

impl RunTask {
    pub(crate) fn name(self) -> &'static str {
        match self {
            RunTask::Generate => "generate",
            RunTask::Transcribe => "transcribe",
            RunTask::Denoise => "denoise",
            RunTask::Embed => "embed",
            RunTask::Rerank => "rerank",
            RunTask::Classify => "classify",
            RunTask::Infer => "infer",
            RunTask::Score => "score",
        }
    }
}

/// `photofinish run`: one framework, one task, untimed.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// generate, transcribe, denoise, embed, rerank, classify, infer or score [default: as the model and the flags say]
    #[arg(long, value_enum, value_name = "TASK", hide_possible_values = true)]
    pub(crate) task: Option<RunTask>,
    /// A prompt to continue
    #[arg(long, conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    /// A text for an encoder: its vector, or scores of its tokens; give it again for each further text
    #[arg(long, conflicts_with = "tokens")]
    pub(crate) text: Vec<String>,
    /// Two texts that an encoder scores together; give it again for each further pair
    #[arg(long, num_args = 2, value_names = ["QUERY", "TEXT"], action = ArgAction::Append, conflicts_with = "tokens")]
    pub(crate) pair: Vec<String>,
    /// Token ids in place of a text, separated by commas, special tokens included; of an encoder again for each further
    /// text
    #[arg(long, value_name = "IDS", action = ArgAction::Append)]
    pub(crate) tokens: Vec<Ids>,
    #[command(flatten)]
    pub(crate) chat: ChatFlag,
    /// Tokens to add to the prompt [default: 32]
    #[arg(short, long, value_name = "N", value_parser = flags::number(), help_heading = flags::WORK)]
    pub(crate) new_tokens: Option<u32>,
    #[command(flatten)]
    pub(crate) sampling: SamplingAsked,
    /// Seed of what is drawn; equal seeds draw equal tokens from equal logits [default: random, and printed; of an ONNX
    /// file 0]
    #[arg(long, value_name = "N", help_heading = flags::WORK)]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) denoise: DenoiseAsked,
    #[command(flatten)]
    pub(crate) vectors: VectorsAsked,
    /// The type of each token of a text, separated by commas; give it for each --tokens, or for none [default: 0]
    #[arg(long, value_name = "TYPES", action = ArgAction::Append, requires = "tokens", help_heading = encode::TOPIC.1)]
    pub(crate) token_types: Vec<Ids>,
    /// Cut texts that are longer than an encoder takes: its max_seq_length, or its positions
    #[arg(long, help_heading = encode::TOPIC.1)]
    pub(crate) truncate: bool,
    #[command(flatten)]
    pub(crate) graph: GraphFlags,
    /// JSON: [[id, ..], ..], sequences of equal length whose logits are written to --output
    #[arg(long, value_name = "IDS.json", help_heading = LOGITS)]
    pub(crate) tokens_file: Option<PathBuf>,
    /// Also write `hidden.0` (embeddings) … `hidden.L`
    #[arg(long, help_heading = LOGITS)]
    pub(crate) hidden_states: bool,
    /// Positions fed at a time [default: all at once]
    #[arg(long, value_name = "N", help_heading = LOGITS)]
    pub(crate) piece: Option<usize>,
    /// Where outputs go: of an ONNX file a directory, NAME.npy for each; of --tokens-file a file, `logits` in f32
    /// [batch, positions, vocabulary]
    #[arg(short, long, value_name = "DIR|FILE.safetensors")]
    pub(crate) output: Option<PathBuf>,
    /// Format on stdout: table prints the text or a line for each vector, json one object with every number
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// Heading of the flags of --tokens-file.
const LOGITS: &str = "Logits of given tokens";

/// Tokens that `run` adds where no number is asked for.
const ADDED: u32 = 32;

impl RunArgs {
    pub(crate) fn added(&self) -> u32 {
        self.new_tokens.unwrap_or(ADDED)
    }

    /// Refuses flags that have nothing to act on in any of the tasks that it may be, and a task without its input.
    pub(crate) fn check(&self, possible: &[RunTask]) -> Result<()> {
        use RunTask::{Classify, Denoise, Embed, Generate, Infer, Rerank, Score, Transcribe};
        let DenoiseAsked { steps, algorithm, alg_temp, eps } = &self.denoise;
        let VectorsAsked { pooling, normalise, prompt_name } = &self.vectors;
        let is_drawn = self.sampling != SamplingAsked::default();
        let Some(&first) = possible.first() else { return Ok(()) };
        let typed: [(&str, bool, &[RunTask]); 22] = [
            ("--prompt", self.prompt.is_some(), &[Generate, Transcribe, Denoise]),
            ("--chat", self.chat.chat, &[Generate, Denoise]),
            ("--new-tokens", self.new_tokens.is_some(), &[Generate, Transcribe, Denoise]),
            ("--temperature", is_drawn, &[Generate, Denoise]),
            ("--seed", self.seed.is_some(), &[Generate, Denoise, Infer]),
            ("--steps", !steps.is_empty(), &[Denoise]),
            ("--algorithm", algorithm.is_some(), &[Denoise]),
            ("--alg-temp", alg_temp.is_some(), &[Denoise]),
            ("--eps", eps.is_some(), &[Denoise]),
            ("--text", !self.text.is_empty(), &[Embed, Classify]),
            ("--pair", !self.pair.is_empty(), &[Rerank]),
            ("--tokens", !self.tokens.is_empty(), &[Generate, Transcribe, Denoise, Embed, Rerank, Classify]),
            ("--token-types", !self.token_types.is_empty(), &[Embed, Rerank, Classify]),
            ("--truncate", self.truncate, &[Embed, Rerank, Classify]),
            ("--pooling", pooling.is_some(), &[Embed]),
            ("--normalise", normalise.is_some(), &[Embed]),
            ("--prompt-name", prompt_name.is_some(), &[Embed]),
            ("--input", !self.graph.is_empty(), &[Infer, Transcribe]),
            ("--dim, --state, --runs", self.graph.has_more_than_inputs(), &[Infer]),
            ("--tokens-file", self.tokens_file.is_some(), &[Score]),
            ("--hidden-states", self.hidden_states || self.piece.is_some(), &[Score]),
            ("--output", self.output.is_some(), &[Infer, Score]),
        ];
        let foreign = typed
            .iter()
            .find(|(_, is_typed, tasks)| *is_typed && !tasks.iter().any(|task| possible.contains(task)));
        if let Some((flag, _, tasks)) = foreign {
            let tasks: Vec<&str> = tasks.iter().map(|task| task.name()).collect();
            let (this, tasks) = (first.name(), tasks.join(", "));
            let why = if first == Infer { ", since the model is an ONNX file" } else { "" };
            return Err(Failure::usage(format!(
                "{flag} belongs to {tasks}, and this is {this}{why}: leave it out"
            )));
        }
        let has_text = !self.text.is_empty() || !self.pair.is_empty() || !self.tokens.is_empty();
        let needed = match first {
            Generate | Denoise if self.prompt.is_none() && self.tokens.is_empty() => "--prompt or --tokens",
            Rerank if !has_text => "--pair or --tokens",
            Embed | Classify if !has_text => "--text or --tokens",
            Infer if self.output.is_none() => "--output DIR, where its outputs go",
            Score if self.output.is_none() => "--output FILE.safetensors, where the logits go",
            Score if self.tokens_file.is_none() => "--tokens-file IDS.json",
            _ => return Ok(()),
        };
        Err(Failure::usage(format!("{} needs {needed}", first.name())))
    }
}

// `photofinish parity` as typed.

#[derive(Debug, Clone, Args)]
pub(crate) struct ParityArgs {
    /// Names of `photofinish list frameworks` [default: candle,tch,ort]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) frameworks: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
    /// Framework whose f32 results are the reference, one of --frameworks or another [default: the first that runs]
    #[arg(long = "parity-reference", value_name = "FRAMEWORK")]
    pub(crate) reference: Option<String>,
    /// A prompt; may be given several times [default: those of the default suite]
    #[arg(long, conflicts_with_all = ["prompts", "tokens"])]
    pub(crate) prompt: Vec<String>,
    /// Prompts from a file: one a line, or TOML as a suite
    #[arg(long = "prompt-file", value_name = "FILE", conflicts_with = "tokens")]
    pub(crate) prompts: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) chat: ChatFlag,
    /// Token ids of a prompt, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    #[command(flatten)]
    pub(crate) texts: ParityTextsArgs,
    /// Tokens to generate for each prompt [default: 32, or the suite's]
    #[arg(short, long, value_name = "N", value_parser = flags::number())]
    pub(crate) new_tokens: Option<u32>,
    /// Continue on a noisy machine; every disturbance is printed
    #[arg(long)]
    pub(crate) accept_noise: bool,
    /// Directory of the results
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    /// Format of the output on stdout: table, json or markdown
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

// The flags of `profile`.

#[derive(Debug, Clone, Args)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    #[command(flatten)]
    pub(crate) graph: GraphFlags,
    #[command(flatten)]
    pub(crate) work: crate::measure::perf::WorkArgs,
    /// Directory to write profile.md to [default: results/profile-NAME-PRECISION-PHASE]
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Option<PathBuf>,
    /// Write one run as a timeline for Perfetto or chrome://tracing instead: 16 tokens of prompt and 8 new ones
    #[arg(long, conflicts_with_all = ["results", "phase"])]
    pub(crate) trace: bool,
    /// With --trace: texts that are encoded together [default: 1]
    #[arg(long, value_name = "N", requires = "trace", value_parser = flags::count(1, 4096))]
    pub(crate) batch: Option<u32>,
    /// With --trace: the file to write [default: trace-NAME.json]
    #[arg(short, long, value_name = "FILE.json", requires = "trace")]
    pub(crate) output: Option<PathBuf>,
}
