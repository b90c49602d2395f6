//! candle's barrier pool.

use candle_core::utils::barrier_pool;

/// Threads of the pool, including the calling thread.
pub(super) fn threads() -> usize {
    barrier_pool().n_workers() + 1
}

/// Calls `f` on each thread, with its number.
pub(super) fn on_each(f: impl Fn(usize) + Send + Sync) {
    barrier_pool().execute(f);
}
