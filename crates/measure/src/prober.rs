//! What is remembered from one probe of the machine to the next.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bundle::Bundle;
use judge::limit::Work;
use plan::{Contender, Plan};

/// As much is read as a decode step reads, within these sizes: beyond the caches more makes no difference.
const BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;
/// What the session remembers from one probe to the next.
#[derive(Default)]
pub(crate) struct Prober {
    /// By contender.
    pub(crate) bytes: Vec<u64>,
    /// The first worker that may be able to: one that cannot is not asked again.
    pub(crate) worker: usize,
    /// What the latest probe read, until something else has run.
    pub(crate) fresh: Option<u64>,
    /// When the latest process began, and how long the last one of each contender took.
    pub(crate) begun: Option<Instant>,
    pub(crate) took: BTreeMap<usize, Duration>,
}

impl Prober {
    pub(crate) fn new(plan: &Plan, bundle: &Bundle) -> Prober {
        let bytes = |contender: &Contender| {
            // An estimate of the cache's elements: what they are is known after a load.
            let element = contender.precision.element().bytes();
            let work = Work::new(bundle.config(), plan, contender.precision, element);
            work.map_or(0, |work| work.step_bytes() as u64).clamp(*BYTES.start(), *BYTES.end())
        };
        Prober { bytes: plan.contenders.iter().map(bytes).collect(), ..Prober::default() }
    }

    /// Something else has run since the latest probe.
    pub(crate) fn forget(&mut self) {
        self.fresh = None;
    }
}
