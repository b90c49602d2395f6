//! A weight matrix in the form in which candle multiplies by it.

use bundle::Precision;
use candle_core::quantized::{GgmlDType, GgmlType, k_quants};
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Storage, Tensor, WithDType, bail};
use half::{bf16, f16};

use crate::blocks::Blocks;
use crate::parallel::for_each_chunk;

/// Elements that are widened at a time.
const WIDEN_CHUNK: usize = 1 << 15;

/// One of candle's ways to multiply rows by a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// [`Weight::row_by_row`]
    RowByRow,
    /// `Tensor::matmul` of the weight and the rows, transposed: for few rows its kernel cuts that better.
    WeightFirst,
    /// `Tensor::matmul` of the rows and the weight: packed, cache-blocked.
    RowsFirst,
}

/// `[out, in]`, held once. Clones share it.
#[derive(Debug, Clone)]
pub(crate) enum Weight {
    /// Elements of f32, bf16 or f16.
    Plain(Tensor),
    /// Elements of bf16 or f16 that are converted to f32 for every product.
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

    /// The precision of the elements as they are held.
    pub(crate) fn precision(&self) -> Precision {
        match self {
            Weight::Plain(weight) | Weight::Converted(weight) => match weight.dtype() {
                DType::BF16 => Precision::Bf16,
                DType::F16 => Precision::F16,
                _ => Precision::F32,
            },
            Weight::Blocks(weight) if weight.dtype() == GgmlDType::Q8_0 => Precision::Int8,
            Weight::Blocks(_) => Precision::Int4,
        }
    }

    pub(crate) fn is_repacked(&self) -> bool {
        matches!(self, Weight::Blocks(weight) if weight.is_repacked())
    }

    pub(crate) fn is_converted(&self) -> bool {
        matches!(self, Weight::Converted(_))
    }

    /// Which of candle's kernels multiplies so many rows fastest. Measured on SmolLM2-135M's shapes with two threads
    /// (`cargo bench --package engine-candle --bench products`).
    pub(crate) fn kernel(&self, rows: usize) -> Kernel {
        let [weight_first, rows_first] = self.limits();
        match rows {
            rows if rows >= rows_first => Kernel::RowsFirst,
            rows if rows >= weight_first => Kernel::WeightFirst,
            _ => Kernel::RowByRow,
        }
    }

    /// From how many rows on the kernels of products are taken: [`Kernel::WeightFirst`], then [`Kernel::RowsFirst`].
    fn limits(&self) -> [usize; 2] {
        let of_f32 = [10, 17];
        match self {
            Weight::Plain(weight) => match weight.dtype() {
                DType::BF16 => [15, 40],
                DType::F16 => [14, 40],
                _ => of_f32,
            },
            Weight::Converted(_) => of_f32,
            Weight::Blocks(weight) if weight.is_repacked() => [usize::MAX; 2],
            Weight::Blocks(_) => [24; 2],
        }
    }

