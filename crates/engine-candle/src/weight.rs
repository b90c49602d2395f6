//! A weight matrix in the form that candle multiplies, and its kernels.

use std::ops::Range;

use bundle::Precision;
use candle_core::quantized::{GgmlDType, GgmlType, k_quants};
use candle_core::{DType, Device, Result, Tensor, WithDType, bail};
use half::{bf16, f16};

use crate::blocks::{Blocks, takes_row_by_blocks};
use crate::elements::{with_elements, with_f32};

/// candle's kernels for multiplying rows by a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// [`Weight::row_by_row_into`]
    RowByRow,
    /// `Tensor::matmul` of the weight and the transposed rows: gemm then packs nothing, which few rows would
    /// not repay.
    WeightFirst,
    /// `Tensor::matmul` of the rows and the weight, which gemm packs and blocks for the cache.
    RowsFirst,
}

/// `[out, in]`, held once. Clones share it.
#[derive(Debug, Clone)]
pub(crate) enum Weight {
    /// Elements of f32, bf16 or f16.
    Plain(Tensor),
    /// Elements of bf16 or f16, converted to f32 for every product.
    Converted(Tensor),
    /// Blocks of integers with their scales.
    Blocks(Blocks),
}

impl Weight {
    /// Outputs and inputs.
    pub(crate) fn dims(&self) -> Result<(usize, usize)> {
        match self {
            Weight::Plain(weight) | Weight::Converted(weight) => weight.dims2(),
            Weight::Blocks(weight) => weight.dims(),
        }
    }

    /// The precision of the elements in memory.
    pub(crate) fn precision(&self) -> Precision {
        match self {
            Weight::Plain(weight) | Weight::Converted(weight) => match weight.dtype() {
                DType::BF16 => Precision::Bf16,
                DType::F16 => Precision::F16,
                _ => Precision::F32,
            },
            Weight::Blocks(weight) => weight.precision(),
        }
    }

    pub(crate) fn is_repacked(&self) -> bool {
        matches!(self, Weight::Blocks(weight) if weight.is_repacked())
    }

    pub(crate) fn is_converted(&self) -> bool {
        matches!(self, Weight::Converted(_))
    }

    /// The fastest of candle's kernels for `rows` rows, as measured on SmolLM2-135M's shapes with two threads
    /// (`cargo bench --package engine-candle --bench products`).
    pub(crate) fn kernel(&self, rows: usize) -> Kernel {
        let [weight_first, rows_first] = self.limits();
        match rows {
            rows if rows >= rows_first => Kernel::RowsFirst,
            rows if rows >= weight_first => Kernel::WeightFirst,
            _ => Kernel::RowByRow,
        }
    }

    /// The least rows for [`Kernel::WeightFirst`] and for [`Kernel::RowsFirst`].
    fn limits(&self) -> [usize; 2] {
        let of_f32 = [5, 33];
        match self {
            Weight::Plain(weight) => match weight.dtype() {
                DType::BF16 => [6, 33],
                DType::F16 => [8, 33],
                _ => of_f32,
            },
            Weight::Converted(_) => of_f32,
            Weight::Blocks(weight) if weight.is_repacked() => [usize::MAX; 2],
            Weight::Blocks(weight) if weight.dtypes() == [GgmlDType::Q8_0] => [14, 33],
            Weight::Blocks(_) => [10, 33],
        }
    }

    /// `[rows, in]` → `[rows, out]`, row by row, by candle's kernel for quantised products, which accepts
    /// plain elements as well. One of the pool's threads reads each weight row once, in order.
    /// `Tensor::matmul` would compute a matrix–vector product on one thread.
    pub(crate) fn row_by_row_into(&self, x: &Tensor, y: &mut [f32]) -> Result<()> {
        match self {
            Weight::Plain(weight) => match weight.dtype() {
                DType::F32 => row_by_row::<f32>(weight, x, y),
                DType::BF16 => row_by_row::<bf16>(weight, x, y),
                DType::F16 => row_by_row::<f16>(weight, x, y),
                other => bail!("no product with weights of type {other:?}"),
            },
            // On one thread, as in users' code.
            Weight::Converted(weight) => row_by_row::<f32>(&weight.to_dtype(DType::F32)?, x, y),
            Weight::Blocks(weight) => with_f32(&weight.product(x)?, |product| y.copy_from_slice(product)),
        }
    }

