//! The request: the settings of a comparison, as data.
//!
//! Suites, studies, shards, `--resume`, `check` and the history store requests and compare them. A missing field has
//! its default value. An unknown field is an error that names it.

use std::path::PathBuf;

use bundle::Precision;
use configs::KernelCache;
use protocol::{Algorithm, DecoderSettings, KvCache, finite};
use serde::{Deserialize, Serialize};

use crate::plan::axes::StudySettings;
use crate::plan::options::{EncodeAsked, GraphAsked, ServingAsked};
use crate::plan::{Failure, Result};

/// The request for a comparison, or for several if a list has more than one value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// Names from `configs/engines`; if empty, the frameworks themselves.
    pub frameworks: Vec<String>,
    /// Names from `configs/models`, directories, .gguf files, `hf:owner/name`, `synthetic:NAME`.
    pub models: Vec<String>,
    /// Precisions; if empty, f32 on a CPU and f16 on CUDA.
    pub precisions: Vec<Precision>,
    /// Precisions to compare at in turn, each in a comparison of its own.
    pub quantize: Vec<Precision>,
    /// Device: `cpu` or `cuda:N`.
    pub device: String,
    /// Numbers of threads; if empty, all available cores.
    pub threads: Vec<u32>,
    /// Whether graph optimisation and JIT are on, for engines that have them.
    pub jit: bool,
    /// Time limit of one worker process, in seconds.
    pub timeout_s: u64,
    pub prompts: PromptSource,
    /// Whether prompts are put through the model's chat template.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub chat: bool,
    /// Length in tokens that every prompt is cut or extended to.
    pub prompt_tokens: Vec<u32>,
    /// Lengths in tokens; the one prompt is a separate prompt of the same comparison at each of them.
    pub prompt_lengths: Vec<u32>,
    /// Tokens in the KV cache before each prompt.
    pub context: Vec<u32>,
    /// New tokens for each prompt.
    pub new_tokens: Vec<u32>,
    /// Tokens of a prompt that are read at once; 0 for all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefill_chunk: Vec<u32>,
    /// Numbers of sequences that are computed together.
    pub batch: Vec<u32>,
    /// Whether the batch is the largest that fits into memory. It is searched for while `batch` is empty.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub batch_max: bool,
    /// Whether all prompts are one batch, whatever their lengths.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
    /// Numbers of devices that the weights are divided over, a column each; if empty, 1.
    pub shards: Vec<u32>,
    pub rounds: Option<RoundsAsked>,
    /// Time in minutes after which automatic rounds end.
    pub time_budget_min: f64,
    /// Margin of equivalence, in percent.
    pub margin_percent: f64,
    pub accept_noise: bool,
    /// Longest wait for a quiet machine, in seconds.
    pub patience_s: f64,
    /// Whether models are also loaded from a cold page cache.
    pub cold_load: Option<bool>,
    /// Number of measured iterations in each process; `None` leaves it open if rounds are automatic.
    pub iterations: Option<u32>,
    pub schedule: ScheduleAsked,
    #[serde(skip_serializing_if = "SliceAsked::is_auto")]
    pub slice: SliceAsked,
    /// Memory for all workers of a round together, in gigabytes; `None` for the free memory.
    pub memory_gb: Option<f64>,
    pub huge_pages: HugePages,
    pub kernel_cache: KernelCache,
    /// Exact number of warm-up iterations; if `None`, warm-up runs until times settle.
    pub warmup: Option<u32>,
    pub decode: DecodeAsked,
    pub sampling: SamplingAsked,
    #[serde(skip_serializing_if = "DenoiseAsked::is_default")]
    pub denoise: DenoiseAsked,
    /// Settings for an encoder other than the texts.
    #[serde(skip_serializing_if = "crate::plan::options::EncodeAsked::is_default")]
    pub encode: EncodeAsked,
    /// Settings for several callers.
    #[serde(skip_serializing_if = "crate::plan::options::ServingAsked::is_default")]
    pub serving: ServingAsked,
    /// Settings for an ONNX file.
    #[serde(skip_serializing_if = "crate::plan::options::GraphAsked::is_default")]
    pub graph: GraphAsked,
    /// Whether a masked-diffusion model's body is used as a token-by-token decoder.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub autoregressive: bool,
    pub kv_cache: KvCache,
    #[serde(skip_serializing_if = "KvPrecision::is_auto")]
    pub kv_precision: KvPrecision,
    pub fair_comparison: bool,
    /// The framework whose f32 logits are the reference.
    pub reference: Option<String>,
    /// Seed of the order of the rounds, and of drawn tokens; `None` draws one.
    pub seed: Option<u64>,
    /// Pause before each block of requests, in seconds.
    pub delay_s: f64,
    pub quick: bool,
    /// Settings that only a study can ask for.
    #[serde(skip_serializing_if = "crate::plan::axes::StudySettings::is_default")]
    pub study: StudySettings,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            frameworks: Vec::new(),
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
            batch: Vec::new(),
            batch_max: false,
            mixed: false,
            shards: Vec::new(),
            rounds: None,
            time_budget_min: 3.0,
            margin_percent: 2.0,
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
            decode: DecodeAsked::Forced,
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePages {
    /// They are asked for, if the system leaves that to programs (`madvise`).
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvPrecision {
    /// 16 bits of the same type if the weights have 16 bits; else f32.
    #[default]
    Auto,
    F32,
    Bf16,
    F16,
}

impl KvPrecision {
    pub const ALL: [KvPrecision; 4] =
        [KvPrecision::Auto, KvPrecision::F32, KvPrecision::Bf16, KvPrecision::F16];

    pub fn name(self) -> &'static str {
        match self {
            KvPrecision::Auto => "auto",
            KvPrecision::F32 => "f32",
            KvPrecision::Bf16 => "bf16",
            KvPrecision::F16 => "f16",
        }
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

    /// The settings for a worker.
    pub fn settings(self, weights: Precision) -> DecoderSettings {
        DecoderSettings { kv_precision: self.element(weights), autoregressive: false }
    }
}

impl Request {
    /// Asks for keys and values of this type.
    pub(crate) fn keep_in(&mut self, precision: KvPrecision) {
        self.kv_precision = precision;
    }

    /// How every contender keeps keys and values.
    pub fn cache(&self) -> CacheAsked {
        CacheAsked { policy: self.kv_cache, precision: self.kv_precision }
    }
}

// Settings of masked diffusion.

/// Settings of denoising; `None` means the default. Temperature, top-p and top-k are those of sampling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DenoiseAsked {
    /// Numbers of steps; by default as many as there are new tokens.
    pub steps: Vec<u32>,
    pub algorithm: Option<Algorithm>,
    #[serde(deserialize_with = "finite::optional")]
    pub alg_temp: Option<f32>,
    #[serde(deserialize_with = "finite::optional")]
    pub eps: Option<f32>,
}

