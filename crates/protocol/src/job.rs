//! The driver's requests to a worker.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Device, Heard, Input, Precision, Trace, Work};

/// Everything that a worker is asked to do: the first line of its stdin. A measurement is followed by
/// [`Turn`]s, a line each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub protocol: u32,
    /// Directory of the prepared model.
    pub bundle: String,
    /// The model's description (`bundle::ModelConfig::described`): sizes, properties, names of tensors,
    /// frequencies of the rotation. Workers that read the bundle with that crate do not need it.
    #[serde(default)]
    pub model: serde_json::Value,
    pub settings: Settings,
    /// The driver's reading of the monotonic clock just before it started this process, where the
    /// system has a clock that processes share (Linux: `CLOCK_MONOTONIC`).
    pub spawned_at_ns: Option<u64>,
    /// Before loading, ask the system to drop the weights file from its page cache.
    #[serde(default)]
    pub evict: bool,
    pub task: Task,
}

/// Settings asked for. [`InEffect`](crate::InEffect) has those that were observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub precision: Precision,
    /// Data type of keys and values: f32, bf16 or f16; the worker's choice if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_precision: Option<Precision>,
    /// Use a masked-diffusion model's body as a decoder, token by token: its attention becomes causal.
    #[serde(default)]
    pub autoregressive: bool,
    /// `cpu`, `cuda:N`, or several GPUs that share the weights: `cuda:0,cuda:1`.
    pub device: String,
    /// Threads that may compute at once; 0 for the framework's default. An engine sets them through the framework's own
    /// API; the environment variables and the CPU set are the driver's job.
    pub threads: usize,
    /// Devices that the weights are divided over; 1 if they are not.
    #[serde(default = "one")]
    pub shards: usize,
    /// Whether the framework's graph optimisation or JIT may be used, where it has one.
    pub jit: bool,
    /// Whether hidden states will be asked for. Where keeping them costs speed, an engine keeps them only then.
    #[serde(default)]
    pub hidden_states: bool,
    /// At a quantised precision, multiply by the dequantised weights in f32, even if the framework's quantised kernels are
    /// faster: those are compared with this. A framework without kernels for the precision always does it.
    #[serde(default)]
    pub dequantised: bool,
    /// Options of the engine variant (`configs/engines/*.toml`), by name.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// How several callers are served.
    #[serde(default, skip_serializing_if = "Serve::is_shared")]
    pub serve: Serve,
    /// A positive control: every `append` is slowed down by this share of its own time, 0 to 10.
    #[serde(default)]
    pub slowdown: f64,
    /// Whether every measured request loads the model again, which is part of its time: the cost of a new
    /// session for each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
}

impl Settings {
    /// So many threads of a CPU, and nothing out of the ordinary.
    pub fn on_cpu(precision: Precision, threads: usize) -> Settings {
        Settings {
            precision,
            kv_precision: None,
            autoregressive: false,
            device: Device::Cpu.to_string(),
            threads,
            shards: 1,
            jit: true,
            hidden_states: false,
            dequantised: false,
            options: BTreeMap::new(),
            serve: Serve::Shared,
            slowdown: 0.0,
            anew: false,
        }
    }

    /// Data type of keys and values.
    pub fn cache(&self) -> Precision {
        self.kv_precision.unwrap_or_else(|| self.precision.usual_cache())
    }

    /// The device, or the first of several.
    pub fn device(&self) -> Device {
        Device::named(&self.device)
    }
}

fn one() -> usize {
    1
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Task {
    Measure(Measure),
    /// Load the model and end: `started`, `loaded`, `done`. For loads from a cold page cache, which would
    /// disturb the memory figures of a measurement.
    Load,
    Answer(Answer),
    Score(Score),
    /// The machine's present speed. Initialises no framework, opens no bundle.
    Probe(Probe),
    /// A run to inspect, not to time: a profiler may slow it down.
    Trace(Trace),
}

/// Load, cold start and warm-up at once, then measured requests on demand: one run yields all figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    pub work: Work,
    pub warmup: Warmup,
    /// Before each measured request, run its beginning up to so many marks, untimed: a process that has
    /// waited has cold caches and sleeping threads. 0 for none.
    #[serde(default)]
    pub lead_in: usize,
    /// If present, a turn holds many requests of several callers, each for one of the case's sequences, texts
    /// or sets of inputs in turn. Such a turn has one mark, the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// Each case's request once, untimed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub work: Work,
    /// Logits along the answers: other engines are compared with them.
    #[serde(default)]
    pub parity: Option<ParityTask>,
}

