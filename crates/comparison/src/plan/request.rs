//! The request: the settings of a comparison, as data.
//!
//! Suites, studies, shards, `--resume`, `check` and the history store requests and compare them. A missing field has
//! its default value. An unknown field is an error that names it.

use std::path::PathBuf;

use bundle::Precision;
use clap::{ArgAction, Args, ValueEnum};
use configs::KernelCache;
use protocol::{KvCache, finite};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::plan::axes::StudySettings;
use crate::plan::sweep::usual;
use crate::plan::{DenoiseAsked, EncodeAsked, Failure, GraphAsked, Result, ServingAsked, flags};

/// The request for a comparison, or for several if a list has more than one value.
///
/// A flag that sets one field is declared on it, with the help. Typed flags replace fields of a request that is there
/// (`Args::update_from_arg_matches`). Fields that are skipped have flags of another form, in `driver`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// Names, or sets of them: engines, stock, all [default: engines]
    ///
    /// Names are those of `photofinish list frameworks`; -NAME leaves one out; NAME@1.24.4, NAME@PATH and
    /// NAME@git:URL#REVISION are another version of its framework.
    #[arg(long, alias = "framework", value_name = "NAME,…", value_delimiter = ',', help_heading = flags::COMPARE)]
    pub frameworks: Vec<String>,
    /// Allow servers of other machines among --frameworks: the network is then part of what is compared
    #[arg(long, help_heading = flags::COMPARE, hide_short_help = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub remote: bool,
    /// Whether a server is among the engines, which the draft knows.
    #[arg(skip)]
    #[serde(skip)]
    pub has_servers: bool,
    /// Names from `configs/models`, directories, .gguf files, `hf:owner/name`, `synthetic:NAME`.
    #[arg(skip)]
    pub models: Vec<String>,
    /// Precisions; if empty, f32 on a CPU and f16 on CUDA.
    #[arg(skip)]
    pub precisions: Vec<Precision>,
    /// Compare at each of these precisions in turn, and show the costs and savings of each: speed, memory, agreement
    /// with f32. Each precision is a comparison of its own
    #[arg(long, value_name = "int8,int4,nf4", value_parser = flags::precision(), value_delimiter = ',',
          conflicts_with = "precision", help_heading = flags::COMPARE, hide_short_help = true)]
    pub quantize: Vec<Precision>,
    /// Device: `cpu` or `cuda:N`.
    #[arg(skip)]
    pub device: String,
    /// Numbers of threads; if empty, all available cores.
    #[arg(skip)]
    pub threads: Vec<u32>,
    /// Whether graph optimisation and JIT are on, for engines that have them.
    #[arg(skip)]
    pub jit: bool,
    /// Time limit of one worker process, in seconds.
    #[arg(skip)]
    pub timeout_s: u64,
    #[arg(skip)]
    pub prompts: PromptSource,
    /// Put every prompt through the model's own chat template, as a message of the user's
    #[arg(long, help_heading = flags::WORK, hide_short_help = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub chat: bool,
    // Commands of kept claims have `--seq`.
    /// Cut or extend every prompt to exactly this many tokens
    #[arg(short, long, visible_alias = "length", alias = "seq", value_name = "N", value_delimiter = ',',
          value_parser = flags::number(), help_heading = flags::WORK, hide_short_help = true)]
    pub prompt_tokens: Vec<u32>,
    /// The prompt at each of these lengths, in one comparison: shows which framework compiles anew for another length
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with = "prompt_tokens",
          value_parser = flags::number(), help_heading = flags::WORK, hide_short_help = true)]
    pub prompt_lengths: Vec<u32>,
    /// Tokens in the KV cache before each prompt; filling it is not timed [default: 0]
    #[arg(long, visible_alias = "depth", value_name = "N", value_delimiter = ',', help_heading = flags::WORK,
          hide_short_help = true)]
    pub context: Vec<u32>,
    /// Tokens to generate for each prompt [default: 32, or the suite's]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = flags::number(),
          help_heading = flags::WORK)]
    pub new_tokens: Vec<u32>,
    /// Tokens of a prompt that are read at once, chunk after chunk, as servers do; 0 for all [default: 0]
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = flags::WORK, hide_short_help = true)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefill_chunk: Vec<u32>,
    /// Tokens at the beginning of every prompt that all have in common, as a system prompt: a server may cache them
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, help_heading = flags::WORK,
          hide_short_help = true)]
    #[serde(skip_serializing_if = "super::plan::is_zero")]
    pub shared_prefix: usize,
    /// Numbers of sequences that are computed together.
    #[arg(skip)]
    pub batch: Vec<u32>,
    /// Whether the batch is the largest that fits into memory. It is searched for while `batch` is empty.
    #[arg(skip)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub batch_max: bool,
    /// Compute all prompts as one batch, whatever their lengths: with --prompt-lengths 16,64,256 or a file of prompts.
    /// Shorter ones are padded on the side that each framework chooses
    #[arg(long, help_heading = flags::WORK, hide_short_help = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
    /// Devices that the weights are divided over, a column for each number: 1,2,4 [default: 1]
    #[arg(long = "tensor-parallel", value_name = "N,…", value_delimiter = ',', value_parser = flags::count(1, 64),
          help_heading = flags::WORK, hide_short_help = true)]
    pub shards: Vec<u32>,
    /// Rounds; in each, every framework runs once in a process of its own. auto adds rounds, from 6 to 30, until the
    /// verdicts on throughput are clear or --time-budget ends [default: auto]
    #[arg(long, value_name = "auto|N", value_parser = flags::rounds, help_heading = flags::EVIDENCE, hide_short_help = true)]
    pub rounds: Option<RoundsAsked>,
    /// Time after which automatic rounds end: 90s, 3m [default: 3m]
    ///
    /// At least 6 rounds run, if they fit.
    #[arg(long = "time-budget", value_name = "TIME", value_parser = flags::minutes, help_heading = flags::EVIDENCE)]
    pub time_budget_min: Option<f64>,
    /// Margin of equivalence: smaller differences count as none [default: 2%]
    #[arg(long = "margin", value_name = "PERCENT", value_parser = flags::margin, help_heading = flags::EVIDENCE,
          hide_short_help = true)]
    pub margin_percent: f64,
    /// Exit with 3 if a column's steady-state latency varies by more from process to process, as in 10%
    #[arg(long, value_name = "PERCENT", value_parser = flags::share, help_heading = flags::EVIDENCE, hide_short_help = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cv: Option<f64>,
    /// Give verdicts on a noisy machine too; every disturbance is printed
    #[arg(long, help_heading = flags::EVIDENCE, hide_short_help = true)]
    pub accept_noise: bool,
    /// Longest wait for a quiet machine before the start, and before a disturbed block is measured again [default: 10s]
    #[arg(long = "quiet-timeout", value_name = "TIME", value_parser = flags::seconds, help_heading = flags::EVIDENCE,
          hide_short_help = true)]
    pub patience_s: f64,
    /// Also load from a cold page cache, in separate processes [default: on; in sweeps off]
    #[arg(long, value_name = "COLD_LOAD", value_parser = flags::on_off(), help_heading = flags::EXPERT,
          hide_short_help = true)]
    pub cold_load: Option<bool>,
    /// Measured iterations in each process [default: chosen from costs and variances; 2 if rounds are fixed, or if
    /// frameworks take no turns]
    #[arg(long, value_name = "N", value_parser = flags::count(1, 100_000), help_heading = flags::EVIDENCE,
          hide_short_help = true)]
    pub iterations: Option<u32>,
    /// Order of the measured requests: interleaved takes them in turns, all workers in memory at once; sequential
    /// measures one worker after another; auto interleaves what fits into memory together, else in groups that share
    /// the first framework [default: auto]
    #[arg(long, value_enum, value_name = "auto|interleaved|sequential", hide_possible_values = true,
          help_heading = flags::EXPERT, hide_short_help = true)]
    pub schedule: ScheduleAsked,
    /// Tokens that a framework decodes before the next has its turn: auto chooses as many as take 50 to 200 ms; off
    /// alternates whole requests [default: auto]
    #[arg(long, value_parser = flags::slice, value_name = "auto|off|N", help_heading = flags::EXPERT,
          hide_short_help = true)]
    #[serde(skip_serializing_if = "SliceAsked::is_auto")]
    pub slice: SliceAsked,
    /// Memory that all workers of a round may take together, in GB [default: the free memory]
    #[arg(long = "memory", value_parser = flags::gigabytes, value_name = "GB", help_heading = flags::EXPERT,
          hide_short_help = true)]
    pub memory_gb: Option<f64>,
    /// Ask for huge pages under large allocations, for every worker alike [default: on]
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true, help_heading = flags::EXPERT,
          hide_short_help = true)]
    pub huge_pages: HugePages,
    /// Compiled kernels that a framework keeps on disk: keep finds those of earlier processes, as its users have them;
    /// fresh gives every process an empty cache of its own, so that its first request compiles everything
    /// [default: keep]
    #[arg(long, value_parser = flags::kernel_cache(), value_name = "keep|fresh", hide_possible_values = true,
          help_heading = flags::EXPERT, hide_short_help = true)]
    pub kernel_cache: KernelCache,
    /// Warm-up iterations in each process, exactly this many; careful guides ask for at least as many as are measured
    /// [default: until times settle, up to 10]
    #[arg(long, value_name = "N", value_parser = flags::count(1, 100_000), help_heading = flags::EXPERT,
          hide_short_help = true)]
    pub warmup: Option<u32>,
    /// Tokens that a decode step is fed [default: forced; greedy beside a server]
    #[arg(long, value_enum, conflicts_with = "temperature", help_heading = flags::WORK, hide_short_help = true)]
    pub decode: Option<DecodeAsked>,
    /// With a temperature above 0, every engine draws its own tokens, from the same random numbers
    #[command(flatten)]
    pub sampling: SamplingAsked,
    #[command(flatten)]
    #[serde(skip_serializing_if = "DenoiseAsked::is_default")]
    pub denoise: DenoiseAsked,
    /// Settings for texts to encode.
    #[command(flatten)]
    #[serde(skip_serializing_if = "EncodeAsked::is_default")]
    pub encode: EncodeAsked,
    /// Settings for several callers.
    #[command(flatten)]
    #[serde(skip_serializing_if = "ServingAsked::is_default")]
    pub serving: ServingAsked,
    /// Settings for an ONNX file.
    #[arg(skip)]
    #[serde(skip_serializing_if = "GraphAsked::is_default")]
    pub graph: GraphAsked,
    /// Run a masked-diffusion model autoregressively, token by token, for comparison
    #[arg(long, help_heading = flags::EXPERT, hide_short_help = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub autoregressive: bool,
    /// Use the KV cache; off computes the whole prefix again for every token [default: on]
    #[arg(long, value_parser = flags::kv_cache(), help_heading = flags::EXPERT, hide_short_help = true)]
    pub kv_cache: KvCache,
    /// Data type of the KV cache; auto is 16 bits if the weights have 16 bits, else f32 [default: auto]
    #[arg(long = "kv-type", value_enum, help_heading = flags::EXPERT, hide_short_help = true)]
    #[serde(skip_serializing_if = "KvPrecision::is_auto")]
    pub kv_precision: KvPrecision,
    /// Only label what breaks a fairness rule, and let it take part in verdicts [default: it is struck]
    #[arg(long = "allow-unfair", action = ArgAction::SetFalse, help_heading = flags::EXPERT, hide_short_help = true)]
    pub fair_comparison: bool,
    /// Framework whose f32 logits are the reference [default: the first that runs]
    #[arg(long = "parity-reference", value_name = "FRAMEWORK", help_heading = flags::EXPERT, hide_short_help = true)]
    pub reference: Option<String>,
    /// Seed of the order of the rounds and of drawn tokens [default: random, and recorded]
    #[arg(long, value_name = "N", help_heading = flags::EXPERT, hide_short_help = true)]
    pub seed: Option<u64>,
    /// Pause before each block of requests [default: 0s]
    #[arg(long = "delay", value_name = "TIME", value_parser = flags::seconds, help_heading = flags::EXPERT,
          hide_short_help = true)]
    pub delay_s: f64,
    /// A first look in under a minute, without verdicts: 2 rounds
    ///
    /// One iteration each: too little evidence for a verdict.
    #[arg(long, help_heading = flags::EVIDENCE)]
    pub quick: bool,
    /// Settings that only a study can ask for.
    #[arg(skip)]
    #[serde(skip_serializing_if = "crate::plan::axes::StudySettings::is_default")]
    pub study: StudySettings,
}

