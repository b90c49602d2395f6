//! The two thread pools that candle itself computes on, for the glue between its products.
//!
//! Decode runs on candle's barrier pool, whose threads spin between the products of a step: a step has
//! some 150 parallel regions, and waking a sleeping thread for each would cost more than it saves.
//! Prefill runs on rayon's global pool, as candle's `matmul` does: spinning threads would take cores
//! from it.

// candle has its barrier pool since 0.11.
#[cfg_attr(feature = "before-0-11", path = "parallel/rayon_pool.rs")]
mod pool;

use std::sync::Mutex;

use rayon::prelude::*;

/// Below this many elements, waking rayon's threads costs more than they save.
const RAYON_ELEMENTS: usize = 1 << 15;

/// Asks both pools for `threads`; 0 leaves them as many as candle and rayon take unasked. Each is made once in a process, on first use, and keeps the number it
/// was made with: [`decode_threads`] and [`prefill_threads`] tell it.
pub(crate) fn request_threads(threads: usize) {
    if threads == 0 {
        return;
    }
    // candle has no other way to be told, and asks the environment again for every `matmul`.
    for variable in ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"] {
        let wanted = threads.to_string();
        if std::env::var(variable).as_deref() != Ok(&wanted) {
            // SAFETY: std guards its own accesses to the environment with a lock, and nothing in this
            // process reads it by other means: candle, rayon and the worker are Rust throughout.
            #[allow(unsafe_code)]
            unsafe {
                std::env::set_var(variable, wanted);
            }
        }
    }
    // Fails where the pool exists already.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
}

/// Calls `f` with the index and the elements of each chunk of `width` (the last may be shorter), on
/// rayon's pool where there is enough to do.
pub(crate) fn for_each_chunk(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Send + Sync) {
    if out.len() < RAYON_ELEMENTS {
        out.chunks_mut(width).enumerate().for_each(|(index, chunk)| f(index, chunk));
    } else {
        out.par_chunks_mut(width).enumerate().for_each(|(index, chunk)| f(index, chunk));
    }
}

/// Threads of the pool that decode runs on, the calling one included.
pub(crate) fn decode_threads() -> usize {
    pool::threads()
}

/// Threads that candle's `matmul` computes on: it cuts the product into as many pieces as candle has
/// threads, and runs them on rayon's pool.
pub(crate) fn prefill_threads() -> usize {
    candle_core::utils::get_num_threads().min(rayon::current_num_threads())
}

/// Calls `f` with each of `shares`, of which there are at most [`decode_threads`], each on a thread
/// of its own. `f` must not come back to the pool, which would wait for itself.
pub(crate) fn for_each_share<T: Send>(shares: Vec<T>, f: impl Fn(T) + Sync) {
    debug_assert!(shares.len() <= decode_threads());
    let shares: Vec<_> = shares.into_iter().map(|share| Mutex::new(Some(share))).collect();
    pool::on_each(|thread| {
        let share = shares.get(thread).and_then(|share| share.lock().ok()?.take());
        if let Some(share) = share {
            f(share);
        }
    });
}
