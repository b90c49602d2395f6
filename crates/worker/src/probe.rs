//! The machine's speed at this moment: fixed arithmetic, sweeps over memory, multiply-adds; the same for
//! every framework, with as many threads as it gets.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::MmapMut;
use protocol::{Probe, Probed, UnitProbed};

use crate::engine::{Device, InferenceEngine, Result, Settings};
use crate::{ServeError, clock, energy};

mod units;

use units::Burst;

/// Rounds of the arithmetic, of five or six cycles of latency each: about 10 ms at 3 GHz.
const ROUNDS: u64 = 6_000_000;

/// A sweep repeats over a small buffer until this much is read: shorter sweeps would measure how soon threads
/// wake.
const SWEEP_BYTES: usize = 64 << 20;

/// A larger number is taken for a mistake: threads wait for one another, so that all must start.
const MOST_THREADS: usize = 1024;

/// Runs the probe with `threads` threads at once.
pub(crate) fn probe(task: &Probe, threads: usize) -> Result<Probed, ServeError> {
    if !(1..=MOST_THREADS).contains(&threads) || task.repeats == 0 || task.bytes == 0 {
        return Err(ServeError::Job(format!(
            "a probe needs 1 to {MOST_THREADS} threads, and bytes and repeats, at least 1 of each"
        )));
    }
    let mut buffer = usize::try_from(task.bytes)
        .map_err(|e| e.to_string())
        .and_then(|bytes| MmapMut::map_anon(bytes).map_err(|e| e.to_string()))
        .map_err(|e| {
            ServeError::Job(format!("a probe of {} bytes does not fit in memory: {e}", task.bytes))
        })?;
    // Large pages keep the page tables out of the figure; without them the sweep is somewhat slower.
    #[cfg(target_os = "linux")]
    let _ = buffer.advise(memmap2::Advice::HugePage);

    // Whole pages for each thread, so that no two threads write one line.
    let share = buffer.len().div_ceil(threads).next_multiple_of(1 << 12);
    let passes = SWEEP_BYTES.div_ceil(buffer.len()).max(1);
    let mut parts: Vec<&mut [u8]> = buffer.chunks_mut(share).collect();
    parts.resize_with(threads, Default::default);
    // Two threads that the scheduler starts on one CPU would halve the first readings: it took longer to part them
    // than a burst lasts.
    let cpus = energy::cpus().filter(|cpus| cpus.len() >= threads);
    let units = units::of_this_cpu();
    let bench =
        Bench { task, passes, units: &units, barrier: Barrier::new(threads), enough: AtomicBool::new(false) };
    let readings: Vec<Readings> = std::thread::scope(|scope| {
        let bench = &bench;
        let start = |(index, part)| {
            let cpu = cpus.as_ref().map(|cpus| cpus[index]);
            scope.spawn(move || {
                cpu.into_iter().for_each(energy::pin);
                bench.run(part, index == 0)
            })
        };
        // All are started before the first is waited for.
        let threads: Vec<_> = parts.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("the probe does not panic")).collect()
    });
    let slowest = |of: fn(&Readings) -> &Vec<Span>| together(&readings, of);
    Ok(Probed {
        compute_ns: slowest(|r| &r.arithmetic).into_iter().min().unwrap_or(0),
        bytes: task.bytes * passes as u64,
        sweeps_ns: slowest(|r| &r.sweeps),
        operations: OPERATIONS * threads as u64,
        multiply_adds_ns: slowest(|r| &r.multiply_adds),
        threads,
        device: None,
        precision: None,
        units: units
            .iter()
            .enumerate()
            .map(|(index, unit)| UnitProbed {
                unit: unit.unit,
                operations: unit.operations * threads as u64,
                times_ns: together(&readings, |r| &r.units[index]),
            })
            .collect(),
    })
}

/// The state that the threads of a probe share.
struct Bench<'a> {
    task: &'a Probe,
    passes: usize,
    units: &'a [Burst],
    barrier: Barrier,
    /// Set by the first thread once the sweeps have lasted the requested time.
    enough: AtomicBool,
}

/// Begin and end.
type Span = (u64, u64);

#[derive(Default)]
struct Readings {
    arithmetic: Vec<Span>,
    sweeps: Vec<Span>,
    multiply_adds: Vec<Span>,
    /// The bursts of each unit.
    units: Vec<Vec<Span>>,
}

/// From the first thread's begin to the last one's end, of each repeat.
fn together(readings: &[Readings], of: impl Fn(&Readings) -> &Vec<Span>) -> Vec<u64> {
    let repeats = readings.iter().map(|thread| of(thread).len()).min().unwrap_or(0);
    let of_all = |repeat: usize| {
        let spans = || readings.iter().map(|thread| of(thread)[repeat]);
        let (begin, end) = (spans().map(|s| s.0).min(), spans().map(|s| s.1).max());
        end.unwrap_or(0) - begin.unwrap_or(0)
    };
    (0..repeats).map(of_all).collect()
}