/// Minutes after which automatic rounds end, unless a request or its model says otherwise.
pub const USUAL_BUDGET_MIN: f64 = 3.0;

impl Default for Request {
    fn default() -> Request {
        Request {
            frameworks: Vec::new(),
            remote: false,
            has_servers: false,
            models: vec![configs::DEFAULT_MODEL.to_owned()],
            precisions: Vec::new(),
            quantize: Vec::new(),
            device: "cpu".to_owned(),
            threads: Vec::new(),
            jit: true,
            timeout_s: 600,
            prompts: PromptSource::Usual,
            chat: false,
            prompt_tokens: Vec::new(),
            prompt_lengths: Vec::new(),
            context: Vec::new(),
            new_tokens: Vec::new(),
            prefill_chunk: Vec::new(),
            shared_prefix: 0,
            batch: Vec::new(),
            batch_max: false,
            mixed: false,
            shards: Vec::new(),
            rounds: None,
            time_budget_min: None,
            margin_percent: 2.0,
            max_cv: None,
            accept_noise: false,
            patience_s: 10.0,
            cold_load: None,
            iterations: None,
            schedule: ScheduleAsked::Auto,
            slice: SliceAsked::Auto,
            memory_gb: None,
            huge_pages: HugePages::On,
            kernel_cache: KernelCache::Keep,
            warmup: None,
            decode: None,
            sampling: SamplingAsked::default(),
            denoise: DenoiseAsked::default(),
            encode: EncodeAsked::default(),
            serving: ServingAsked::default(),
            graph: GraphAsked::default(),
            autoregressive: false,
            kv_cache: KvCache::On,
            kv_precision: KvPrecision::Auto,
            fair_comparison: true,
            reference: None,
            seed: None,
            delay_s: 0.0,
            quick: false,
            study: StudySettings::default(),
        }
    }
}

