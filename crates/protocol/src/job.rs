//! The driver's requests to a worker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{DecoderSettings, Input, Load, Serve, Trace, Work};

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

/// Settings asked for. Compare [`InEffect`](crate::InEffect).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// `f32`, `bf16`, `f16`
    pub precision: String,
    #[serde(flatten)]
    pub decoder: DecoderSettings,
    /// `cpu` or `cuda:N`
    pub device: String,
    pub threads: usize,
    /// Devices that the weights are divided over; 1 if they are not.
    #[serde(default = "one")]
    pub shards: usize,
    pub jit: bool,
    #[serde(default)]
    pub hidden_states: bool,
    /// At a quantised precision, multiply by the dequantised weights, in f32: the baseline for quantised
    /// kernels.
    #[serde(default)]
    pub dequantised: bool,
    /// Options of the engine variant.
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
        /// As for a whole request, with its first slice.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Input>,
    },
    /// No more requests: report usage, and end.
    Finish(Finish),
}

impl Turn {
    /// A request of a case, with the case's own input.
    pub fn request(case: usize) -> Turn {
        Turn::Request { case, input: None }
    }

    /// A slice of such a request.
    pub fn slice(case: usize, marks: usize) -> Turn {
        Turn::Slice { case, marks, input: None }
    }
}

/// What to do after the last sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finish {
    /// Whether the weights file is hashed.
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
/// `logits` f32 [batch, positions, vocabulary], and `hidden.0` … where the settings ask for them. Of an encoder, whose
/// sequences may have any lengths, these alone: `[1, tokens, hidden]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    pub sequences: Vec<Vec<u32>>,
    /// The type of each token of an encoder's texts; all 0 where it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<Vec<u32>>,
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
