//! Commands and flags of one kind of work each, as typed.

use std::path::PathBuf;
use std::str::FromStr;

use bundle::Pooling;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Subcommand, ValueEnum};
use comparison::plan::{
    DecodeAsked, DenoiseAsked, Dims, KvPrecision, LengthsAsked, NamedInput, Request, SamplingAsked, TaskAsked,
};
use protocol::{Algorithm, KvCache};

use super::{HereArgs, ModelArgs};
use crate::cli::help::{DIFFUSION, ENCODERS, EXPERT, ONNX, WORK};
use crate::cli::values::{OnOff, parse_temperature, parse_top_p, set, set_list};
use crate::cli::{ChatFlag, Format};

/// Commands that give one framework one job.
#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    /// Continue a prompt on one framework, greedily or by sampling
    Generate(GenerateArgs),
    /// Fill in masked tokens behind a prompt on one framework, by masked diffusion
    Denoise(DenoiseArgs),
    /// Turn texts into vectors on one framework, with an encoder
    Embed(EmbedArgs),
    /// Score pairs of texts on one framework, such as a question and what may answer it
    Rerank(RerankArgs),
    /// Score each token of texts on one framework
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

/// What a comparison is asked of single kinds of work.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct WorkFlags {
    #[command(flatten)]
    denoise: DenoiseFlags,
    #[command(flatten)]
    encode: EncodeFlags,
    #[command(flatten)]
    graph: GraphFlags,
}

impl WorkFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        self.denoise.apply_to(request);
        self.encode.apply_to(request);
        self.graph.apply_to(request);
    }
}

// Flags of masked diffusion, for every command that generates by it, and `photofinish denoise` as typed.

/// How masked tokens are filled in: for models such as Dream and DiffuCoder.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct DenoiseFlags {
    /// Steps of denoising, each a pass over all positions [default: as many as new tokens]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), help_heading = DIFFUSION, hide_short_help = true)]
    steps: Vec<u32>,
    /// Which positions a step unmasks [default: entropy]
    #[arg(long, value_parser = algorithms(), help_heading = DIFFUSION, hide_short_help = true)]
    algorithm: Option<Algorithm>,
    /// Draw the positions by softmax(confidence / T); 0 takes the surest [default: 0]
    #[arg(long, value_name = "T", value_parser = parse_temperature, help_heading = DIFFUSION, hide_short_help = true)]
    alg_temp: Option<f32>,
    /// Time at which the last step ends, from 0 up to less than 1; steps begin at 1 [default: 0.001]
    #[arg(long, value_name = "T", value_parser = parse_eps, help_heading = DIFFUSION, hide_short_help = true)]
    eps: Option<f32>,
}

fn algorithms() -> impl TypedValueParser<Value = Algorithm> {
    let names = PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name));
    names.map(|name| {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name).unwrap_or(Algorithm::Entropy)
    })
}

fn parse_eps(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(eps) if (0.0..1.0).contains(&eps) => Ok(eps),
        _ => Err("a time from 0 up to less than 1".into()),
    }
}

impl DenoiseFlags {
    fn apply_to(&self, request: &mut Request) {
        let asked = &mut request.denoise;
        set_list(&mut asked.steps, &self.steps);
        asked.algorithm = self.algorithm.or(asked.algorithm);
        asked.alg_temp = self.alg_temp.or(asked.alg_temp);
        asked.eps = self.eps.or(asked.eps);
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DenoiseArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// Text to put before the masks
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) chat: ChatFlag,
    /// Token ids to put before the masks, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    /// Masks to fill in
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: u32,
    #[command(flatten)]
    flags: DenoiseFlags,
    /// Draw tokens from the logits divided by T; 0 takes the most likely token [default: 0]
    #[arg(long, value_name = "T", value_parser = parse_temperature, help_heading = DIFFUSION)]
    temperature: Option<f32>,
    /// Keep the fewest most likely tokens that together have this probability, above 0 up to 1
    #[arg(long, value_name = "P", value_parser = parse_top_p, help_heading = DIFFUSION)]
    top_p: Option<f32>,
    /// Keep the K most likely tokens of these
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..), help_heading = DIFFUSION)]
    top_k: Option<u32>,
    /// Seed of what is drawn; equal seeds draw equal tokens from equal logits [default: random, and printed if anything
    /// is drawn]
    #[arg(long, value_name = "N", help_heading = DIFFUSION)]
    pub(crate) seed: Option<u64>,
    /// Format of the output: table prints the text, json one object with every state
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

impl DenoiseArgs {
    pub(crate) fn asked(&self) -> DenoiseAsked {
        let mut request = Request::default();
        self.flags.apply_to(&mut request);
        request.denoise
    }