    /// These rows in f32.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Result<Tensor> {
        if let Weight::Plain(weight) = self
            && weight.dtype() == DType::F32
        {
            return weight.narrow(0, rows.start, rows.len());
        }
        let shape = (rows.len(), self.dims()?.1);
        let mut wide = vec![0.0; shape.0 * shape.1];
        self.copy_rows(rows.start, &mut wide)?;
        Tensor::from_vec(wide, shape, &Device::Cpu)
    }

    /// The rows from `first`, as many as fit into `out`, in f32.
    pub(crate) fn copy_rows(&self, first: usize, out: &mut [f32]) -> Result<()> {
        let weight = match self {
            Weight::Plain(weight) | Weight::Converted(weight) => weight,
            Weight::Blocks(weight) => return weight.dequantise(first, out),
        };
        match weight.dtype() {
            DType::F32 => copy_rows::<f32>(weight, first, out),
            DType::BF16 => copy_rows::<bf16>(weight, first, out),
            DType::F16 => copy_rows::<f16>(weight, first, out),
            other => bail!("no weights of type {other:?}"),
        }
    }

    /// The kernels of products with this weight, human-readable.
    pub(crate) fn kernels(&self) -> Vec<String> {
        let [rows, _] = self.limits();
        match self {
            Weight::Converted(weight) => vec![
                format!(
                    "candle Tensor::to_dtype of {:?} weights to f32 before every product",
                    weight.dtype()
                ),
                format!("candle k_quants::matmul below {rows} rows"),
                format!("candle Tensor::matmul (gemm) from {rows} rows"),
            ],
            Weight::Plain(weight) => {
                let widened = if weight.dtype() == DType::F32 { "" } else { " on weights widened to f32" };
                vec![
                    format!("candle k_quants::matmul below {rows} rows"),
                    format!("candle Tensor::matmul (gemm){widened} from {rows} rows"),
                ]
            }
            Weight::Blocks(weight) => {
                let of_type = |dtype: GgmlDType| {
                    let group = if weight.is_repacked() { 256 } else { dtype.block_size() };
                    let (kernel, up_to) = match weight.is_repacked() {
                        true if takes_row_by_blocks(dtype) => {
                            ("k_quants::matmul for one row, QMatMul on repacked ", String::new())
                        }
                        true => ("QMatMul on repacked ", String::new()),
                        false => ("QMatMul on ", format!(" below {rows} rows")),
                    };
                    format!(
                        "candle {kernel}{dtype:?}{up_to}, activations in int8, a scale to {group} of them"
                    )
                };
                let products = weight.dtypes().into_iter().map(of_type);
                let widened = (!weight.is_repacked()).then(|| {
                    let by = weight.dequantises();
                    format!(
                        "candle Tensor::matmul (gemm) on weights dequantised to f32 by {by} from {rows} rows"
                    )
                });
                products.chain(widened).collect()
            }
        }
    }
}

/// How the linear layers hold their weights and which kernels they use, read from the loaded weights.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) precision: Precision,
    pub(crate) weights: usize,
    /// How many of the weights are held a second time, in the layout of candle's faster kernels.
    pub(crate) repacked: usize,
    /// Whether weights are converted for every product.
    pub(crate) converted: bool,
    /// Human-readable.
    pub(crate) kernels: Vec<String>,
}

impl Held {
    /// `weights`: those of all linear layers, at least one.
    pub(crate) fn new(weights: &[&Weight]) -> Held {
        let mut kernels: Vec<String> = weights.iter().flat_map(|weight| weight.kernels()).collect();
        kernels.sort();
        kernels.dedup();
        Held {
            precision: weights.first().map_or(Precision::F32, |weight| weight.precision()),
            weights: weights.len(),
            repacked: weights.iter().filter(|weight| weight.is_repacked()).count(),
            converted: weights.iter().any(|weight| weight.is_converted()),
            kernels,
        }
    }
}

fn row_by_row<T: GgmlType + WithDType>(weight: &Tensor, x: &Tensor, y: &mut [f32]) -> Result<()> {
    let (out, input) = weight.dims2()?;
    let rows = x.dim(0)?;
    with_elements::<T, _>(weight, |weight| {
        with_f32(x, |x| k_quants::matmul((rows, input, out), x, weight, y))
    })???;
    Ok(())
}

fn copy_rows<T: GgmlType + WithDType>(matrix: &Tensor, first: usize, out: &mut [f32]) -> Result<()> {
    let start = first * matrix.dim(1)?;
    with_elements::<T, _>(matrix, |elements| T::to_float(&elements[start..start + out.len()], out))
}