/// The next request to a warm worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "turn", rename_all = "snake_case")]
pub enum Turn {
    /// What precedes a request of a case and counts in no figure: room, its context, the untimed beginning. The answer is
    /// [`Event::Ready`](crate::Event::Ready). The request comes next; one that comes without it is prepared first.
    Prepare { case: usize },
    /// One request of a case, by its number from 0. The answer is one [`Event::Sample`](crate::Event::Sample).
    Request {
        case: usize,
        /// Its input; the case's own if this is left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Input>,
    },
    /// The next slice of a request of a case: up to its first mark if no request is in progress, else so many
    /// more marks of it, or as many as it still has. The answer is a [`Event::Slice`](crate::Event::Slice),
    /// and to the last slice of a request the [`Event::Sample`](crate::Event::Sample). No mark includes the
    /// time between two slices.
    Slice {
        case: usize,
        marks: usize,
        /// With a request's first slice the input of a whole request, but no trace; then what the slice's steps are fed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Input>,
    },
    /// After a slice or a sample of a request that continues prompts: the logits of these tokens, by id, in its last step.
    /// Nothing is computed for it. The answer is [`Event::Logits`](crate::Event::Logits).
    Logits { case: usize, tokens: Vec<u32> },
    /// No more requests: report usage, and end.
    Finish(Finish),
}

impl Turn {
    pub fn case(&self) -> Option<usize> {
        match self {
            Turn::Prepare { case }
            | Turn::Request { case, .. }
            | Turn::Slice { case, .. }
            | Turn::Logits { case, .. } => Some(*case),
            Turn::Finish(_) => None,
        }
    }

    /// A request of a case, with the case's own input.
    pub fn request(case: usize) -> Turn {
        Turn::Request { case, input: None }
    }

    pub fn slice(case: usize, marks: usize) -> Turn {
        Turn::Slice { case, marks, input: None }
    }
}

/// What to do after the last sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finish {
    #[serde(default)]
    pub hash: bool,
    /// Write teacher-forced logits to a file.
    #[serde(default)]
    pub parity: Option<ParityTask>,
}

/// Teacher-forced logits: context and prompt in one piece, the first `steps` tokens of the trace one at a
/// time, the rest in one piece, so that prefill and decode are both covered at little cost.
///
/// By masked diffusion they are the logits that unmasked each token, in the state that the trace has at its
/// step, followed by those of the last position in the last step. Shapes are as with `prompt_last_only`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParityTask {
    pub steps: usize,
    /// safetensors: `case.0` … f32 [batch, context + prompt + trace, vocabulary]
    pub file: String,
    /// Keep only the last position's logits of context and prompt: `case.0` … f32 [batch, 1 + trace,
    /// vocabulary]. For long prompts and large batches, whose logits would need gigabytes.
    #[serde(default)]
    pub prompt_last_only: bool,
    /// Keep the logits of only the first so many sequences of each case, for batches whose logits would need
    /// gigabytes. All sequences are computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequences: Option<usize>,
}

/// Fixed work, the same whatever the framework, by `settings.threads` threads at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Size of the buffer that is read to measure memory bandwidth.
    pub bytes: u64,
    /// The buffer is read repeatedly until this time has passed, and at least once.
    pub sweep_ns: u64,
    /// How often the arithmetic and the multiply-adds are repeated.
    pub repeats: usize,
}

/// Warm-up repeats whole iterations, of the exact shapes of the measurement, until the latest has
/// settled or a limit is hit. One iteration is always run.
///
/// With `from_cold` the request of the cold start is the first of the first iteration, and is not run again, unless there
/// is only one case.
///
/// An iteration has settled if one of these holds. The second can hold even where each gap is longer than the one before
/// it:
/// - the gaps between marks of its first and its second half have medians that differ by less than `settled_within`
///   (with eight gaps or more);
/// - each gap is divided by the same gap in the iteration before, and the median of these ratios differs from 1 by less
///   than `settled_within`. Requests of one mark have no gaps: the times of that mark are compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Warmup {
    pub min_iterations: usize,
    pub max_iterations: usize,
    /// No iteration is begun after this time, not even for `min_iterations`.
    pub max_ns: u64,
    pub settled_within: f64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_cold: bool,
}

/// Logits of every position of a batch of sequences of equal length, written to a safetensors file:
/// `logits` f32 [batch, positions, vocabulary], and `hidden.0` … where the settings ask for them. Of a model of texts, which
/// may have any lengths, these alone: `[1, tokens, hidden]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    pub sequences: Vec<Vec<u32>>,
    /// The type of each token of texts; all 0 where it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<Vec<u32>>,
    /// The audio of each sequence, of a model that hears; they are then computed one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audio: Vec<Heard>,
    /// Positions appended at a time; 0 for all at once.
    #[serde(default)]
    pub piece: usize,
    /// Write the logits of a part of the positions alone. All are computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    pub file: String,
}