/// The source of the prompts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptSource {
    /// The default suite.
    #[default]
    Usual,
    /// A name from `configs/suites`.
    Suite(String),
    Texts(Vec<String>),
    /// A file with a prompt a line, or TOML as in `configs/suites`.
    File(PathBuf),
    /// The token ids of one prompt.
    Tokens(Vec<u32>),
}

/// The number of rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundsAsked {
    Auto,
    Fixed(u32),
}

/// The order in which requests of a round are measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleAsked {
    /// Interleaved if all contenders fit into memory together, else sequential.
    #[default]
    Auto,
    Interleaved,
    Sequential,
}

/// How much of a request is computed before the next contender's turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SliceAsked {
    /// So many tokens that a slice lasts 50 to 200 ms.
    #[default]
    Auto,
    /// To its end.
    Off,
    /// So many timed tokens.
    #[serde(untagged)]
    Tokens(u32),
}

impl SliceAsked {
    pub fn is_auto(&self) -> bool {
        *self == SliceAsked::Auto
    }
}

/// Whether large allocations ask for huge pages: the same for every worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum HugePages {
    /// They are asked for, if the system leaves that to programs (`madvise`).
    #[default]
    On,
    /// The system's default.
    Off,
}

impl HugePages {
    /// The value of [`configs::TUNABLES`].
    pub fn tunables(self) -> &'static str {
        match self {
            HugePages::On => configs::HUGE_PAGES,
            HugePages::Off => configs::USUAL_PAGES,
        }
    }

    /// The request in words for people.
    pub fn words(self) -> &'static str {
        match self {
            HugePages::On => "asks for huge pages",
            HugePages::Off => "asks for none",
        }
    }
}

