//! Commands that give one framework one job, as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use comparison::plan::work::denoise;
use comparison::plan::{DenoiseAsked, SamplingAsked, flags};

use super::encode::{ParityTextsArgs, TextsJob};
use super::request::GraphFlags;
use super::{ChatFlag, Format, HereArgs, ModelArgs};

/// Commands that give one framework one job.
#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    /// Continue a prompt on one framework, greedily or by sampling
    Generate(GenerateArgs),
    /// Fill in masked tokens behind a prompt on one framework, by masked diffusion
    Denoise(DenoiseArgs),
    #[command(flatten)]
    Texts(TextsJob),
    /// Run an ONNX file once on one framework, and write its outputs as .npy files
    Infer(InferArgs),
    /// Write the logits of given token sequences to a safetensors file
    Score(ScoreArgs),
    /// Write one run of a framework as a trace for Perfetto or chrome://tracing
    Trace(TraceArgs),
    /// Show which part of a framework its CPU time goes to, with Linux's perf
    Profile(ProfileArgs),
}

/// What runs such a job.
#[derive(Debug, Clone, Args)]
pub(crate) struct OnArgs {
    /// A name from configs/engines
    #[arg(long, alias = "frameworks", value_name = "NAME")]
    pub(crate) framework: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) here: HereArgs,
}

/// A prompt, and how many tokens one framework adds to it.
#[derive(Debug, Clone, Args)]
pub(crate) struct PromptArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// Text of the prompt
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) chat: ChatFlag,
    /// Token ids of the prompt, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    /// Tokens to add to it
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = flags::number())]
    pub(crate) new_tokens: u32,
    /// Format of the output: table prints the text, json one object, of denoise with every
    /// state
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingAsked,
    /// Seed of the draws; equal seeds draw equal tokens from equal logits [default: random, and printed]
    #[arg(long, value_name = "N", requires = "temperature")]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DenoiseArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) asked: DenoiseAsked,
    /// Draw tokens from the logits divided by T; 0 takes the most likely token [default: 0]
    #[arg(long, value_name = "T", value_parser = flags::temperature, help_heading = denoise::TOPIC.1)]
    temperature: Option<f32>,
    /// Keep the fewest most likely tokens that together have this probability, above 0 up to 1
    #[arg(long, value_name = "P", value_parser = flags::top_p, help_heading = denoise::TOPIC.1)]
    top_p: Option<f32>,
    /// Keep the K most likely tokens of these
    #[arg(long, value_name = "K", value_parser = flags::number(), help_heading = denoise::TOPIC.1)]
    top_k: Option<u32>,
    /// Seed of what is drawn; equal seeds draw equal tokens from equal logits [default: random, and printed if anything
    /// is drawn]
    #[arg(long, value_name = "N", help_heading = denoise::TOPIC.1)]
    pub(crate) seed: Option<u64>,
}

impl DenoiseArgs {
    pub(crate) fn sampling(&self) -> SamplingAsked {
        SamplingAsked { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p }
    }
}

// `photofinish infer`.

#[derive(Debug, Clone, Args)]
pub(crate) struct InferArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    #[command(flatten)]
    pub(crate) graph: GraphFlags,
    /// Seed of drawn values
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Directory that each output is written to, as NAME.npy
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
}

// `photofinish parity` as typed.

#[derive(Debug, Clone, Args)]
pub(crate) struct ParityArgs {
    /// Names from configs/engines [default: candle,tch,ort]
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
    /// Prompts from a file: one a line, or TOML as in configs/suites
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
}

// `photofinish score` as typed.

#[derive(Debug, Clone, Args)]
pub(crate) struct ScoreArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// JSON: [[id, ..], ..], sequences of equal length
    #[arg(long, value_name = "IDS.json")]
    pub(crate) tokens_file: PathBuf,
    /// File to write `logits` to, f32 [batch, positions, vocabulary]
    #[arg(short, long = "output", value_name = "FILE.safetensors")]
    pub(crate) out: PathBuf,
    /// Also write `hidden.0` (embeddings) … `hidden.L`
    #[arg(long)]
    pub(crate) hidden_states: bool,
    /// Positions fed at a time; 0 feeds all at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) piece: usize,
}

// The flags of `trace`.

#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// Tokens of the prompt, or of each text that is encoded
    #[arg(short, long, value_name = "N", default_value_t = 16, value_parser = flags::number())]
    pub(crate) prompt_tokens: u32,
    /// Tokens that are added, greedily [default: 8]
    #[arg(short, long, value_name = "N", value_parser = flags::number())]
    pub(crate) new_tokens: Option<u32>,
    /// Texts that are encoded together [default: 1]
    #[arg(long, value_name = "N", value_parser = flags::count(1, 4096))]
    pub(crate) batch: Option<u32>,
    /// File to write [default: trace-NAME.json]
    #[arg(short, long, value_name = "FILE.json")]
    pub(crate) output: Option<PathBuf>,
}

/// Tokens that are added where no number is asked for.
const NEW_TOKENS: u32 = 8;

impl TraceArgs {
    /// Tokens that are added, where a model continues any.
    pub(crate) fn new_tokens(&self) -> u32 {
        self.new_tokens.unwrap_or(NEW_TOKENS)
    }
}