    /// `[rows, in]` → `[rows, out]`, row by row: candle's kernel behind its quantised products, which takes
    /// plain elements as well. Each weight row is read once, in order, by one of the barrier pool's threads.
    /// `Tensor::matmul` leaves a matrix–vector product to one thread.
    pub(crate) fn row_by_row(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Weight::Plain(_) | Weight::Converted(_) => {
                let shape = (x.dim(0)?, self.dims()?.0);
                let mut y = vec![0.0; shape.0 * shape.1];
                self.row_by_row_into(x, &mut y)?;
                Tensor::from_vec(y, shape, &Device::Cpu)
            }
            Weight::Blocks(weight) => weight.product(x),
        }
    }

    /// As [`Weight::row_by_row`], into memory of the caller's.
    pub(crate) fn row_by_row_into(&self, x: &Tensor, y: &mut [f32]) -> Result<()> {
        match self {
            Weight::Plain(weight) => match weight.dtype() {
                DType::F32 => row_by_row::<f32>(weight, x, y),
                DType::BF16 => row_by_row::<bf16>(weight, x, y),
                DType::F16 => row_by_row::<f16>(weight, x, y),
                other => bail!("no product with weights of type {other:?}"),
            },
            Weight::Converted(_) => row_by_row::<f32>(&self.widened()?, x, y),
            Weight::Blocks(weight) => with_f32(&weight.product(x)?, |product| y.copy_from_slice(product)),
        }
    }

    /// The weight in f32, for `Tensor::matmul`: candle has no kernel for other types, or widens likewise, on one
    /// thread.
    pub(crate) fn widened(&self) -> Result<Tensor> {
        let weight = match self {
            Weight::Plain(weight) => weight,
            // As users do it, and not by all threads.
            Weight::Converted(weight) => return weight.to_dtype(DType::F32),
            Weight::Blocks(weight) => {
                let (rows, columns) = weight.dims()?;
                let mut wide = vec![0.0; rows * columns];
                weight.dequantise(0, &mut wide)?;
                return Tensor::from_vec(wide, (rows, columns), &Device::Cpu);
            }
        };
        match weight.dtype() {
            DType::F32 => Ok(weight.clone()),
            DType::BF16 => widened::<bf16>(weight),
            DType::F16 => widened::<f16>(weight),
            other => bail!("no product with weights of type {other:?}"),
        }
    }

    /// Row `index`, in f32.
    pub(crate) fn copy_row(&self, index: usize, out: &mut [f32]) -> Result<()> {
        let weight = match self {
            Weight::Plain(weight) | Weight::Converted(weight) => weight,
            Weight::Blocks(weight) => return weight.dequantise(index, out),
        };
        match weight.dtype() {
            DType::F32 => copy_row::<f32>(weight, index, out),
            DType::BF16 => copy_row::<bf16>(weight, index, out),
            DType::F16 => copy_row::<f16>(weight, index, out),
            other => bail!("no embedding of type {other:?}"),
        }
    }

    /// The kernels that products with this weight run on, for people.
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
            Weight::Blocks(weight) if weight.is_repacked() => {
                let dtype = weight.dtype();
                vec![format!(
                    "candle QMatMul on repacked {dtype:?}, activations in int8, a scale to 256 of them"
                )]
            }
            Weight::Blocks(weight) => {
                let dtype = weight.dtype();
                vec![
                    format!(
                        "candle QMatMul on {dtype:?} below {rows} rows, activations in int8, a scale to 32 of them"
                    ),
                    format!("candle Tensor::matmul (gemm) on weights dequantised to f32 from {rows} rows"),
                ]
            }
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

fn widened<T: GgmlType + WithDType>(weight: &Tensor) -> Result<Tensor> {
    let mut wide = vec![0.0; weight.elem_count()];
    with_elements::<T, _>(weight, |weight| {
        for_each_chunk(&mut wide, WIDEN_CHUNK, |index, chunk| {
            T::to_float(&weight[index * WIDEN_CHUNK..][..chunk.len()], chunk);
        });
    })?;
    Tensor::from_vec(wide, weight.shape(), &Device::Cpu)
}

fn copy_row<T: GgmlType + WithDType>(matrix: &Tensor, index: usize, out: &mut [f32]) -> Result<()> {
    let start = index * out.len();
    with_elements::<T, _>(matrix, |elements| T::to_float(&elements[start..start + out.len()], out))
}

/// Calls `f` with the elements of a contiguous f32 tensor.
pub(crate) fn with_f32<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    with_elements::<f32, R>(tensor, f)
}

/// Calls `f` with the elements of a contiguous tensor of this type.
pub(crate) fn with_elements<T: WithDType, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => Ok(f(&storage.as_slice::<T>()?[start..end])),
        _ => bail!("expected a contiguous tensor in main memory, not {layout:?}"),
    }
}

/// Calls `f` with the elements of a contiguous f32 tensor, to change them in their place.
pub(crate) fn change_f32(tensor: &Tensor, f: impl Fn(&mut [f32])) -> Result<()> {
    tensor.inplace_op1(&Change(f))
}

struct Change<F>(F);

impl<F: Fn(&mut [f32])> InplaceOp1 for Change<F> {
    fn name(&self) -> &'static str {
        "change"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(elements), Some((start, end))) => {
                (self.0)(&mut elements[start..end]);
                Ok(())
            }
            _ => bail!("expected a contiguous tensor of f32, not {layout:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_reaches_the_last_element() {
        let numbers = (0..WIDEN_CHUNK + 3).map(|i| (i * 7 % 5) as f32 - 2.0);
        let weight = Tensor::from_iter(numbers, &Device::Cpu).unwrap();
        let half = weight.to_dtype(DType::BF16).unwrap();
        let wide = widened::<bf16>(&half).unwrap();
        assert_eq!(wide.to_vec1::<f32>().unwrap(), weight.to_vec1::<f32>().unwrap());
    }
}