impl Request {
    /// The first model, for uses that need exactly one.
    pub fn model(&self) -> &str {
        self.models.first().map_or("", String::as_str)
    }

    /// The requested precision; by default f32 on a CPU and f16, which is usual there, on a GPU.
    pub fn precision(&self) -> Precision {
        match self.precisions.first() {
            Some(&asked) => asked,
            None if self.is_on_gpu() => Precision::F16,
            None => Precision::F32,
        }
    }

    /// The usual 16-bit precision: bf16 on a CPU, where hardware support for 16 bits is usually for bf16; f16
    /// on a GPU.
    pub fn half(&self) -> Precision {
        if self.is_on_gpu() { Precision::F16 } else { Precision::Bf16 }
    }

    /// The tokens that steps are fed: a server can be fed none but its own.
    pub(crate) fn decode(&self) -> DecodeAsked {
        let usual = if self.has_servers { DecodeAsked::Greedy } else { DecodeAsked::Forced };
        self.decode.unwrap_or(usual)
    }

    /// Whether a context is computed before prompts.
    pub(crate) fn has_context(&self) -> bool {
        self.context.iter().any(|&tokens| tokens > 0)
    }

    /// Whether a contender is asked to compute keys and values again for every token.
    pub(crate) fn has_cache_off(&self) -> bool {
        let of_arms = self.study.arms.iter().filter_map(|arm| arm.kv_cache);
        of_arms.chain([self.kv_cache]).any(|kv_cache| kv_cache == KvCache::Off)
    }

