//! The thread pool of candle's row-by-row kernels, used for everything that the engine computes.
//!
//! A step has about 150 parallel regions. The threads spin for a while between them, because waking a
//! sleeping thread for each would cost more than it saves. `Tensor::matmul` divides each product over rayon's
//! pool, which wakes its threads twice per product and packs operands on one thread. So here `matmul` runs on
//! the calling thread only, and every thread of the pool calls it for a part of the weight.

// candle has had its barrier pool since 0.11.
#[cfg_attr(feature = "before-0-11", path = "parallel/rayon_pool.rs")]
mod pool;

use std::cell::Cell;
use std::hint::black_box;
use std::ops::Range;
use std::sync::{LazyLock, Mutex, PoisonError};

use candle_core::{Device, Result, Tensor};

use crate::elements::with_f32;

/// Below this many elements, reaching the other threads costs more than they save.
const LEAST_ELEMENTS: usize = 1 << 15;
/// Jobs per thread: with several, threads wait less for the last job.
const JOBS: usize = 4;
/// From this many elements candle divides an elementwise operation over its pool.
const DIVIDED: usize = 1 << 16;

thread_local! {
    /// Whether this thread is computing a job. A job that called the pool again would wait for itself: candle guards its
    /// own threads against that, but not the calling thread, which holds the pool's lock. So jobs call
    /// [`each_element`], and of candle only what `what_jobs_call_of_candle_ends` lists.
    static COMPUTES: Cell<bool> = const { Cell::new(false) };
}

