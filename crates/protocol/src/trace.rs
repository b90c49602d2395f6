//! A run to inspect: the request, and the worker's answer. None of its figures is a measurement, because a
//! profiler slows the run down.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Work;
use crate::untrusted::{Foreign, ForeignPath, Foreigns};

/// Load, cold start, one request of warm-up and one request, all recorded with clock readings, and the
/// framework's own profiler where it has one. Requests are those of the first case, not forced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    pub work: Work,
    /// File for the profiler's events: a JSON list of [`ProfileEvent`]s. It is not written without a
    /// profiler. The worker may use its directory for files that a profiler leaves behind.
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
    /// A sentence each for people: why there is no profiler, or what it does not report.
    pub notes: Foreigns,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub name: Foreign,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// One request, token by token. The first is complete after the prefill, each other one after a decode step
/// that begins when the one before is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedRequest {
    /// The phase's name.
    pub phase: Foreign,
    pub start_ns: u64,
    /// When each token was complete, or a batch of texts encoded.
    pub tokens_ns: Vec<u64>,
    /// `[batch][tokens]`; empty for texts that are encoded.
    pub tokens: Vec<Vec<u32>>,
}

/// The output of a framework's own profiler, and the accuracy of its clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profiler {
    /// For example `ONNX Runtime's profiler`.
    pub name: Foreign,
    /// [`Trace::file`], complete.
    pub file: ForeignPath,
    pub events: usize,
    pub alignment: Alignment,
}

/// How the profiler's times were converted to the worker's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alignment {
    /// The clock that the profiler reads: `CLOCK_REALTIME`, `CLOCK_MONOTONIC`; or `none`, if it reports only
    /// durations and the worker has placed them.
    pub clock: Foreign,
    /// Largest error of a time, from readings of both clocks together at the profiler's start and its end;
    /// `null` where there was nothing to read.
    #[serde(default)]
    pub error_ns: Option<u64>,
    /// How far an event extends at most over the beginning or the end of the step that most of it is in.
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
    /// Other details from the framework.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<Foreign, Foreign>,
}