impl DenoiseAsked {
    /// Whether nothing is asked for.
    pub fn is_default(&self) -> bool {
        *self == DenoiseAsked::default()
    }
}

impl Request {
    /// Fills in numbers of steps, unless some were asked for.
    pub(crate) fn usual_steps(&mut self, steps: &[u32]) {
        if self.denoise.steps.is_empty() {
            self.denoise.steps = steps.to_vec();
        }
    }

    /// The same request for the model's body, token by token.
    pub(crate) fn token_by_token(self) -> Request {
        Request { denoise: DenoiseAsked::default(), autoregressive: true, ..self }
    }
}

// Settings of continuation, token by token.

/// The tokens that a decode step is fed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecodeAsked {
    /// Given tokens, whatever the logits say: equal work by construction.
    #[default]
    Forced,
    /// Each engine's own most likely token.
    Greedy,
}

/// Sampling settings, if tokens are drawn. The worker draws them, in the same way for every engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingAsked {
    /// Divisor of the logits; `None` and 0 take the most likely token.
    #[serde(deserialize_with = "finite::optional")]
    pub temperature: Option<f32>,
    /// Number of the most likely tokens to draw among; `None` for all.
    pub top_k: Option<u32>,
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
        self.usual_tokens(tokens);
    }

    /// Fills in the number of new tokens, unless that was asked for.
    pub(crate) fn usual_tokens(&mut self, tokens: u32) {
        if self.new_tokens.is_empty() {
            self.new_tokens = vec![tokens];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_has_16_bits_where_the_weights_have() {
        let beside = |weights| KvPrecision::Auto.beside(weights).name();
        assert_eq!(Precision::ALL.map(beside).join(" "), "f32 bf16 f16 f32 f32 f32");
    }

    #[test]
    fn what_is_asked_for_holds_beside_any_weights() {
        for asked in &KvPrecision::ALL[1..] {
            assert!(Precision::ALL.iter().all(|&weights| asked.beside(weights).name() == asked.name()));
        }
    }
}
