//! Everything that was measured in one comparison, and how it came to an end.

use std::collections::BTreeMap;

use protocol::Probed;
use serde::Serialize;

use crate::judge::text::TextScore;
use crate::machine::Noise;
use crate::record::{Run, RunFailure};

#[derive(Default)]
pub(crate) struct Evidence {
    /// The measuring processes of every round, of the attempt that stands.
    pub(crate) runs: Vec<Run>,
    /// Those of rounds that were done again because the machine was noisy.
    pub(crate) repeated: Vec<Run>,
    pub(crate) cold_loads: Vec<Run>,
    pub(crate) probes: Vec<Probe>,
    /// Contenders that cannot run at all, by label.
    pub(crate) absent: BTreeMap<String, RunFailure>,
    pub(crate) no_reference: Option<String>,
    /// How well each contender predicts the plan's text, by label; or why that is not known.
    pub(crate) texts: BTreeMap<String, Result<TextScore, String>>,
    /// Complete rounds.
    pub(crate) rounds: usize,
    pub(crate) end: End,
    /// The machine before the first round.
    pub(crate) before: Option<Noise>,
    /// Of every round, from its first process to its last, those done again included.
    pub(crate) noises: Vec<Noise>,
    /// What the guard complained of, round by round, whether it was repeated or accepted.
    pub(crate) complaints: Vec<String>,
    /// CPUs' worth of time that a cgroup allows, where it limits it.
    pub(crate) quota: Option<f64>,
    /// Why the probe of the machine has no figures.
    pub(crate) no_probe: Option<String>,
}

/// Why no more rounds were done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum End {
    /// As many as were asked for, or as automatic rounds go.
    #[default]
    Planned,
    /// Every verdict on throughput was clear, or its interval narrower than the margin.
    Clear,
    /// The time budget was used up.
    Budget,
    /// Nobody was left to measure.
    NobodyLeft,
    /// The machine stayed noisy: nothing can be said.
    Noisy {
        reason: String,
    },
    Interrupted,
}

impl End {
    /// Whether the decision to stop owes nothing to the figures, so that what is left of the error rate
    /// may be spent.
    pub(crate) fn is_last_look(&self) -> bool {
        matches!(self, End::Planned | End::Budget)
    }
}

/// The machine's own speed at one moment, between two processes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Probe {
    /// The process that had just ended, and the one that came next, if nothing ran in between.
    pub(crate) after: Option<Process>,
    pub(crate) before: Option<Process>,
    pub(crate) compute_ns: u64,
    /// How much slower than the fastest so far, as a share.
    pub(crate) drift: f64,
    /// Bytes per second: of all sweeps together, and of the fastest.
    pub(crate) read_bandwidth: f64,
    pub(crate) best_read_bandwidth: f64,
    /// f32 operations per second: of all bursts together, and of the fastest.
    pub(crate) arithmetic: f64,
    pub(crate) best_arithmetic: f64,
    /// What one sweep read.
    pub(crate) bytes: u64,
    pub(crate) threads: usize,
}

/// A measuring process, by what tells it from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Process {
    pub(crate) round: usize,
    pub(crate) attempt: usize,
    pub(crate) framework: String,
}

impl Probe {
    pub(crate) fn of(probed: &Probed, drift: f64) -> Probe {
        let rate = |work: u64, times: &[u64]| {
            let (mean, best) = (times.iter().sum::<u64>() as f64, times.iter().min().copied().unwrap_or(0));
            let per_second = |ns: f64, count: usize| work as f64 * count as f64 / (ns.max(1.0) / 1e9);
            (per_second(mean, times.len()), per_second(best as f64, 1))
        };
        let (read_bandwidth, best_read_bandwidth) = rate(probed.bytes, &probed.sweeps_ns);
        let (arithmetic, best_arithmetic) = rate(probed.operations, &probed.multiply_adds_ns);
        Probe {
            after: None,
            before: None,
            compute_ns: probed.compute_ns,
            drift,
            read_bandwidth,
            best_read_bandwidth,
            arithmetic,
            best_arithmetic,
            bytes: probed.bytes,
            threads: probed.threads,
        }
    }
}
