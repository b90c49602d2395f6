//! A GPU's speed at this moment: copies within its memory and matrix products, by the framework that is
//! compared.

use engine::{Device, EngineError, InferenceEngine, Settings};
use protocol::{Probe, Probed};

use crate::clock;
use crate::error::ServeError;

/// Bytes of one timed row of copies. One copy of a small buffer would measure the latency of a launch.
const ROW_BYTES: u64 = 4 << 30;
/// Smallest buffer. Copies of a smaller one would measure how soon a GPU begins, and its cache: 50 MB on an H100.
const LEAST_BYTES: usize = 512 << 20;
/// Products of one timed row.
const PRODUCTS: usize = 8;
/// Most rows of copies: the loop must also end if a script has stopped the clock.
const MOST_ROWS: usize = 1000;

/// Runs the probe on the device of `settings`; `None` if the engine cannot.
pub(crate) fn device<E: InferenceEngine>(
    task: &Probe,
    settings: &Settings,
) -> Result<Option<Probed>, ServeError> {
    if task.repeats == 0 || task.bytes == 0 {
        return Err(ServeError::Job("a probe needs bytes and repeats, at least 1 of each".into()));
    }
    let bytes = usize::try_from(task.bytes).unwrap_or(usize::MAX);
    let bytes = if settings.device == Device::Cpu { bytes } else { bytes.max(LEAST_BYTES) };
    let Some(mut bench) = E::bench(settings, bytes)? else { return Ok(None) };
    // Kernels are loaded and chosen on first use.
    let in_one = bench.copies(1)?.max(1);
    bench.products(1)?;
    let copies = usize::try_from(ROW_BYTES.div_ceil(in_one)).unwrap_or(1);
    let mut products = Row::default();
    for _ in 0..task.repeats {
        products.add(|| bench.products(PRODUCTS))?;
    }
    let mut sweeps = Row::default();
    let mut swept_ns = 0;
    while sweeps.times_ns.is_empty() || (swept_ns < task.sweep_ns && sweeps.times_ns.len() < MOST_ROWS) {
        swept_ns += sweeps.add(|| bench.copies(copies))?;
    }
    Ok(Some(Probed {
        compute_ns: products.times_ns.iter().copied().min().unwrap_or(0),
        bytes: sweeps.work,
        sweeps_ns: sweeps.times_ns,
        operations: products.work,
        multiply_adds_ns: products.times_ns,
        threads: settings.threads,
        device: Some(bench.device().to_string().into()),
        precision: Some(bench.precision().name().into()),
    }))
}

/// Equal pieces of work, one after another.
#[derive(Default)]
struct Row {
    /// The work of one piece.
    work: u64,
    times_ns: Vec<u64>,
}

impl Row {
    /// Does one more piece and returns its time.
    fn add(&mut self, work: impl FnOnce() -> Result<u64, EngineError>) -> Result<u64, EngineError> {
        let begin = clock::now_ns();
        self.work = work()?;
        let ns = clock::now_ns() - begin;
        self.times_ns.push(ns);
        Ok(ns)
    }
}