/// Requests `threads`; 0 means candle's default. The pool is made once per process and keeps its number of
/// threads, which [`threads`] returns. From then on `Tensor::matmul` computes on the calling thread, or on
/// all threads if `divides` is set.
pub(crate) fn request_threads(threads: usize, divides: bool) {
    if threads > 0 {
        set("CANDLE_NUM_THREADS", threads);
        set("RAYON_NUM_THREADS", threads);
        // This fails if the pool already exists.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    }
    // Make both pools before limiting `Tensor::matmul`: the same variable sets the size of rayon's pool.
    let _ = (pool::threads(), rayon::current_num_threads());
    if !divides {
        set("RAYON_NUM_THREADS", 1);
    }
}

/// candle has no other interface for this; it reads the environment for every `matmul`.
fn set(variable: &str, number: usize) {
    let wanted = number.to_string();
    if std::env::var(variable).as_deref() != Ok(&wanted) {
        // SAFETY: std guards its own accesses to the environment with a lock, and candle, rayon and the worker are Rust
        // throughout. In a hybrid, libtorch and ONNX Runtime read it by other means, but on this thread alone so far:
        // candle is the first of two frameworks to load, and theirs start threads when they load or compute.
        #[allow(unsafe_code)]
        unsafe {
            std::env::set_var(variable, wanted);
        }
    }
}

/// Calls `read` where rayon has threads: those of [`compute_here`] have none to share work with.
pub(crate) fn reading<T: Send>(read: impl FnOnce() -> T + Send) -> T {
    static READERS: LazyLock<Option<rayon::ThreadPool>> =
        LazyLock::new(|| rayon::ThreadPoolBuilder::new().num_threads(threads()).build().ok());
    match &*READERS {
        Some(readers) => readers.install(read),
        None => read(),
    }
}

/// Operations of candle that share their rows among rayon's threads compute on the calling thread from now on. To wake
/// those threads took ten times as long as a softmax of 9 rows, and they would be in the way of candle's own pool.
pub(crate) fn compute_here() {
    pool::compute_here();
}

/// Threads of the pool, including the calling thread.
pub(crate) fn threads() -> usize {
    pool::threads()
}

/// Threads that `Tensor::matmul` divides a product over.
pub(crate) fn threads_of_matmul() -> usize {
    candle_core::utils::get_num_threads().min(rayon::current_num_threads())
}

// Closures are called through pointers that the compiler does not see through. So they keep names of their own, which say
// in a profile whose code computes (rule R19); built into the functions below, they would count as waiting.

/// Calls `f` with each of `jobs` on any free thread; they start in order. Jobs within a job run one after the
/// other on its thread.
pub(crate) fn for_each<T: Send>(jobs: Vec<T>, f: impl Fn(T) + Sync) {
    let f: &(dyn Fn(T) + Sync) = black_box(&f);
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

/// As [`for_each`]. Returns the first error after all jobs have run.
pub(crate) fn try_for_each<T: Send>(jobs: Vec<T>, f: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let f: &(dyn Fn(T) -> Result<()> + Sync) = black_box(&f);
    let failure = Mutex::new(None);
    for_each(jobs, |job| {
        if let Err(error) = f(job) {
            lock(&failure).get_or_insert(error);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Calls `f` with the index and the elements of each chunk of `width` (the last may be shorter), on all
/// threads if there is enough work.
pub(crate) fn for_each_chunk(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Send + Sync) {
    let f: &(dyn Fn(usize, &mut [f32]) + Sync) = black_box(&f);
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

/// The rows that `f` makes of ranges of `rows` rows, `[rows, width]`: of all at once, or of parts on all threads if there
/// is enough work.
pub(crate) fn by_rows(
    (rows, width): (usize, usize),
    f: impl Fn(Range<usize>) -> Result<Tensor> + Send + Sync,
) -> Result<Tensor> {
    let f: &(dyn Fn(Range<usize>) -> Result<Tensor> + Sync) = black_box(&f);
    if rows < 2 || rows * width < LEAST_ELEMENTS || COMPUTES.get() {
        return f(0..rows);
    }
    let part = rows.div_ceil(JOBS * threads());
    let mut out = vec![0.0; rows * width];
    try_for_each(out.chunks_mut(part * width).enumerate().collect(), |(index, out): (usize, &mut [f32])| {
        let first = index * part;
        with_f32(&f(first..first + out.len() / width)?, |made| out.copy_from_slice(made))
    })?;
    Tensor::from_vec(out, (rows, width), &Device::Cpu)
}

/// An elementwise operation of candle on tensors of one shape. Within a job it is cut into pieces that candle does not
/// divide over its pool, which is already busy with the job and would wait for it.
pub(crate) fn each_element<const N: usize>(
    inputs: [&Tensor; N],
    f: impl Fn([Tensor; N]) -> Result<Tensor>,
) -> Result<Tensor> {
    let count = inputs[0].elem_count();
    if count < DIVIDED || !COMPUTES.get() {
        return f(inputs.map(Tensor::clone));
    }
    let flat = inputs.iter().map(|input| input.flatten_all()).collect::<Result<Vec<_>>>()?;
    let pieces = (0..count).step_by(DIVIDED - 1).map(|start| {
        let piece = |input: &Tensor| input.narrow(0, start, (DIVIDED - 1).min(count - start));
        let pieces = flat.iter().map(piece).collect::<Result<Vec<_>>>()?;
        f(pieces.try_into().expect("one piece of each input"))
    });
    Tensor::cat(&pieces.collect::<Result<Vec<_>>>()?, 0)?.reshape(inputs[0].shape())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{DType, bail};
    use candle_nn::{ops, rotary_emb};

    use super::*;

    /// Set in the process that calls candle within jobs, to what it is to call.
    const CALLS: &str = "TEST_CALLS_WITHIN_JOBS";

    /// What jobs call of candle. It gets more elements than candle computes on one thread.
    fn call_within_jobs() {
        let [rows, heads, width] = [320, 4, 64];
        let x = Tensor::ones((rows, heads * width), DType::F32, &Device::Cpu).unwrap();
        let by_row = Tensor::ones(heads * width, DType::F32, &Device::Cpu).unwrap();
        let turns = Tensor::ones((rows, width / 2), DType::F32, &Device::Cpu).unwrap();
        let blocks = QTensor::quantize(&x, GgmlDType::Q8_0).unwrap();
        assert!(x.elem_count() >= DIVIDED && threads() > 1);
        let call = |name: &str, f: &(dyn Fn() -> Result<Tensor> + Sync)| {
            println!("{name}");
            // So many that the calling thread gets some, however busy the machine is.
            try_for_each(vec![(); 100], |()| f().map(drop)).unwrap();
        };
        call("each_element of one tensor", &|| each_element([&x], |[x]| x.tanh()));
        call("each_element of two", &|| each_element([&x, &by_row.broadcast_as(x.shape())?], |[x, y]| x + y));
        call("matmul", &|| x.matmul(&x.t()?));
        call("to_dtype", &|| x.to_dtype(DType::BF16)?.to_dtype(DType::F32));
        call("contiguous", &|| x.t()?.contiguous());
        call("cat", &|| Tensor::cat(&[&x, &x], 0));
        call("a product with a number", &|| &x * 0.5);
        call("dequantize", &|| blocks.dequantize(&Device::Cpu));
        call("softmax_last_dim", &|| ops::softmax_last_dim(&x));
        call("rms_norm", &|| ops::rms_norm(&x, &by_row, 1e-5));
        call("layer_norm", &|| ops::layer_norm(&x, &by_row, &by_row, 1e-5));
        call("rope_thd", &|| rotary_emb::rope_thd(&x.reshape((1, rows, heads, width))?, &turns, &turns));
        if std::env::var(CALLS).as_deref() == Ok("tanh, too") {
            call("tanh", &|| x.tanh());
        }
    }

    /// Whether a process with two threads has made its calls within `limit`, and what it printed.
    #[expect(clippy::disallowed_methods, reason = "a call that does not end is ended with its process")]
    fn calls(which: &str, limit: Duration) -> (bool, String) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["parallel::tests::what_jobs_call_of_candle_ends", "--exact", "--nocapture"])
            .envs([(CALLS, which), ("CANDLE_NUM_THREADS", "2"), ("RAYON_NUM_THREADS", "2")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pause = Duration::from_millis(20);
        for _ in 0..limit.div_duration_f64(pause) as usize {
            if child.try_wait().unwrap().is_none() {
                std::thread::sleep(pause);
            }
        }
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), said)
    }

    #[test]
    fn what_jobs_call_of_candle_ends() {
        if std::env::var_os(CALLS).is_some() {
            return call_within_jobs();
        }
        let (ended, said) = calls("all", Duration::from_secs(60));
        assert!(ended, "the last call waits for the job that makes it, so jobs must not make it:\n{said}");
        // Should this end one day, `each_element` need not cut tensors.
        let (ended, said) = calls("tanh, too", Duration::from_secs(3));
        assert!(ended == cfg!(feature = "before-0-11"), "{said}");
    }

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
