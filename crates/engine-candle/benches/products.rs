//! The products of a decoder's layers, with each of the engine's kernels, at few rows. `Weight::limits` has
//! the row counts where one kernel overtakes another. The time for one row is a lower bound on the time of a
//! token.
//!
//! ```sh
//! CANDLE_NUM_THREADS=2 RAYON_NUM_THREADS=1 cargo bench --package engine-candle --bench products  # SmolLM2-135M's shapes
//! ```
//!
//! One line per element type and number of rows: milliseconds for all products of one pass, by kernel, the
//! least of several turns. Every layer has its own weights, as in a model, so that none is in a cache.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use candle_core::quantized::k_quants::{self, BlockQ4_0, BlockQ8_0};
use candle_core::quantized::{GgmlDType, GgmlType, QMatMul, QStorage, QTensor};
use candle_core::utils::barrier_pool;
use candle_core::{Device, Module, Result, Storage, Tensor};
use half::{bf16, f16};

/// Outputs and inputs: q·k·v, output, gate·up, down.
const SHAPES: [(usize, usize); 4] = [(960, 576), (576, 576), (3072, 576), (576, 1536)];
const LAYERS: usize = 30;
const ROWS: [usize; 12] = [1, 2, 4, 6, 8, 12, 16, 18, 20, 24, 32, 64];
const TURNS: usize = 5;
/// Outputs that a thread computes at a time, with the rows first and with the weight first.
const PIECES: [usize; 2] = [96, 48];

/// The weights of every layer, in the forms that candle's kernels need.
struct Weights<T> {
    blocks: Vec<Vec<T>>,
    /// The same weights as one tensor each, where candle has a product for the type.
    tensors: Vec<QMatMul>,
    /// The same weights as tensors of f32, if that is their type.
    plain: Vec<Tensor>,
}

impl<T: GgmlType + Send + Sync> Weights<T> {
    fn new(dtype: GgmlDType) -> Result<Weights<T>> {
        let shapes = || (0..LAYERS).flat_map(|_| SHAPES);
        // Memory that was never written is one page of zeros, which would stay in a cache.
        let numbers = |count: usize| -> Vec<f32> { (0..count).map(|i| (i % 251) as f32 - 125.0).collect() };
        let blocks = |(outputs, inputs): (usize, usize)| {
            let mut blocks = vec![T::zeros(); outputs * inputs / T::BLCK_SIZE];
            T::from_float(&numbers(outputs * inputs), &mut blocks);
            blocks
        };
        let tensor = |(outputs, inputs): (usize, usize)| {
            let bytes = vec![17; outputs * inputs / dtype.block_size() * dtype.type_size()];
            let storage = QStorage::from_data(Cow::Owned(bytes), &Device::Cpu, dtype)?;
            Ok(QMatMul::QTensor(Arc::new(QTensor::new(storage, (outputs, inputs))?)))
        };
        let plain = |shape: (usize, usize)| Tensor::from_vec(numbers(shape.0 * shape.1), shape, &Device::Cpu);
        let is_f32 = dtype == GgmlDType::F32;
        Ok(Weights {
            blocks: shapes().map(blocks).collect(),
            tensors: if T::BLCK_SIZE == 1 {
                Vec::new()
            } else {
                shapes().map(tensor).collect::<Result<_>>()?
            },
            plain: if is_f32 { shapes().map(plain).collect::<Result<_>>()? } else { Vec::new() },
        })
    }

    /// Reads each weight row once, in order, and multiplies it by every row of `x`.
    fn by_row(&self, index: usize, x: &Tensor) -> Result<()> {
        if let Some(weight) = self.tensors.get(index) {
            std::hint::black_box(weight.forward(x)?);
            return Ok(());
        }
        let (outputs, inputs) = SHAPES[index % SHAPES.len()];
        let rows = x.dim(0)?;
        let mut y = vec![0.0; rows * outputs];
        let (x, _) = x.storage_and_layout();
        let Storage::Cpu(x) = &*x else { unreachable!("all is in main memory") };
        k_quants::matmul((rows, inputs, outputs), x.as_slice::<f32>()?, &self.blocks[index], &mut y)?;
        std::hint::black_box(y);
        Ok(())
    }