impl Bench<'_> {
    /// The work of one thread; `first` is true for one of them.
    fn run(&self, part: &mut [u8], first: bool) -> Readings {
        part.fill(1);
        let mut readings = Readings { units: vec![Vec::new(); self.units.len()], ..Readings::default() };
        for _ in 0..self.task.repeats {
            readings.arithmetic.push(self.timed(|| {
                black_box(arithmetic(black_box(1)));
            }));
            readings.multiply_adds.push(self.timed(burst));
            for (unit, spans) in self.units.iter().zip(&mut readings.units) {
                spans.push(self.timed(unit.run));
            }
        }
        let mut swept_ns = 0;
        while !self.enough.load(Ordering::Relaxed) {
            let (begin, end) = self.timed(|| {
                for _ in 0..self.passes {
                    black_box(sum(black_box(part)));
                }
            });
            readings.sweeps.push((begin, end));
            swept_ns += end - begin;
            if first && swept_ns >= self.task.sweep_ns {
                self.enough.store(true, Ordering::Relaxed);
            }
            // All threads have read the first one's decision before any thread reads it again.
            self.barrier.wait();
        }
        readings
    }

    /// Begun by all at once.
    fn timed(&self, work: impl FnOnce()) -> Span {
        self.barrier.wait();
        let begin = clock::now_ns();
        work();
        (begin, clock::now_ns())
    }
}

/// Two chains side by side, one of integers and one of floats, of which each link waits for the one before.
/// Neither has a closed form that a compiler would find: the integers are xorshift-multiply, the floats
/// the logistic map.
fn arithmetic(seed: u64) -> (u64, f64) {
    let (mut integer, mut float) = (seed, 1.0 / (seed as f64 + 2.0));
    for _ in 0..ROUNDS {
        integer = (integer ^ (integer >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        float = 3.9 * float * (1.0 - float);
    }
    (integer, float)
}

/// Sum of all bytes taken as integers of 8 bytes; a remainder at the end is not read. The compiler makes it
/// wide loads into several accumulators, which outrun the memory: reading several streams at once, or
/// prefetching, was measured to be no faster.
fn sum(bytes: &[u8]) -> u64 {
    bytes.as_chunks().0.iter().fold(0, |sum: u64, &word| sum.wrapping_add(u64::from_ne_bytes(word)))
}

// A GPU's speed at this moment: copies within its memory and matrix products, by the framework that is
// compared.

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
    let bytes = if settings.device() == Device::Cpu { bytes } else { bytes.max(LEAST_BYTES) };
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
        device: Some(bench.device().into()),
        precision: Some(bench.precision().into()),
        units: Vec::new(),
    }))
}

/// Equal pieces of work, one after another.
#[derive(Default)]
struct Row {
    work: u64,
    times_ns: Vec<u64>,
}

impl Row {
    /// Does one more piece and returns its time.
    fn add(&mut self, work: impl FnOnce() -> Result<u64>) -> Result<u64> {
        let begin = clock::now_ns();
        self.work = work()?;
        let ns = clock::now_ns() - begin;
        self.times_ns.push(ns);
        Ok(ns)
    }
}

// The most f32 multiply-adds that a thread can do, to compare matrix products with.

/// f32 accumulators, each waiting for its own last link alone. Eight vectors of AVX-512, sixteen of AVX2, all of
/// NEON's: enough to hide a latency of four cycles on two units, few enough to stay in registers. On Zen 4 (32
/// operations a cycle) 64 to 256 of them all reached the theoretical peak, 117 of 117 GFLOP/s a core at 3.67 GHz; so
/// did AVX-512 and AVX2 intrinsics, which are therefore not needed. Arrays of arrays were not kept in registers and
/// reached 2 GFLOP/s. A build for any CPU has no AVX-512, with which Intel's do twice as much: it is switched on for the
/// burst alone.
const ACCUMULATORS: usize = 128;

/// Links of each: about 9 ms on such a core.
const LINKS: u64 = 4 << 10;

const BLOCKS: u64 = 1 << 10;

/// Floating-point operations of a [`burst`]; a multiply-add is two.
const OPERATIONS: u64 = 2 * ACCUMULATORS as u64 * LINKS * BLOCKS;

/// `sum = sum · ½ + 1` in every accumulator, which converges to 2 and never becomes a subnormal number.
fn burst() {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
        // SAFETY: the CPU has both.
        #[allow(unsafe_code)]
        unsafe {
            wide_burst();
        }
        return;
    }
    narrow_burst();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,fma")]
fn wide_burst() {
    links(f32::mul_add);
}

#[inline(never)]
fn narrow_burst() {
    links(multiply_add);
}

#[inline(always)]
fn links(multiply_add: impl Fn(f32, f32, f32) -> f32) {
    for _ in 0..BLOCKS {
        let (factor, summand) = (black_box(0.5), black_box(1.0));
        let mut sums = [black_box(0.0_f32); ACCUMULATORS];
        for _ in 0..LINKS {
            for sum in &mut sums {
                *sum = multiply_add(*sum, factor, summand);
            }
        }
        black_box(sums);
    }
}

/// Fused where the build has an instruction for it; without one, `mul_add` would call a function.
fn multiply_add(a: f32, factor: f32, summand: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_feature = "neon")) {
        a.mul_add(factor, summand)
    } else {
        a * factor + summand
    }
}

#[cfg(test)]
mod tests {
    use super::multiply_add;

    #[test]
    fn a_link_is_one_multiplication_and_one_addition() {
        assert_eq!(multiply_add(3.0, 0.5, 1.0), 2.5);
    }
}