/// Positions of sequences: as many of each, from another one on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The first position of each sequence, from 0.
    pub from: Vec<usize>,
    /// Number of positions of each sequence.
    pub count: usize,
}

// Requests that several callers make at once: how a worker serves them, and when they come.

/// How a worker serves several callers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Serve {
    /// One loaded model. Its requests are computed one after another, each by all threads.
    #[default]
    Shared,
    /// So many loaded models. Each computes one request at a time, with its share of the threads.
    Pool(usize),
    /// One loaded model, which computes up to `most` waiting requests as one batch. The first waits for others at most
    /// `wait_us` microseconds.
    Batch { most: usize, wait_us: u64 },
}

impl Serve {
    pub fn is_shared(&self) -> bool {
        *self == Serve::Shared
    }

    pub fn models(self) -> usize {
        if let Serve::Pool(models) = self { models } else { 1 }
    }
}

impl fmt::Display for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Serve::Shared => f.pad("shared"),
            Serve::Pool(models) => f.pad(&format!("pool:{models}")),
            Serve::Batch { most, wait_us } if wait_us % 1000 == 0 => {
                f.pad(&format!("batch:{most}:{}ms", wait_us / 1000))
            }
            Serve::Batch { most, wait_us } => f.pad(&format!("batch:{most}:{wait_us}us")),
        }
    }
}

/// Most models of a pool, and most requests of a batch.
const MOST: usize = 1024;

/// Longest wait for others, in microseconds: ten seconds.
const LONGEST_US: u64 = 10_000_000;

impl FromStr for Serve {
    type Err = String;

    fn from_str(text: &str) -> Result<Serve, String> {
        let wrong = || format!("{text:?} is none of shared, pool:K and batch:B:W, such as batch:16:2ms");
        let count =
            |text: &str| text.parse().ok().filter(|count| (1..=MOST).contains(count)).ok_or_else(wrong);
        match text.split(':').collect::<Vec<_>>()[..] {
            ["shared"] => Ok(Serve::Shared),
            ["pool", models] => count(models).map(Serve::Pool),
            ["batch", most, wait] => {
                let (number, unit) = match (wait.strip_suffix("ms"), wait.strip_suffix("us")) {
                    (Some(number), _) => (number, 1000),
                    (None, Some(number)) => (number, 1),
                    (None, None) => return Err(wrong()),
                };
                let wait_us = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
                let wait_us = wait_us.filter(|&wait| wait <= LONGEST_US).ok_or_else(wrong)?;
                Ok(Serve::Batch { most: count(most)?, wait_us })
            }
            _ => Err(wrong()),
        }
    }
}

impl Serialize for Serve {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Serve {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Serve, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Threads that make requests, one at a time each.
    pub callers: usize,
    pub requests: usize,
    /// If left out, a caller makes its next request when its last is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<Arrivals>,
    /// A turn outside warm-up then searches for the highest rate at which answers are in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
}

/// The search for the highest rate at which 99 of 100 answers come within a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    pub limit_ns: u64,
    /// Determines the times of requests.
    pub seed: u64,
}

/// Requests at random times, independent of earlier ones: a Poisson process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Arrivals {
    /// Mean number a second.
    pub rate: f64,
    /// Determines the times between them.
    pub seed: u64,
}

/// One of several requests that a turn holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// When it was made, or was due, since the turn's requests began.
    pub asked_ns: u64,
    /// When its answer was complete.
    pub done_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for (text, serve) in [
            ("shared", Serve::Shared),
            ("pool:4", Serve::Pool(4)),
            ("batch:16:2ms", Serve::Batch { most: 16, wait_us: 2000 }),
            ("batch:8:1500us", Serve::Batch { most: 8, wait_us: 1500 }),
        ] {
            assert_eq!(text.parse(), Ok(serve));
            assert_eq!(serve.to_string(), text);
            let json = serde_json::to_string(&serve).unwrap();
            assert_eq!(serde_json::from_str::<Serve>(&json).unwrap(), serve);
        }
        for wrong in
            ["", "pool", "pool:0", "batch:8", "batch:8:2", "batch:0:2ms", "batch:8:20000ms", "shared:1"]
        {
            assert!(wrong.parse::<Serve>().is_err(), "{wrong}");
        }
    }
}