    pub(crate) fn sampling(&self) -> SamplingAsked {
        SamplingAsked { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p }
    }
}

// Flags that say what encoders are asked, and `photofinish embed`, `rerank` and `classify` as typed.

/// What a comparison is asked of encoders.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct EncodeFlags {
    /// Task of an encoder: vectors of texts, scores of texts, or scores of their tokens [default: as the model's files say]
    #[arg(long, value_name = "embed|rerank|classify", value_parser = tasks(), help_heading = ENCODERS, hide_short_help = true)]
    task: Option<TaskAsked>,
    /// Lengths of an encoder's texts in tokens: real, fixed:N, or uniform:A-B, drawn for each text [default: real]
    #[arg(long, value_name = "real|fixed:N|uniform:A-B", help_heading = ENCODERS, hide_short_help = true)]
    lengths: Option<LengthsAsked>,
    /// Cut texts that are longer than an encoder takes: its max_seq_length, or its positions
    #[arg(long, help_heading = ENCODERS, hide_short_help = true)]
    truncate: bool,
    /// Time an encoder's tokenizer, too: from text to vector, with the crate tokenizers for all frameworks
    #[arg(long, help_heading = ENCODERS, hide_short_help = true)]
    include_tokenizer: bool,
}

impl EncodeFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        request.encode.task = self.task.or(request.encode.task);
        set(&mut request.encode.lengths, self.lengths.as_ref());
        request.encode.truncate |= self.truncate;
        request.encode.include_tokenizer |= self.include_tokenizer;
    }
}

fn tasks() -> impl TypedValueParser<Value = TaskAsked> {
    let named = |name: String| TaskAsked::ALL.into_iter().find(|task| task.name() == name);
    PossibleValuesParser::new(TaskAsked::ALL.map(TaskAsked::name))
        .try_map(move |name| named(name).ok_or("no such task"))
}

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
    /// How the vector of a text comes from those of its tokens [default: as the model's files say]
    #[arg(long, value_enum)]
    pub(crate) pooling: Option<PoolingFlag>,
    /// Whether vectors are divided by their length [default: as the model's files say]
    #[arg(long, value_name = "true|false")]
    pub(crate) normalise: Option<bool>,
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

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum PoolingFlag {
    /// The first token's vector
    Cls,
    Mean,
    /// The largest of each component
    Max,
    /// The last token's vector
    Last,
}

impl PoolingFlag {
    pub(crate) fn pooling(self) -> Pooling {
        match self {
            PoolingFlag::Cls => Pooling::Cls,
            PoolingFlag::Mean => Pooling::Mean,
            PoolingFlag::Max => Pooling::Max,
            PoolingFlag::Last => Pooling::Last,
        }
    }
}

// Flags of continuation, token by token, and `photofinish generate` as typed.

#[derive(Debug, Clone, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) on: OnArgs,
    /// Text to continue
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) chat: ChatFlag,
    /// Token ids to continue, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
    /// Tokens to generate
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: u32,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Seed of the draws; equal seeds draw equal tokens from equal logits [default: random, and printed]
    #[arg(long, value_name = "N", requires = "temperature")]
    pub(crate) seed: Option<u64>,
    /// Format of the output: table prints the text, json one object
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// How many tokens a comparison continues prompts by, and after how many.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct TokenFlags {
    /// Tokens in the KV cache before each prompt; filling it is not timed [default: 0]
    #[arg(long, visible_alias = "depth", value_name = "N", value_delimiter = ',', help_heading = WORK, hide_short_help = true)]
    context: Vec<u32>,
    /// Tokens to generate for each prompt [default: 32, or the suite's]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), help_heading = WORK)]
    new_tokens: Vec<u32>,
    /// Compute all prompts as one batch, whatever their lengths: with --prompt-lengths 16,64,256 or a file of prompts.
    /// Shorter ones are padded on the side that each framework chooses
    #[arg(long, help_heading = WORK, hide_short_help = true)]
    mixed: bool,
    /// Tokens of a prompt that are read at once, chunk after chunk, as servers do; 0 for all [default: 0]
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = WORK, hide_short_help = true)]
    prefill_chunk: Vec<u32>,
}

impl TokenFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        set_list(&mut request.context, &self.context);
        set_list(&mut request.new_tokens, &self.new_tokens);
        set_list(&mut request.prefill_chunk, &self.prefill_chunk);
        request.mixed |= self.mixed;
    }
}

