//! The record of every run, so that it can be viewed, repeated and compared months later.
//!
//! A [`Record`] is one framework in one case: where and when it ran, the request, and every metric with the
//! figure of each process. It suffices to test it against another run without that run's directory. Records
//! are JSON lines of a file that several processes append to.

mod file;

use std::collections::{BTreeMap, HashSet};

pub use file::{History, Skipped};
use protocol::untrusted::{Foreign, ForeignText};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::plan::{HugePages, KernelCache, Schedule};

/// The state of a contender, in a report and in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum State {
    /// Measured, without a broken rule.
    Measured,
    /// Measured, but a fairness rule is broken: no part in any verdict.
    Struck,
    /// A rule is broken and only labelled (`--allow-unfair`).
    Labelled,
    Unsupported,
    Failed,
    /// The user interrupted, or the machine was too noisy, before its first process was done.
    NotRun,
}

impl State {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Its name for people.
    pub fn words(self) -> &'static str {
        match self {
            State::Measured => "measured",
            State::Struck => "struck",
            State::Labelled => "not matched",
            State::Unsupported => "unsupported",
            State::Failed => "failed",
            State::NotRun => "not run",
        }
    }

    pub fn takes_part(self) -> bool {
        matches!(self, State::Measured | State::Labelled)
    }

    pub fn has_figures(self) -> bool {
        matches!(self, State::Measured | State::Labelled | State::Struck)
    }
}

// Records that are excluded from a development over time, and why.

/// Why a record is excluded from the runs that are shown over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Apart {
    Struck,
    /// The machine was too noisy for a verdict, or noisy, and that was accepted.
    Noisy,
    /// It was only a first look.
    Quick,
    /// It is one arm of an A/B study.
    Ab,
    /// It is a cell of another study.
    Sweep,
}

impl Apart {
    pub const ALL: [Apart; 5] = [Apart::Struck, Apart::Noisy, Apart::Quick, Apart::Ab, Apart::Sweep];

    pub fn words(self) -> &'static str {
        match self {
            Apart::Struck => "struck",
            Apart::Noisy => "noisy",
            Apart::Quick => "quick",
            Apart::Ab => "A/B",
            Apart::Sweep => "sweep",
        }
    }
}

impl Record {
    /// Every reason to exclude this record; empty for most records.
    pub fn apart(&self) -> Vec<Apart> {
        let study = self.study.as_deref().filter(|study| !study.is_empty());
        let is_ab = study.is_some_and(|study| study.split(' ').next() == Some("ab"));
        let reasons = [
            (Apart::Struck, self.state == State::Struck),
            (Apart::Noisy, self.noise.is_some() || self.settings.noise_accepted.is_some()),
            (Apart::Quick, self.settings.quick),
            (Apart::Ab, is_ab),
            (Apart::Sweep, study.is_some() && !is_ab),
        ];
        reasons.into_iter().filter(|(_, applies)| *applies).map(|(reason, _)| reason).collect()
    }
}

/// How many of these records are excluded for each reason, in words: "3 sweep, 1 noisy". A record with
/// several reasons counts for each.
pub fn counted<'a>(records: impl Iterator<Item = &'a Record> + Clone) -> String {
    let count = |reason: Apart| records.clone().filter(|record| record.apart().contains(&reason)).count();
    let counts = Apart::ALL.into_iter().map(|reason| (count(reason), reason.words()));
    let told: Vec<String> =
        counts.filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    told.join(", ")
}

// Selects the records of a history, and orders them.

/// Which records are asked for. The default asks for all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Labels; if empty, every one. Case is ignored, here and below.
    pub frameworks: Vec<String>,
    pub models: Vec<String>,
    pub precisions: Vec<String>,
    /// The start of a machine's fingerprint.
    pub machine: String,
    /// The earliest start of a run.
    pub since: Option<OffsetDateTime>,
    /// The start of a commit.
    pub commit: Option<String>,
    /// A study, or the first words of its name: "sweep" is every sweep.
    pub study: Option<String>,
    /// The number of latest runs that match and are not excluded.
    pub last: Option<u32>,
    /// Records with one of these reasons are excluded, unless their study was asked for.
    pub keep_apart: Vec<Apart>,
}

/// The records that match, oldest first.
#[derive(Debug, Default)]
pub struct Found {
    pub records: Vec<Record>,
    /// Those that match and are excluded.
    pub apart: Vec<Record>,
}

impl Filter {
    pub fn select(&self, mut records: Vec<Record>) -> Found {
        records.retain(|record| self.matches(record));
        records.sort_by_key(moment);
        let is_apart = |record: &Record| {
            let mut reasons = record.apart();
            reasons.retain(|reason| self.study.is_none() || ![Apart::Ab, Apart::Sweep].contains(reason));
            reasons.iter().any(|reason| self.keep_apart.contains(reason))
        };
        let (apart, mut records): (Vec<Record>, Vec<Record>) = records.into_iter().partition(is_apart);
        if let Some(last) = self.last {
            let mut runs = HashSet::new();
            let newest_first = records.iter().rev().filter(|record| runs.insert(record.run.clone()));
            let kept: HashSet<String> =
                newest_first.take(last as usize).map(|record| record.run.clone()).collect();
            records.retain(|record| kept.contains(&record.run));
        }
        Found { records, apart }
    }

    fn matches(&self, record: &Record) -> bool {
        is_one_of(&self.frameworks, &record.framework)
            && is_one_of(&self.models, &record.case.model)
            && is_one_of(&self.precisions, &record.case.precision)
            && record.machine.fingerprint.starts_with(&self.machine.to_lowercase())
            && self.since.is_none_or(|since| moment(record).is_some_and(|moment| moment >= since))
            && self.commit.as_ref().is_none_or(|commit| is_commit(record, commit))
            && self.study.as_ref().is_none_or(|study| is_of_study(record, study))
    }
}

/// The start of the record's run; `None` if the text is not a valid time.
fn moment(record: &Record) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(&record.time, &Rfc3339).ok()
}

fn is_one_of(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|asked| asked.eq_ignore_ascii_case(name))
}

fn is_commit(record: &Record, start: &str) -> bool {
    record.git_commit.as_ref().is_some_and(|commit| commit.starts_with(&start.to_lowercase()))
}

/// Whether a study's name matches a filter. "sweep" matches every sweep.
fn is_of_study(record: &Record, study: &str) -> bool {
    record
        .study
        .as_deref()
        .and_then(|name| name.strip_prefix(study))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

// One framework in one case. `docs/reference/files.md` describes it for people, `docs/history.schema.json` for
// programs.
//
// Only the fields that identify the record are required; all others may be missing, so that a record of
// another version is read as far as possible.

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
    pub state: State,
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Case {
    pub model: String,
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    pub suite: Option<String>,
    pub fair_comparison: bool,
    /// Measured in each process.
    pub iterations: usize,
    pub schedule: Schedule,
    /// Kind of a turn: `slice` or `request`.
    pub turn: String,
    pub huge_pages: HugePages,
    pub kernel_cache: KernelCache,
    /// Margin of equivalence, as a share.
    pub margin: f64,
    pub seed: u64,
    pub accept_noise: bool,
    /// The disturbance of the run, where that was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_accepted: Option<String>,
    /// Whether this was only a first look (`--quick`, or a suite of that kind).
    pub quick: bool,
    /// Seconds that a round of all its contenders took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_s: Option<f64>,
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
    #[serde(flatten)]
    pub other: Map<String, Value>,
}
