//! State that is kept from one probe of the machine to the next.

use std::time::Instant;

use bundle::Bundle;
use judge::report::work::limit::{Work, weights_read};
use plan::{Contender, Plan};

/// Limits on the bytes that a probe reads. Within them it reads as much as a decode step; once it exceeds the
/// caches, more makes no difference.
const BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 28;
/// State of the session between probes.
#[derive(Default)]
pub(crate) struct Prober {
    /// Bytes that a decode step reads, by contender.
    pub(crate) bytes: Vec<u64>,
    /// The first worker that may be able to probe; one that cannot is not asked again.
    pub(crate) worker: usize,
    /// The latest probe.
    pub(crate) latest: Option<Instant>,
}

impl Prober {
    pub(crate) fn new(plan: &Plan, bundle: &Bundle) -> Prober {
        let bytes = |contender: &Contender| {
            // The element type of the cache is an estimate; it is known only after a load.
            let element = contender.precision.element().bytes();
            let (config, precision) = (bundle.config(), contender.precision);
            let read = match plan.work.generate() {
                Some(work) => Work::new(config, work, precision, element).map(Work::step_bytes),
                None => weights_read(config, precision).map(|bytes| bytes as f64),
            };
            read.map_or(0, |bytes| bytes as u64).clamp(*BYTES.start(), *BYTES.end())
        };
        Prober { bytes: plan.contenders.iter().map(bytes).collect(), ..Prober::default() }
    }
}
