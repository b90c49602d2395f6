//! State that is kept from one probe of the machine to the next.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bundle::Bundle;
use judge::limit::Work;
use plan::{Contender, Plan};

/// Limits on the bytes that a probe reads. Within them it reads as much as a decode step; beyond the caches, more makes
/// no difference.
const BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;
/// State of the session between probes.
#[derive(Default)]
pub(crate) struct Prober {
    /// Bytes that a decode step reads, by contender.
    pub(crate) bytes: Vec<u64>,
    /// The first worker that may be able to probe; one that cannot is not asked again.
    pub(crate) worker: usize,
    /// Bytes that the latest probe read; `None` once something else has run.
    pub(crate) fresh: Option<u64>,
    /// The start of the latest process, and the duration of each contender's last process.
    pub(crate) begun: Option<Instant>,
    pub(crate) took: BTreeMap<usize, Duration>,
}

impl Prober {
    pub(crate) fn new(plan: &Plan, bundle: &Bundle) -> Prober {
        let bytes = |contender: &Contender| {
            // The element type of the cache is an estimate; it is known only after a load.
            let element = contender.precision.element().bytes();
            let work = Work::new(bundle.config(), plan, contender.precision, element);
            work.map_or(0, |work| work.step_bytes() as u64).clamp(*BYTES.start(), *BYTES.end())
        };
        Prober { bytes: plan.contenders.iter().map(bytes).collect(), ..Prober::default() }
    }

    /// Notes that something else has run since the latest probe.
    pub(crate) fn forget(&mut self) {
        self.fresh = None;
    }
}