    /// Whether keeping keys and values is a setting of this request.
    pub(crate) fn has_cache_switch(&self) -> bool {
        self.kv_cache == KvCache::Off || self.study.arms.iter().any(|arm| arm.kv_cache.is_some())
    }

    /// Whether the work is computed on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        !protocol::gpus(&self.device).is_empty()
    }

    /// Number of devices that each contender computes on.
    pub fn devices(&self) -> u32 {
        protocol::gpus(&self.device).len().max(1) as u32
    }

    /// Whether the request names its prompts: as a suite, a file, texts or tokens.
    pub fn names_prompts(&self) -> bool {
        self.prompts != PromptSource::Usual
    }

    /// What a plan is registered by in advance: SHA-256 of all that is asked for, with the seed of orders and tokens.
    pub fn registered(&self, seed: u64) -> String {
        let text = Request { seed: Some(seed), ..self.clone() }.to_json().to_string();
        bundle::hexadecimal(&Sha256::digest(text))
    }

    /// Reads a request from a file's value. The error names a field that only a newer version knows.
    pub fn from_json(value: &serde_json::Value) -> Result<Request> {
        serde_json::from_value(value.clone()).map_err(|error| Failure::usage(error.to_string()))
    }

    /// The request in the form stored in files.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a request is plain data")
    }
}

// Settings of one kind of work alone.

// Whether keys and values are kept, and in which type.

/// The element type asked for the KV cache.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum KvPrecision {
    #[default]
    Auto,
    F32,
    Bf16,
    F16,
}

