//! A run to look at: what is asked, and what the worker answers. No figure of it is a measurement, for a profiler slows
//! what it watches.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use untrusted::{Foreign, ForeignPath, Foreigns};

use crate::Work;

/// Load, cold start, one request of warm-up and one request, all noted with the clock's readings, and the framework's
/// own profiler where it has one. Requests are those of the first case, which is not fed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    pub work: Work,
    /// Where the profiler's events go: a JSON list of [`ProfileEvent`]s. It is not written without a profiler. Its
    /// directory is the worker's to put files into that a profiler leaves behind.
    pub file: String,
}

/// The answer to [`Trace`]. All readings are of the clock of [`Job::spawned_at_ns`](crate::Job::spawned_at_ns).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// In order, one after another: `start-up`, `load`, `profiler start` if there is one, `cold start`, `warm-up`,
    /// `request`.
    pub phases: Vec<Interval>,
    /// One of each of the last three phases.
    pub requests: Vec<TracedRequest>,
    /// The framework's own profiler; `null` where it has none.
    #[serde(default)]
    pub profiler: Option<Profiler>,
    /// A sentence each for people: why there is no profiler, or what it cannot tell.
    pub notes: Foreigns,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub name: Foreign,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// One request, token by token. The first is there after the prefill, each other after a decode step that begins when
/// the one before is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedRequest {
    /// The phase's name.
    pub phase: Foreign,
    pub start_ns: u64,
    /// When each token was there, or a batch of texts was encoded.
    pub tokens_ns: Vec<u64>,
    /// `[batch][tokens]`; none of texts that are encoded.
    pub tokens: Vec<Vec<u32>>,
}

/// What a framework's own profiler told, and how well its clock is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profiler {
    /// For example `ONNX Runtime's profiler`.
    pub name: Foreign,
    /// [`Trace::file`], complete.
    pub file: ForeignPath,
    pub events: usize,
    pub alignment: Alignment,
}

/// How the profiler's times were put on the worker's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alignment {
    /// The clock that the profiler reads: `CLOCK_REALTIME`, `CLOCK_MONOTONIC`; or `none`, where it tells durations
    /// alone and the worker has placed them.
    pub clock: Foreign,
    /// How far a time may be off, by readings of both clocks beside each other at the profiler's start and its end;
    /// `null` where there was nothing to read.
    #[serde(default)]
    pub error_ns: Option<u64>,
    /// How far an event reaches at most over the beginning or the end of the step that most of it is in.
    pub overhang_ns: u64,
}

/// One event of a framework's own profiler, on the worker's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileEvent {
    /// As the framework names it.
    pub name: Foreign,
    /// The part of the model, for example `layer 3 attention`; `null` where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Foreign>,
    /// The thread that it ran on, as the framework names it.
    pub thread: Foreign,
    pub start_ns: u64,
    pub duration_ns: u64,
    /// What else the framework tells of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<Foreign, Foreign>,
}
