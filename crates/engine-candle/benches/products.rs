//! The products of a decoder's layers alone, by each of candle's public kernels, at few rows: where one overtakes another
//! is what `Weight::matmul_rows` says, and what they take for one row is the least that a token can take.
//!
//! ```sh
//! cargo bench --package engine-candle --bench products              # SmolLM2-135M's shapes
//! ```
//!
//! One line for each element type and number of rows: the time of all products of one pass in milliseconds, by kernel,
//! the least of several turns. Every layer has weights of its own, as in a model, so that none lies in a cache.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::quantized::{GgmlDType, GgmlType, QMatMul, QStorage, QTensor, k_quants};
use candle_core::{DType, Device, Module, Result, Storage, Tensor};
use half::{bf16, f16};

/// Outputs and inputs: q·k·v, output, gate·up, down.
const SHAPES: [(usize, usize); 4] = [(960, 576), (576, 576), (3072, 576), (576, 1536)];
const LAYERS: usize = 30;
const ROWS: [usize; 12] = [1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64];
const TURNS: usize = 5;

/// One number for each weight of each layer.
fn weights(dtype: DType) -> Result<Vec<Tensor>> {
    let one = |(outputs, inputs): (usize, usize)| {
        Tensor::rand(-1f32, 1f32, (outputs, inputs), &Device::Cpu)?.to_dtype(dtype)
    };
    (0..LAYERS).flat_map(|_| SHAPES).map(one).collect()
}

fn row_by_row<T: GgmlType + candle_core::WithDType>(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let ((rows, inputs), outputs) = (x.dims2()?, weight.dim(0)?);
    let mut y = vec![0.0; rows * outputs];
    let (x, _) = x.storage_and_layout();
    let (weight, _) = weight.storage_and_layout();
    if let (Storage::Cpu(x), Storage::Cpu(weight)) = (&*x, &*weight) {
        k_quants::matmul((rows, inputs, outputs), x.as_slice::<f32>()?, weight.as_slice::<T>()?, &mut y)?;
    }
    Tensor::from_vec(y, (rows, outputs), &Device::Cpu)
}

/// Activations for each shape.
fn inputs(rows: usize) -> Result<Vec<Tensor>> {
    SHAPES.iter().map(|&(_, inputs)| Tensor::rand(-1f32, 1f32, (rows, inputs), &Device::Cpu)).collect()
}

/// The least time of a pass by each kernel. They take turns, so that a slow moment is slow for all.
fn pass(
    rows: usize,
    count: usize,
    kernels: &[&dyn Fn(usize, &Tensor) -> Result<Tensor>],
) -> Result<Vec<Duration>> {
    let inputs = inputs(rows)?;
    let mut least = vec![Duration::MAX; kernels.len()];
    for _ in 0..TURNS {
        for (kernel, least) in kernels.iter().zip(&mut least) {
            let start = Instant::now();
            for index in 0..count {
                std::hint::black_box(kernel(index, &inputs[index % SHAPES.len()])?);
            }
            *least = start.elapsed().min(*least);
        }
    }
    Ok(least)
}

fn say(dtype: &str, rows: usize, times: &[Duration]) {
    let times: Vec<_> = times.iter().map(|time| format!("{:9.2}", 1e3 * time.as_secs_f64())).collect();
    println!("{dtype:>6} {rows:5} {}", times.join(" "));
}

fn plain<T: GgmlType + candle_core::WithDType>(dtype: DType) -> Result<()> {
    let weights = weights(dtype)?;
    println!("{:>6} {:>5} {:>9} {:>9} {:>9}", "", "rows", "by row", "x·Wᵀ", "(W·xᵀ)ᵀ");
    let wide = |index: usize| weights[index].to_dtype(DType::F32);
    for rows in ROWS {
        let times = pass(
            rows,
            weights.len(),
            &[
                &|index, x| row_by_row::<T>(x, &weights[index]),
                &|index, x| x.matmul(&wide(index)?.t()?),
                &|index, x| wide(index)?.matmul(&x.t()?)?.t()?.contiguous(),
            ],
        )?;
        say(dtype.as_str(), rows, &times);
    }
    Ok(())
}

/// Blocks of any bytes: what they mean does not matter to the time.
fn blocks(dtype: GgmlDType) -> Result<()> {
    let weight = |(outputs, inputs): (usize, usize)| {
        let bytes = vec![0x11; outputs * inputs / dtype.block_size() * dtype.type_size()];
        let storage = QStorage::from_data(Cow::Owned(bytes), &Device::Cpu, dtype)?;
        Ok(Arc::new(QTensor::new(storage, (outputs, inputs))?))
    };
    let weights: Vec<_> = (0..LAYERS).flat_map(|_| SHAPES).map(weight).collect::<Result<_>>()?;
    println!("{:>6} {:>5} {:>9} {:>9}", "", "rows", "QMatMul", "widened");
    for rows in ROWS {
        let times = pass(
            rows,
            weights.len(),
            &[&|index, x| QMatMul::QTensor(weights[index].clone()).forward(x), &|index, x| {
                x.matmul(&weights[index].dequantize(&Device::Cpu)?.t()?)
            }],
        )?;
        say(&format!("{dtype:?}"), rows, &times);
    }
    Ok(())
}

fn main() -> Result<()> {
    // `cargo test` runs benches, too: nothing is tested here.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    plain::<f32>(DType::F32)?;
    plain::<bf16>(DType::BF16)?;
    plain::<f16>(DType::F16)?;
    blocks(GgmlDType::Q8_0)?;
    blocks(GgmlDType::Q4_0)
}
