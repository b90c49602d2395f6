//! How fast the loops of decode's attention read keys and values, compared with a plain sweep over memory.
//!
//! ```sh
//! cargo bench --package engine-candle --bench attention
//! ```
//!
//! One line per element type and number of heads that share keys: GB/s over all threads, best and median of
//! several turns. Every layer has its own keys and values, as in a model. Softmax is left out.

#[expect(dead_code, reason = "the bench uses the loops alone")]
#[path = "../src/attention/grouped.rs"]
mod grouped;

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use grouped::{KEY_BLOCK, Kept};
use half::{bf16, f16};

/// The shape of SmolLM2-135M, at 2,048 tokens of context.
const LAYERS: usize = 30;
const KV_HEADS: usize = 3;
const WIDTH: usize = 64;
const KEYS: usize = 2048;
const TURNS: usize = 40;

/// One thread's part of a head: `[keys, width]` of keys, then of values.
fn attend<T: Kept>(keys: &[T], values: &[T], group: usize, scores: &mut [f32], out: &mut [f32]) {
    let (count, queries) = (keys.len() / WIDTH, vec![0.01; group * WIDTH]);
    let blocks = || (0..count).step_by(KEY_BLOCK).map(|start| (start, KEY_BLOCK.min(count - start)));
    for (start, rows) in blocks() {
        grouped::scores(&queries, &keys[start * WIDTH..][..rows * WIDTH], WIDTH, &mut scores[start..], count);
    }
    for (start, rows) in blocks() {
        let values = &values[start * WIDTH..][..rows * WIDTH];
        grouped::add_weighted(&scores[start..], count, values, WIDTH, out);
    }
}

/// GB/s, best and median of the turns. Each turn reads `bytes` on all threads.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the time")]
fn rates(bytes: usize, threads: usize, read: impl Fn(usize) + Sync) -> (f64, f64) {
    let mut rates: Vec<f64> = (0..TURNS)
        .map(|_| {
            let start = Instant::now();
            thread::scope(|scope| {
                for thread in 0..threads {
                    let read = &read;
                    scope.spawn(move || read(thread));
                }
            });
            bytes as f64 / start.elapsed().as_secs_f64() / 1e9
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    (rates[TURNS - 1], rates[TURNS / 2])
}

fn measure<T: Kept + Sync>(name: &str, one: T, threads: usize) {
    let layers: Vec<[Vec<T>; 2]> = (0..LAYERS)
        .map(|_| [vec![one; KV_HEADS * KEYS * WIDTH], vec![one; KV_HEADS * KEYS * WIDTH]])
        .collect();
    let bytes = 2 * LAYERS * KV_HEADS * KEYS * WIDTH * size_of::<T>();
    for group in [1, 3, 4] {
        let (best, median) = rates(bytes, threads, |thread| {
            let (mut scores, mut out) = (vec![0.0; group * KEYS], vec![0.0; group * WIDTH]);
            for [keys, values] in &layers {
                for head in 0..KV_HEADS {
                    let at = |thread: usize| (head * KEYS + KEYS * thread / threads) * WIDTH;
                    let part = at(thread)..at(thread + 1);
                    attend(&keys[part.clone()], &values[part], group, &mut scores, &mut out);
                }
            }
            black_box(&out);
        });
        println!("{name:>5}, {group} heads share keys: {best:5.1} best, {median:5.1} median");
    }
}

fn main() {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let memory = vec![1u64; 1 << 26];
    let (best, median) = rates(size_of_val(&memory[..]), threads, |thread| {
        let at = |thread: usize| memory.len() * thread / threads;
        let sum = memory[at(thread)..at(thread + 1)].iter().fold(0u64, |sum, x| sum.wrapping_add(*x));
        black_box(sum);
    });
    println!("GB/s on {threads} threads\nsweep: {best:.1} best, {median:.1} median");
    measure("f32", 1f32, threads);
    measure("bf16", bf16::ONE, threads);
    measure("f16", f16::ONE, threads);
}
