//! The products of a decoder's layers alone, by each of candle's public kernels, at few rows: where one overtakes another
//! is what `Weight::matmul_rows` says, and what they take for one row is the least that a token can take.
//!
//! ```sh
//! cargo bench --package engine-candle --bench products              # SmolLM2-135M's shapes
//! ```
//!
//! One line for each element type and number of rows: the time of all products of one pass in milliseconds, by kernel,
//! the least of several turns. Every layer has weights of its own, as in a model, so that none is in a cache.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::quantized::k_quants::{self, BlockQ4_0, BlockQ8_0};
use candle_core::quantized::{GgmlDType, GgmlType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Module, Result, Storage, Tensor};
use half::{bf16, f16};
use rayon::prelude::*;

/// Outputs and inputs: q·k·v, output, gate·up, down.
const SHAPES: [(usize, usize); 4] = [(960, 576), (576, 576), (3072, 576), (576, 1536)];
const LAYERS: usize = 30;
const ROWS: [usize; 12] = [1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64];
const TURNS: usize = 5;

/// Weights of every layer as candle's kernels take them.
struct Weights<T> {
    blocks: Vec<Vec<T>>,
    /// The same as one tensor each, where candle has a product for that.
    tensors: Vec<QMatMul>,
}

impl<T: GgmlType + Send + Sync> Weights<T> {
    fn new(dtype: GgmlDType) -> Result<Weights<T>> {
        let shapes = || (0..LAYERS).flat_map(|_| SHAPES);
        let blocks = |(outputs, inputs): (usize, usize)| vec![T::zeros(); outputs * inputs / T::BLCK_SIZE];
        let tensor = |(outputs, inputs): (usize, usize)| {
            let bytes = vec![0; outputs * inputs / dtype.block_size() * dtype.type_size()];
            let storage = QStorage::from_data(Cow::Owned(bytes), &Device::Cpu, dtype)?;
            Ok(QMatMul::QTensor(Arc::new(QTensor::new(storage, (outputs, inputs))?)))
        };
        let tensors =
            if T::BLCK_SIZE == 1 { Vec::new() } else { shapes().map(tensor).collect::<Result<_>>()? };
        Ok(Weights { blocks: shapes().map(blocks).collect(), tensors })
    }

    /// Each weight row read once, in order, and multiplied by every row of `x`.
    fn by_row(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        if let Some(weight) = self.tensors.get(index) {
            return weight.forward(x);
        }
        let (outputs, inputs) = SHAPES[index % SHAPES.len()];
        let rows = x.dim(0)?;
        let mut y = vec![0.0; rows * outputs];
        let (x, _) = x.storage_and_layout();
        let Storage::Cpu(x) = &*x else { unreachable!("all is in main memory") };
        k_quants::matmul((rows, inputs, outputs), x.as_slice::<f32>()?, &self.blocks[index], &mut y)?;
        Tensor::from_vec(y, (rows, outputs), &Device::Cpu)
    }

    /// The weight in f32, on all threads, as the engine widens it.
    fn wide(&self, index: usize) -> Result<Tensor> {
        let (outputs, inputs) = SHAPES[index % SHAPES.len()];
        let mut wide = vec![0.0; outputs * inputs];
        let blocks = self.blocks[index].par_chunks(inputs / T::BLCK_SIZE);
        wide.par_chunks_mut(inputs).zip(blocks).for_each(|(wide, blocks)| T::to_float(blocks, wide));
        Tensor::from_vec(wide, (outputs, inputs), &Device::Cpu)
    }
}

/// A product with the weight of this number.
type Kernel<'a> = &'a dyn Fn(usize, &Tensor) -> Result<Tensor>;

/// The least time of a pass by each kernel. They take turns, so that a slow moment is slow for all.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the time")]
fn pass(rows: usize, kernels: &[Kernel<'_>]) -> Result<Vec<Duration>> {
    let input = |&(_, inputs): &(usize, usize)| Tensor::rand(-1f32, 1f32, (rows, inputs), &Device::Cpu);
    let inputs = SHAPES.iter().map(input).collect::<Result<Vec<Tensor>>>()?;
    let mut least = vec![Duration::MAX; kernels.len()];
    for _ in 0..TURNS {
        for (kernel, least) in kernels.iter().zip(&mut least) {
            let start = Instant::now();
            for index in 0..LAYERS * SHAPES.len() {
                std::hint::black_box(kernel(index, &inputs[index % SHAPES.len()])?);
            }
            *least = start.elapsed().min(*least);
        }
    }
    Ok(least)
}

fn measure<T: GgmlType + Send + Sync>(dtype: GgmlDType) -> Result<()> {
    let weights = Weights::<T>::new(dtype)?;
    println!("{:>6} {:>5} {:>9} {:>9} {:>9}", "", "rows", "by row", "x·Wᵀ", "(W·xᵀ)ᵀ");
    for rows in ROWS {
        // Of f32 the widening is no more than a view in the engine, and is not timed here either.
        let held =
            (dtype == GgmlDType::F32).then(|| (0..weights.blocks.len()).map(|i| weights.wide(i)).collect());
        let held: Option<Vec<Tensor>> = held.transpose()?;
        let wide = |index: usize| match &held {
            Some(held) => Ok(held[index].clone()),
            None => weights.wide(index),
        };
        let times = pass(
            rows,
            &[&|index, x| weights.by_row(index, x), &|index, x| x.matmul(&wide(index)?.t()?), &|index, x| {
                wide(index)?.matmul(&x.t()?)?.t()?.contiguous()
            }],
        )?;
        let times: Vec<_> = times.iter().map(|time| format!("{:9.2}", 1e3 * time.as_secs_f64())).collect();
        println!("{:>6} {rows:5} {}", format!("{dtype:?}"), times.join(" "));
    }
    Ok(())
}

fn main() -> Result<()> {
    // `cargo test` runs benches, too: nothing is tested here.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    measure::<f32>(GgmlDType::F32)?;
    measure::<bf16>(GgmlDType::BF16)?;
    measure::<f16>(GgmlDType::F16)?;
    measure::<BlockQ8_0>(GgmlDType::Q8_0)?;
    measure::<BlockQ4_0>(GgmlDType::Q4_0)
}
