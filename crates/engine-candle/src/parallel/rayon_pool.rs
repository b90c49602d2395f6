//! What candle before 0.11 computes on, in decode as in prefill: rayon's global pool.

use rayon::prelude::*;

pub(super) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Calls `f` with each number below that of the threads.
pub(super) fn on_each(f: impl Fn(usize) + Send + Sync) {
    (0..threads()).into_par_iter().with_max_len(1).for_each(f);
}