impl KvPrecision {
    pub fn name(self) -> &'static str {
        self.into()
    }

    pub fn is_auto(&self) -> bool {
        *self == KvPrecision::Auto
    }

    /// The element type for weights of precision `weights`: f32, bf16 or f16.
    pub fn beside(self, weights: Precision) -> Precision {
        match self {
            KvPrecision::Auto => weights.usual_cache(),
            KvPrecision::F32 => Precision::F32,
            KvPrecision::Bf16 => Precision::Bf16,
            KvPrecision::F16 => Precision::F16,
        }
    }
}

/// How a contender is asked to keep keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheAsked {
    #[serde(rename = "kv_cache")]
    pub policy: KvCache,
    #[serde(rename = "kv_precision")]
    pub precision: KvPrecision,
}

impl Default for CacheAsked {
    fn default() -> CacheAsked {
        CacheAsked { policy: KvCache::On, precision: KvPrecision::Auto }
    }
}

impl CacheAsked {
    /// Whether they are kept from one token to the next.
    pub fn is_on(self) -> bool {
        self.policy == KvCache::On
    }

    /// The element type for weights of precision `weights`: f32, bf16 or f16.
    pub fn element(self, weights: Precision) -> Precision {
        self.precision.beside(weights)
    }
}

impl Request {
    /// How every contender keeps keys and values.
    pub fn cache(&self) -> CacheAsked {
        CacheAsked { policy: self.kv_cache, precision: self.kv_precision }
    }
}

// Settings of continuation, token by token.

/// The tokens that a decode step is fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum DecodeAsked {
    /// Feed given tokens, whatever the logits say: equal work by construction
    Forced,
    /// Feed each engine its own most likely token
    Greedy,
}

/// Sampling settings, if tokens are drawn. The worker draws them, in the same way for every engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingAsked {
    /// Draw tokens from the logits divided by T; 0 takes the most likely token [default: 0]
    #[arg(long, value_name = "T", value_parser = flags::temperature, help_heading = flags::WORK, hide_short_help = true)]
    #[serde(deserialize_with = "finite::optional")]
    pub temperature: Option<f32>,
    /// Draw only among the K most likely tokens
    #[arg(long, value_name = "K", requires = "temperature", value_parser = flags::number(), help_heading = flags::WORK,
          hide_short_help = true)]
    pub top_k: Option<u32>,
    /// Draw among the fewest tokens that together have this probability, above 0 up to 1
    #[arg(long, value_name = "P", requires = "temperature", value_parser = flags::top_p, help_heading = flags::WORK,
          hide_short_help = true)]
    #[serde(deserialize_with = "finite::optional")]
    pub top_p: Option<f32>,
}

impl SamplingAsked {
    /// The sampler, if tokens are drawn.
    pub fn sampling(&self, seed: impl FnOnce() -> u64) -> Option<protocol::Sampling> {
        let temperature = self.temperature.filter(|&temperature| temperature > 0.0)?;
        let top_k = self.top_k.map(|count| count as usize);
        Some(protocol::Sampling { temperature, top_k, top_p: self.top_p, seed: seed() })
    }
}

impl Request {
    /// Fills in the length of prompts and the number of new tokens, unless these were asked for.
    pub(crate) fn usual_lengths(&mut self, (prompt, tokens): (u32, u32)) {
        if self.prompt_tokens.is_empty() && self.context.is_empty() {
            self.prompt_tokens = vec![prompt];
        }
        usual(&mut self.new_tokens, &[tokens]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_has_16_bits_where_the_weights_have_and_what_is_asked_for_holds_beside_any_weights() {
        for (asked, expected) in [
            (KvPrecision::Auto, "f32 bf16 f16 f32 f32 f32"),
            (KvPrecision::F32, "f32 f32 f32 f32 f32 f32"),
            (KvPrecision::Bf16, "bf16 bf16 bf16 bf16 bf16 bf16"),
            (KvPrecision::F16, "f16 f16 f16 f16 f16 f16"),
        ] {
            let beside = Precision::MADE.map(|weights| asked.beside(weights).name());
            assert_eq!(beside.join(" "), expected, "{asked:?}");
        }
    }
}
