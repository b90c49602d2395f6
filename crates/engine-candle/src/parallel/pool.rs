//! candle's barrier pool.

use std::cell::OnceCell;

use candle_core::utils::barrier_pool;

thread_local! {
    /// A pool of rayon's with this thread alone.
    static ALONE: OnceCell<Option<rayon::ThreadPool>> = const { OnceCell::new() };
}

/// Threads of the pool, including the calling thread.
pub(super) fn threads() -> usize {
    barrier_pool().n_workers() + 1
}

/// Calls `f` on each thread, with its number.
pub(super) fn on_each(f: impl Fn(usize) + Send + Sync) {
    barrier_pool().execute(|thread| {
        compute_here();
        f(thread);
    });
}

/// Makes rayon run what this thread gives it on this thread. It fails on a thread of another pool of rayon's.
pub(super) fn compute_here() {
    let alone = || rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().ok();
    ALONE.with(|pool| {
        pool.get_or_init(alone);
    });
}
