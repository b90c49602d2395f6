//! What the machine can do just now: fixed arithmetic and a sweep over memory, the same for every framework.

use std::hint::black_box;
use std::sync::Barrier;

use memmap2::MmapMut;
use protocol::{Probe, Probed};

use crate::clock;
use crate::serve::ServeError;

/// Rounds of the arithmetic, of five or six cycles of latency each: about 10 ms at 3 GHz.
const ROUNDS: u64 = 6_000_000;

/// More are taken for a mistake: they wait for one another, so all must come to be.
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
    // Large pages take the page tables out of the figure; without them the sweep is somewhat slower.
    #[cfg(target_os = "linux")]
    let _ = buffer.advise(memmap2::Advice::HugePage);

    // Whole pages for each thread, so that no two threads write one line.
    let share = buffer.len().div_ceil(threads).next_multiple_of(1 << 12);
    let barrier = Barrier::new(threads);
    let mut parts: Vec<&mut [u8]> = buffer.chunks_mut(share).collect();
    parts.resize_with(threads, Default::default);
    let readings: Vec<Vec<Reading>> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let start = |part| scope.spawn(move || run(part, task.repeats, barrier));
        // All are started before the first is waited for.
        let threads: Vec<_> = parts.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("the probe does not panic")).collect()
    });
    let (mut compute_ns, mut sweep_ns) = (u64::MAX, u64::MAX);
    for repeat in 0..task.repeats {
        let of_all = || readings.iter().map(|thread| &thread[repeat]);
        compute_ns = compute_ns.min(of_all().map(|r| r.compute_ns).max().unwrap_or(0));
        let begin = of_all().map(|r| r.sweep_begin).min().unwrap_or(0);
        let end = of_all().map(|r| r.sweep_end).max().unwrap_or(0);
        sweep_ns = sweep_ns.min(end - begin);
    }
    Ok(Probed { compute_ns, sweep_ns, bytes: task.bytes, threads })
}

/// One repeat of one thread.
struct Reading {
    compute_ns: u64,
    sweep_begin: u64,
    sweep_end: u64,
}

fn run(part: &mut [u8], repeats: usize, barrier: &Barrier) -> Vec<Reading> {
    part.fill(1);
    let one = || {
        barrier.wait();
        let before = clock::now_ns();
        black_box(arithmetic(black_box(1)));
        let compute_ns = clock::now_ns() - before;
        barrier.wait();
        let sweep_begin = clock::now_ns();
        black_box(sum(black_box(part)));
        Reading { compute_ns, sweep_begin, sweep_end: clock::now_ns() }
    };
    (0..repeats).map(|_| one()).collect()
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

/// Sum of all bytes taken as integers of 8 bytes; what is left over at the end is not read. The compiler
/// makes it wide loads into several accumulators, which outrun the memory: reading several streams at
/// once, or prefetching, was measured to be no faster.
fn sum(bytes: &[u8]) -> u64 {
    bytes.as_chunks().0.iter().fold(0, |sum: u64, &word| sum.wrapping_add(u64::from_ne_bytes(word)))
}
