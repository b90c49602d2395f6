//! Commands that give one framework one job, as typed.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, Args, Subcommand};
use comparison::plan::{DenoiseAsked, SamplingAsked, TaskAsked, VectorsAsked, flags};

use super::request::GraphFlags;
use super::{ChatFlag, Format, HereArgs, ModelArgs};

/// Commands that give one framework one job.
#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    /// Continue a prompt on one framework, greedily or by sampling
    Generate(GenerateArgs),
    /// Fill in masked tokens behind a prompt on one framework, by masked diffusion
    Denoise(DenoiseArgs),
    /// Turn texts into vectors on one framework, with an encoder
    Embed(EmbedArgs),
    /// Score pairs of texts on one framework, such as a question and what may answer it; scores are logits
    Rerank(RerankArgs),
    /// Score each token of texts on one framework; scores are logits
    Classify(ClassifyArgs),
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
    #[arg(long, value_name = "T", value_parser = flags::temperature, help_heading = flags::DIFFUSION)]
    temperature: Option<f32>,
    /// Keep the fewest most likely tokens that together have this probability, above 0 up to 1
    #[arg(long, value_name = "P", value_parser = flags::top_p, help_heading = flags::DIFFUSION)]
    top_p: Option<f32>,
    /// Keep the K most likely tokens of these
    #[arg(long, value_name = "K", value_parser = flags::number(), help_heading = flags::DIFFUSION)]
    top_k: Option<u32>,
    /// Seed of what is drawn; equal seeds draw equal tokens from equal logits [default: random, and printed if anything
    /// is drawn]
    #[arg(long, value_name = "N", help_heading = flags::DIFFUSION)]
    pub(crate) seed: Option<u64>,
}

impl DenoiseArgs {
    pub(crate) fn sampling(&self) -> SamplingAsked {
        SamplingAsked { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p }
    }
}

// `photofinish embed`, `rerank` and `classify`.

/// What the three commands share.
#[derive(Debug, Clone, Args)]
pub(crate) struct EncoderArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// Token ids of a text, separated by commas, special tokens included; give it again for each further text
    #[arg(long, value_name = "IDS", action = ArgAction::Append)]
    pub(crate) tokens: Vec<Ids>,
    /// The type of each token of a text, separated by commas; give it for each --tokens, or for none [default: 0]
    #[arg(long, value_name = "TYPES", action = ArgAction::Append, requires = "tokens")]
    pub(crate) token_types: Vec<Ids>,
    /// Cut texts that are longer than the model takes: its max_seq_length, or its positions
    #[arg(long)]
    pub(crate) truncate: bool,
    /// Format of the output: table prints a line for each text, json one object with every number
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    pub(crate) encoder: EncoderArgs,
    /// Text to embed; give it again for each further text
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) text: Vec<String>,
    #[command(flatten)]
    pub(crate) vectors: VectorsAsked,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    pub(crate) encoder: EncoderArgs,
    /// Two texts to score together; give it again for each further pair
    #[arg(long, num_args = 2, value_names = ["QUERY", "TEXT"], action = ArgAction::Append,
          required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) pair: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ClassifyArgs {
    #[command(flatten)]
    pub(crate) encoder: EncoderArgs,
    /// Text whose tokens are scored; give it again for each further text
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) text: Vec<String>,
}

/// Numbers of the tokens of one text: their ids, or their types.
#[derive(Debug, Clone)]
pub(crate) struct Ids(pub(crate) Vec<u32>);

impl FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> Result<Ids, String> {
        let id = |id: &str| id.trim().parse().map_err(|_| format!("{id:?} is no token id"));
        text.split(',').map(id).collect::<Result<_, _>>().map(Ids)
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
    /// Task of an encoder: vectors of texts, scores of texts, or scores of their tokens [default: as the model's files say]
    #[arg(long, value_enum, value_name = "embed|rerank|classify", hide_possible_values = true)]
    pub(crate) task: Option<TaskAsked>,
    #[command(flatten)]
    pub(crate) vectors: VectorsAsked,
    /// Cut texts that are longer than an encoder takes: its max_seq_length, or its positions
    #[arg(long, help_heading = flags::ENCODERS)]
    pub(crate) truncate: bool,
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
    pub(crate) work: crate::perf::WorkArgs,
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
