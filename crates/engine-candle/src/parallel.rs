//! The thread pool that candle's row-by-row kernels compute on, for all that the engine computes.
//!
//! Its threads spin for a while between the parallel regions of a step, of which there are some 150: waking a sleeping
//! thread for each would cost more than it saves. `Tensor::matmul` has threads of its own: it divides each product over
//! rayon's pool, which wakes them twice for a product and packs operands on one. So candle multiplies on the
//! calling thread alone, and every thread of the pool calls it for a part of the weight.

// candle has its barrier pool since 0.11.
#[cfg_attr(feature = "before-0-11", path = "parallel/rayon_pool.rs")]
mod pool;

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use candle_core::Result;

/// Below this many elements, reaching the other threads costs more than they save.
const LEAST_ELEMENTS: usize = 1 << 15;
/// Jobs for each thread, of which the last may be one that others wait for.
const JOBS: usize = 4;

thread_local! {
    /// Whether this thread computes a job. The pool would wait for itself if the job came back to it.
    static COMPUTES: Cell<bool> = const { Cell::new(false) };
}

/// Asks for `threads`; 0 leaves them as many as candle takes unasked. The pool is made once in a process and keeps the
/// number it was made with: [`threads`] returns it. `Tensor::matmul` computes on the calling thread from then on, or on
/// all threads if `divides` says so.
pub(crate) fn request_threads(threads: usize, divides: bool) {
    if threads > 0 {
        set("CANDLE_NUM_THREADS", threads);
        set("RAYON_NUM_THREADS", threads);
        // Layers are read on rayon's pool. This fails where the pool exists already.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    }
    // Both pools are made before `Tensor::matmul` is limited by the variable that sets their number, too.
    let _ = (pool::threads(), rayon::current_num_threads());
    if !divides {
        set("RAYON_NUM_THREADS", 1);
    }
}

/// candle has no other way to be told, and asks the environment again for every `matmul`.
fn set(variable: &str, number: usize) {
    let wanted = number.to_string();
    if std::env::var(variable).as_deref() != Ok(&wanted) {
        // SAFETY: std guards its own accesses to the environment with a lock, and nothing in this
        // process reads it by other means: candle, rayon and the worker are Rust throughout.
        #[allow(unsafe_code)]
        unsafe {
            std::env::set_var(variable, wanted);
        }
    }
}

/// Threads of the pool, the calling one included.
pub(crate) fn threads() -> usize {
    pool::threads()
}

/// Threads that `Tensor::matmul` divides a product over.
pub(crate) fn threads_of_matmul() -> usize {
    candle_core::utils::get_num_threads().min(rayon::current_num_threads())
}

/// Calls `f` with each of `jobs`, begun in their order, on whichever thread is free. Jobs of a job run one after the other
/// on its thread.
pub(crate) fn for_each<T: Send>(jobs: Vec<T>, f: impl Fn(T) + Sync) {
    if jobs.len() < 2 || COMPUTES.get() {
        return jobs.into_iter().for_each(f);
    }
    let jobs = Mutex::new(jobs.into_iter());
    let next = || lock(&jobs).next();
    pool::on_each(|_| {
        COMPUTES.set(true);
        while let Some(job) = next() {
            f(job);
        }
        COMPUTES.set(false);
    });
}

/// As [`for_each`]. The first error is returned, after all jobs.
pub(crate) fn try_for_each<T: Send>(jobs: Vec<T>, f: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let failure = Mutex::new(None);
    for_each(jobs, |job| {
        if let Err(error) = f(job) {
            lock(&failure).get_or_insert(error);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Calls `f` with the index and the elements of each chunk of `width` (the last may be shorter), on all threads where
/// there is enough to do.
pub(crate) fn for_each_chunk(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Send + Sync) {
    let part = if out.len() < LEAST_ELEMENTS {
        usize::MAX
    } else {
        out.len().div_ceil(width).div_ceil(JOBS * threads())
    };
    let parts = out.chunks_mut(width.saturating_mul(part)).enumerate().collect();
    for_each(parts, |(index, out): (usize, &mut [f32])| {
        for (chunk, out) in out.chunks_mut(width).enumerate() {
            f(index * part + chunk, out);
        }
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use candle_core::bail;

    use super::*;

    #[test]
    fn a_job_may_have_jobs_and_the_first_error_is_returned() {
        let done = Mutex::new(Vec::new());
        for_each((0..9).collect(), |outer| {
            for_each((0..3).collect(), |inner| lock(&done).push(3 * outer + inner));
        });
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..27).collect::<Vec<_>>());
        let even = |job: i32| if job % 2 == 0 { Ok(()) } else { bail!("odd") };
        assert!(try_for_each(vec![0, 2, 4], even).is_ok());
        assert!(try_for_each(vec![0, 1, 2], even).unwrap_err().to_string().starts_with("odd"));
    }

    #[test]
    fn every_chunk_is_reached_with_its_own_index() {
        let width = 7;
        let mut out = vec![0.0; LEAST_ELEMENTS + 3];
        for_each_chunk(&mut out, width, |chunk, out| out.fill(chunk as f32));
        assert!(out.iter().enumerate().all(|(index, chunk)| *chunk == (index / width) as f32));
    }
}