/// What each step of a comparison's requests is fed.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct StepFlags {
    /// Tokens that a decode step is fed [default: forced]
    #[arg(long, value_enum, conflicts_with = "temperature", help_heading = WORK, hide_short_help = true)]
    decode: Option<DecodeArg>,
    /// With a temperature above 0, every engine draws its own tokens, from the same random numbers
    #[command(flatten)]
    sampling: SamplingArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DecodeArg {
    /// Feed given tokens, whatever the logits say: equal work by construction
    Forced,
    /// Feed each engine its own most likely token
    Greedy,
}

impl StepFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        if let Some(decode) = self.decode {
            // Neither way of decoding draws.
            request.sampling = SamplingAsked::default();
            request.decode = match decode {
                DecodeArg::Forced => DecodeAsked::Forced,
                DecodeArg::Greedy => DecodeAsked::Greedy,
            };
        }
        if self.sampling.temperature.is_some() {
            request.sampling = self.sampling.asked();
        }
    }
}

/// Whether a comparison's models are continued with a KV cache, and of which type.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct CacheFlags {
    /// Run a masked-diffusion model autoregressively, token by token, for comparison
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    autoregressive: bool,
    /// Use the KV cache; off computes the whole prefix again for every token [default: on]
    #[arg(long, value_enum, help_heading = EXPERT, hide_short_help = true)]
    kv_cache: Option<OnOff>,
    /// Data type of the KV cache; auto is 16 bits if the weights have 16 bits, else f32 [default: auto]
    #[arg(long = "kv-type", value_parser = kv_precision(), help_heading = EXPERT, hide_short_help = true)]
    kv_precision: Option<KvPrecision>,
}

impl CacheFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        request.autoregressive |= self.autoregressive;
        if let Some(kv_cache) = self.kv_cache {
            request.kv_cache = if kv_cache == OnOff::On { KvCache::On } else { KvCache::Off };
        }
        set(&mut request.kv_precision, self.kv_precision.as_ref());
    }
}

/// Parses what keys and values are kept in.
fn kv_precision() -> impl TypedValueParser<Value = KvPrecision> {
    let named = |name: &str| KvPrecision::ALL.into_iter().find(|precision| precision.name() == name);
    PossibleValuesParser::new(KvPrecision::ALL.map(KvPrecision::name))
        .try_map(move |name| named(&name).ok_or_else(|| format!("no KV cache is kept in {name}")))
}

/// Sampling settings. The worker draws the tokens, in the same way for every engine.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct SamplingArgs {
    /// Draw tokens from the logits divided by T; 0 takes the most likely token [default: 0]
    #[arg(long, value_name = "T", value_parser = parse_temperature, help_heading = WORK, hide_short_help = true)]
    pub(crate) temperature: Option<f32>,
    /// Draw only among the K most likely tokens
    #[arg(long, value_name = "K", requires = "temperature", value_parser = clap::value_parser!(u32).range(1..), help_heading = WORK, hide_short_help = true)]
    top_k: Option<u32>,
    /// Draw among the fewest tokens that together have this probability, above 0 up to 1
    #[arg(long, value_name = "P", requires = "temperature", value_parser = parse_top_p, help_heading = WORK, hide_short_help = true)]
    top_p: Option<f32>,
}

impl SamplingArgs {
    pub(crate) fn asked(&self) -> SamplingAsked {
        SamplingAsked { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p }
    }
}

// Flags for an ONNX file: sizes of its free dimensions, and values of its inputs; and `photofinish infer`.

/// What a comparison is asked of ONNX files.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct GraphFlags {
    /// Sizes of an ONNX file's free dimensions: batch=1,width=640. Several sizes of one, as batch=1,8, make a case each
    #[arg(long, value_name = "NAME=N,…", action = ArgAction::Append, help_heading = ONNX, hide_short_help = true)]
    dim: Vec<Dims>,
    /// What an input of an ONNX file is given: ids=0..30000 draws, rate=16000 is one value, images=FILE.npy an array. Give it
    /// again for each further input [default: drawn, floats from 0 to 1, whole numbers 0 and 1]
    #[arg(long, value_name = "NAME=LOW..HIGH|NUMBER|FILE.npy", action = ArgAction::Append, allow_hyphen_values = true,
          help_heading = ONNX, hide_short_help = true)]
    input: Vec<NamedInput>,
}

impl GraphFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        for Dims(dims) in &self.dim {
            request.graph.dims.extend(dims.clone());
        }
        let inputs = self.input.iter().map(|NamedInput(name, asked)| (name.clone(), asked.clone()));
        request.graph.inputs.extend(inputs);
    }
}

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
    /// Tokens to generate for each prompt [default: 32, or the suite's]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
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
    #[arg(short, long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompt_tokens: u32,
    /// Tokens that are added, greedily [default: 8]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: Option<u32>,
    /// Texts that are encoded together [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
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
