//! One framework in one case. `docs/reference/files.md` describes it for people, `docs/history.schema.json` for
//! programs.
//!
//! Only the fields that identify the record are required; all others may be missing, so that a record of
//! another version is read as far as possible.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use untrusted::{Foreign, ForeignText};

/// Version of a record. Fields may be added within it.
pub const SCHEMA: u32 = 2;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub schema: u32,
    /// The run that this is part of, unique in its history: the name of its results directory. A cell of a study
    /// has the study's name and a slash before its own.
    pub run: String,
    /// The results directory, as it was called then.
    #[serde(default)]
    pub results: String,
    /// "sweep forward", where the run was a cell of a study.
    pub study: Option<String>,
    /// Start of the run, RFC 3339, UTC.
    pub time: String,
    /// Commit of the checkout; `None` outside one.
    pub git_commit: Option<String>,
    /// Whether tracked files differed from that commit.
    pub git_modified: Option<bool>,
    #[serde(default)]
    pub driver_version: String,
    #[serde(default)]
    pub command: Vec<String>,
    /// The request, in the form of the driver's `Request`: how to measure the same again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
    #[serde(default)]
    pub machine: Machine,
    pub case: Case,
    #[serde(default)]
    pub settings: Settings,
    /// Label: the name of the framework, or of a variant of it.
    pub framework: String,
    /// The native library with its version, as the worker observed it.
    pub library: Option<Foreign>,
    pub binding: Option<Foreign>,
    /// Whether graph optimisation, JIT and fused kernels were on: they were asked for, were not observed to
    /// be off, and this is no `-base` variant, which does without them.
    pub optimised: Option<bool>,
    /// `measured`, `struck`, `labelled`, `unsupported`, `failed`, `not_run`.
    pub state: String,
    /// Why the state is not `measured`.
    #[serde(default)]
    pub reasons: Vec<ForeignText>,
    /// Rounds that count: complete ones.
    #[serde(default)]
    pub rounds: usize,
    #[serde(default)]
    pub interrupted: bool,
    /// Whether the machine was too noisy for verdicts, and how.
    pub noise: Option<ForeignText>,
    pub parity: Option<Parity>,
    /// By name (`throughput`): `docs/reference/measures.md` defines them. Unavailable metrics are missing.
    #[serde(default)]
    pub metrics: BTreeMap<String, Figure>,
    /// Bytes by part, where the system reports them: `framework`, `parameters`, `kv_cache`, `activations`,
    /// `remainder`, `peak`.
    #[serde(default)]
    pub memory: BTreeMap<String, f64>,
    /// Against each other framework of the same run, metric by metric.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
    /// Fields of newer versions, kept unchanged.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The machine. Runs with different fingerprints are not compared unless the user insists.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Hash of everything that affects the speed: processor, cores, memory, GPUs, operating system's kind.
    /// The host's name is not included: machines of one make are one machine.
    pub fingerprint: String,
    pub host: String,
    pub os: Option<String>,
    pub kernel: Option<String>,
    pub cpu: String,
    pub physical_cores: Option<usize>,
    pub available_cores: usize,
    pub memory_bytes: u64,
    pub gpus: Vec<String>,
    /// Speed of the machine itself during the run, median of its probes: bytes a second read from memory, f32
    /// operations a second. A difference between two runs here is not due to the framework.
    pub read_bandwidth: Option<f64>,
    pub arithmetic: Option<f64>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The computation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Case {
    pub model: String,
    /// sha256 of the weights file.
    pub weights_sha256: Option<String>,
    pub precision: String,
    pub device: String,
    pub threads: usize,
    pub batch: usize,
    /// Tokens in the KV cache before each prompt.
    pub context: usize,
    /// Length of each prompt, in tokens.
    pub prompt_tokens: Vec<usize>,
    pub new_tokens: usize,
    /// The tokens fed to a decode step: `forced`, `greedy`, `sampled`.
    pub decode: String,
    /// `on` or `off`.
    pub kv_cache: String,
    /// Data type asked for keys and values; empty where it was left to follow the weights.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kv_precision: String,
    pub jit: bool,
    /// Steps of masked diffusion, and how they unmask: "entropy", "origin, temperature 0.7".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// Whether a masked-diffusion model's body was used as a decoder, token by token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub autoregressive: bool,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// How it was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    pub suite: Option<String>,
    pub fair_comparison: bool,
    /// Measured in each process.
    pub iterations: usize,
    /// `interleaved` or `sequential`; older records were sequential and do not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Kind of a turn: `slice` or `request`; older records had whole requests and do not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
    /// `on` or `off`; older records do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<String>,
    /// `keep` or `fresh`; older records do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_cache: Option<String>,
    /// Margin of equivalence, as a share.
    pub margin: f64,
    pub seed: u64,
    pub accept_noise: bool,
    /// The disturbance of the run, where that was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_accepted: Option<String>,
    /// Whether this was only a first look (`--quick`, or a suite of that kind); older records do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quick: Option<bool>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Whether its outputs agree with the reference's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    pub agrees: bool,
    /// In the form of the table: "ok, Δ ≤ 1e-5".
    #[serde(default)]
    pub text: ForeignText,
    pub reference: Option<Foreign>,
    pub max_abs: Option<f64>,
    pub top1: Option<f64>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A metric over the processes of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub unit: String,
    #[serde(default)]
    pub higher_is_better: bool,
    /// The figure that every output shows: the geometric mean over processes.
    pub typical: f64,
    /// Its 95 % interval, where there are enough rounds.
    pub interval: Option<(f64, f64)>,
    /// The figure of each process, by round; `None` for a round without.
    #[serde(default)]
    pub values: Vec<Option<f64>>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// How this record's framework compares with another in one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub metric: String,
    pub against: String,
    /// Verdict on this record's framework: `faster`, `slower`, `equivalent`, `inconclusive`, `not_measurable`.
    pub verdict: String,
    /// How many times better this framework is than the other; below 1: worse.
    pub advantage: Option<f64>,
    /// 95 % interval of the advantage.
    pub interval: Option<(f64, f64)>,
    /// The verdict in words, as older versions recorded it.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub sentence: ForeignText,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

fn is_empty(text: &ForeignText) -> bool {
    text.is_empty()
}
