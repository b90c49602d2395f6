//! What was asked for.
//!
//! Suites, studies, shards, `--resume`, `check` and the history store it and compare it as data. A field that is not
//! there has its default, so that what an older version wrote is still read; a field that this version does not know
//! is refused by its name.

use std::path::PathBuf;

use bundle::Precision;
use protocol::KvCache;
use serde::{Deserialize, Serialize};

use crate::arms::StudySettings;
use crate::{Failure, Result};

/// A comparison, or several where a list has more than one value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// Names from `configs/engines`; empty: the frameworks themselves.
    pub frameworks: Vec<String>,
    /// Names from `configs/models`, directories, .gguf files, `hf:owner/name`, `synthetic:NAME`.
    pub models: Vec<String>,
    /// Empty: f32 on a CPU, f16 on CUDA.
    pub precisions: Vec<Precision>,
    /// Compare at each of these in turn, each a comparison of its own.
    pub quantize: Vec<Precision>,
    /// `cpu` or `cuda:N`
    pub device: String,
    /// Empty: all cores that may be used.
    pub threads: Vec<u32>,
    /// Graph optimisation and JIT for whoever has them.
    pub jit: bool,
    /// Time limit of one worker process, in seconds.
    pub timeout_s: u64,
    pub prompts: PromptSource,
    /// Cut or extend every prompt to so many tokens.
    pub prompt_tokens: Vec<u32>,
    /// Tokens in the KV cache before each prompt.
    pub context: Vec<u32>,
    pub new_tokens: Vec<u32>,
    pub batch: Vec<u32>,
    pub rounds: Option<RoundsAsked>,
    /// Minutes after which automatic rounds end.
    pub time_budget_min: f64,
    /// Differences within so many percent are taken for none.
    pub margin_percent: f64,
    pub accept_noise: bool,
    /// Seconds to wait for a quiet machine.
    pub patience_s: f64,
    /// Also load from a cold page cache.
    pub cold_load: Option<bool>,
    /// Measured iterations in each process.
    pub iterations: Option<u32>,
    /// Iterations of warm-up, exactly so many; `None`: until it has settled.
    pub warmup: Option<u32>,
    pub decode: DecodeAsked,
    pub sampling: SamplingAsked,
    pub kv_cache: KvCache,
    pub fair_comparison: bool,
    /// The framework whose f32 logits the others are held against.
    pub reference: Option<String>,
    pub seed: Option<u64>,
    /// Seconds of pause before each measured iteration.
    pub delay_s: f64,
    pub quick: bool,
    /// What a study asks for beyond what can be typed.
    #[serde(skip_serializing_if = "StudySettings::is_default")]
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
            prompt_tokens: Vec::new(),
            context: Vec::new(),
            new_tokens: Vec::new(),
            batch: Vec::new(),
            rounds: None,
            time_budget_min: 6.0,
            margin_percent: 2.0,
            accept_noise: false,
            patience_s: 10.0,
            cold_load: None,
            iterations: None,
            warmup: None,
            decode: DecodeAsked::Forced,
            sampling: SamplingAsked::default(),
            kv_cache: KvCache::On,
            fair_comparison: true,
            reference: None,
            seed: None,
            delay_s: 0.0,
            quick: false,
            study: StudySettings::default(),
        }
    }
}

/// Where prompts come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptSource {
    /// The suite that is run where nobody says otherwise.
    #[default]
    Usual,
    /// A name from `configs/suites`.
    Suite(String),
    Texts(Vec<String>),
    /// A prompt a line, or TOML as in `configs/suites`.
    File(PathBuf),
    /// The token ids of one prompt.
    Tokens(Vec<u32>),
}

/// How often to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundsAsked {
    Auto,
    Fixed(u32),
}

/// What a decode step is fed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecodeAsked {
    /// Given tokens, whatever the logits say: equal work by construction.
    #[default]
    Forced,
    /// Each engine's own most likely token.
    Greedy,
}

/// How tokens are drawn, if they are. The worker draws them, the same way for every engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingAsked {
    /// `None` and 0 take the most likely token.
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
}

impl SamplingAsked {
    /// What to draw with, if tokens are drawn.
    pub fn sampling(&self, seed: impl FnOnce() -> u64) -> Option<protocol::Sampling> {
        let temperature = self.temperature.filter(|&temperature| temperature > 0.0)?;
        let top_k = self.top_k.map(|count| count as usize);
        Some(protocol::Sampling { temperature, top_k, top_p: self.top_p, seed: seed() })
    }
}

impl Request {
    /// The model that is meant where several make no sense.
    pub fn model(&self) -> &str {
        self.models.first().map_or("", String::as_str)
    }

    /// f32 on a CPU, and f16 on a GPU, where people run that; unless told.
    pub fn precision(&self) -> Precision {
        match self.precisions.first() {
            Some(&asked) => asked,
            None if self.is_on_gpu() => Precision::F16,
            None => Precision::F32,
        }
    }

    /// The 16 bits that people use: bf16 on a CPU, which has instructions for it where it has any; f16 on a GPU.
    pub fn half(&self) -> Precision {
        if self.is_on_gpu() { Precision::F16 } else { Precision::Bf16 }
    }

    /// Whether a GPU computes.
    pub fn is_on_gpu(&self) -> bool {
        self.device.starts_with("cuda")
    }

    /// Whether prompts are named: as a suite, a file, texts or tokens.
    pub fn names_prompts(&self) -> bool {
        self.prompts != PromptSource::Usual
    }

    /// From what a file holds. A field of a newer version is named.
    pub fn from_json(value: &serde_json::Value) -> Result<Request> {
        serde_json::from_value(value.clone()).map_err(|error| Failure::usage(error.to_string()))
    }

    /// The request as a file holds it.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a request is plain data")
    }
}