    /// `Tensor::matmul` on every thread, for `outputs` outputs at a time. Copying the products into place is
    /// not timed.
    fn by_piece(&self, index: usize, outputs: usize, multiply: impl Fn(&Tensor) -> Result<Tensor> + Sync) {
        let (out, inputs) = SHAPES[index % SHAPES.len()];
        let next = AtomicUsize::new(0);
        barrier_pool().execute(|_| {
            loop {
                let start = next.fetch_add(outputs, Ordering::Relaxed);
                if start >= out {
                    break;
                }
                let count = outputs.min(out - start);
                let weight = match self.plain.get(index) {
                    Some(weight) => weight.narrow(0, start, count).expect("the rows are there"),
                    None => {
                        let mut wide = vec![0.0; count * inputs];
                        let from = &self.blocks[index][start * inputs / T::BLCK_SIZE..];
                        T::to_float(&from[..wide.len() / T::BLCK_SIZE], &mut wide);
                        Tensor::from_vec(wide, (count, inputs), &Device::Cpu).expect("the numbers fit")
                    }
                };
                std::hint::black_box(multiply(&weight).expect("the shapes fit"));
            }
        });
    }
}

/// A product with the weight at this index.
type Kernel<'a> = &'a dyn Fn(usize, &Tensor) -> Result<()>;

/// The least time of a pass with each kernel. The kernels take turns, so that a slow moment affects all of
/// them.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the time")]
fn pass(rows: usize, kernels: &[Kernel<'_>]) -> Result<Vec<Duration>> {
    let input = |&(_, inputs): &(usize, usize)| Tensor::rand(-1f32, 1f32, (rows, inputs), &Device::Cpu);
    let inputs = SHAPES.iter().map(input).collect::<Result<Vec<Tensor>>>()?;
    let mut least = vec![Duration::MAX; kernels.len()];
    for _ in 0..TURNS {
        for (kernel, least) in kernels.iter().zip(&mut least) {
            let start = Instant::now();
            for index in 0..LAYERS * SHAPES.len() {
                kernel(index, &inputs[index % SHAPES.len()])?;
            }
            *least = start.elapsed().min(*least);
        }
    }
    Ok(least)
}

fn measure<T: GgmlType + Send + Sync>(dtype: GgmlDType) -> Result<()> {
    let weights = Weights::<T>::new(dtype)?;
    println!("{:>6} {:>5} {:>9} {:>9} {:>9}", "", "rows", "by row", "x·Wᵀ", "W·xᵀ");
    for rows in ROWS {
        let times = pass(
            rows,
            &[
                &|index, x| weights.by_row(index, x),
                &|index, x| {
                    weights.by_piece(index, PIECES[0], |weight| x.matmul(&weight.t()?));
                    Ok(())
                },
                &|index, x| {
                    let filled =
                        x.pad_with_zeros(0, 0, rows.next_multiple_of(8) - rows)?.t()?.contiguous()?;
                    weights.by_piece(index, PIECES[1], |weight| weight.matmul(&filled));
                    Ok(())
                },
            ],
        )?;
        let times: Vec<_> = times.iter().map(|time| format!("{:9.2}", 1e3 * time.as_secs_f64())).collect();
        println!("{:>6} {rows:5} {}", format!("{dtype:?}"), times.join(" "));
    }
    Ok(())
}

fn main() -> Result<()> {
    // `cargo test` runs benches too, and there is nothing to test here.
    if std::env::args_os().any(|argument| argument == "--test") {
        return Ok(());
    }
    measure::<f32>(GgmlDType::F32)?;
    measure::<bf16>(GgmlDType::BF16)?;
    measure::<f16>(GgmlDType::F16)?;
    measure::<BlockQ8_0>(GgmlDType::Q8_0)?;
    measure::<BlockQ4_0>(GgmlDType::Q4_0)
}
