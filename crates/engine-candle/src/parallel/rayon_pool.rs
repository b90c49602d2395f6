//! rayon's global pool, which candle before 0.11 uses in decode as well as in prefill.

use rayon::prelude::*;

pub(super) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Calls `f` with every number below [`threads`]; rayon may run several of the calls on one thread.
pub(super) fn on_each(f: impl Fn(usize) + Send + Sync) {
    (0..threads()).into_par_iter().with_max_len(1).for_each(f);
}

/// The pool is rayon's own here.
pub(super) fn compute_here() {}
