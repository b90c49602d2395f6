//! The output of a framework's own profiler, in one form for all.

use std::collections::BTreeMap;

/// The events of a framework's own profiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// For example `ONNX Runtime's profiler`.
    pub profiler: String,
    pub clock: ProfileClock,
    pub events: Vec<ProfileEvent>,
    /// Limits of the profiler, a sentence each.
    pub notes: Vec<String>,
}

/// The system's clock that a profiler reads. The worker knows its offset from its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileClock {
    /// Time since 1970.
    Realtime,
    /// The clock that the worker reads, too.
    Monotonic,
}

/// One event of a framework's own profiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileEvent {
    /// As the framework names it.
    pub name: String,
    /// The part of the model, if it is known, in the words of every engine: `embedding`, `layer 3 attention norm`,
    /// `layer 3 attention`, `layer 3 mlp norm`, `layer 3 mlp`, or `layer 3` where no more is known, `final norm`,
    /// `head`. Layers count from 0.
    pub part: Option<String>,
    /// The thread that it ran on, as the framework names it.
    pub thread: String,
    /// By the [`Profile`]'s clock.
    pub start_ns: u64,
    pub duration_ns: u64,
    /// Other details from the framework.
    pub details: BTreeMap<String, String>,
}
