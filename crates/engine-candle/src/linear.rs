//! Products of activations with a weight, by whichever of candle's two kernels is the faster.

use candle_core::quantized::{GgmlType, k_quants};
use candle_core::{DType, Device, Result, Storage, Tensor, WithDType, bail};
use half::{bf16, f16};

use crate::parallel::for_each_chunk;

/// From this many rows on, `Tensor::matmul` (packed, cache-blocked) beats the row-by-row kernel that
/// decode needs. Weights below 32 bits are widened for it first. Measured on SmolLM2-135M's shapes with two
/// threads: a prefill of 16 rows takes 60 ms row by row, one of 24 takes 96 ms so and 73 ms by `matmul`.
fn matmul_rows(dtype: DType) -> usize {
    match dtype {
        DType::BF16 => 24,
        DType::F16 => 30,
        _ => 18,
    }
}

/// Elements that are widened at a time.
const WIDEN_CHUNK: usize = 1 << 15;

/// y = x · weightᵀ + bias. The weight is `[out, in]`, held once, in the bundle's element type.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    pub(crate) fn new(weight: Tensor, bias: Option<Vec<f32>>) -> Result<Linear> {
        let bias = bias.map(|bias| Tensor::new(bias, &Device::Cpu)).transpose()?;
        Ok(Linear { weight, bias })
    }

    /// `[rows, in]` → `[rows, out]`, f32.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let y = if rows < matmul_rows(self.weight.dtype()) {
            let mut y = vec![0.0; rows * self.out_features()?];
            self.row_by_row(x, &mut y)?;
            Tensor::from_vec(y, (rows, self.out_features()?), &Device::Cpu)?
        } else {
            x.matmul(&self.widened()?.t()?)?
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    /// As [`Linear::forward`], into memory of the caller's and in pieces of `rows` at most, for results that
    /// are too large to hold twice.
    pub(crate) fn forward_into(&self, x: &Tensor, piece: usize, y: &mut [f32]) -> Result<()> {
        let rows = x.dim(0)?;
        let out = self.out_features()?;
        if rows < matmul_rows(self.weight.dtype()) && self.bias.is_none() {
            return self.row_by_row(x, y);
        }
        let widened = Linear { weight: self.widened()?, bias: self.bias.clone() };
        for start in (0..rows).step_by(piece) {
            let piece = piece.min(rows - start);
            let product = widened.forward(&x.narrow(0, start, piece)?)?;
            with_f32(&product, |product| y[start * out..][..piece * out].copy_from_slice(product))?;
        }
        Ok(())
    }

    fn out_features(&self) -> Result<usize> {
        self.weight.dim(0)
    }

    /// candle's kernel behind its quantised products, which takes plain elements as well: each weight row
    /// is read once, in order, by one of the barrier pool's threads. `Tensor::matmul` leaves a
    /// matrix–vector product to one thread.
    fn row_by_row(&self, x: &Tensor, y: &mut [f32]) -> Result<()> {
        match self.weight.dtype() {
            DType::F32 => row_by_row::<f32>(&self.weight, x, y),
            DType::BF16 => row_by_row::<bf16>(&self.weight, x, y),
            DType::F16 => row_by_row::<f16>(&self.weight, x, y),
            other => bail!("no product with weights of type {other:?}"),
        }
    }

    /// The weight in f32, for `Tensor::matmul`: candle has no bf16 kernel and widens likewise, on one thread.
    fn widened(&self) -> Result<Tensor> {
        match self.weight.dtype() {
            DType::F32 => Ok(self.weight.clone()),
            DType::BF16 => widened::<bf16>(&self.weight),
            DType::F16 => widened::<f16>(&self.weight),
            other => bail!("no product with weights of type {other:?}"),
        }
    }
}

/// The kernels that products with weights of type `dtype` run on, for people.
pub(crate) fn kernels(dtype: DType) -> Vec<String> {
    let rows = matmul_rows(dtype);
    let widened = if dtype == DType::F32 { "" } else { " on weights widened to f32" };
    vec![
        format!("candle k_quants::matmul below {rows} rows"),
        format!("candle Tensor::matmul (gemm){widened} from {rows} rows"),
        "attention on candle's f32 dot product (decode) or matmul (prefill)".into(),
    ]
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

/// Row `index` of a matrix, in f32.
pub(crate) fn copy_row(matrix: &Tensor, index: usize, out: &mut [f32]) -> Result<()> {
    fn copy<T: GgmlType + WithDType>(matrix: &Tensor, index: usize, out: &mut [f32]) -> Result<()> {
        let start = index * out.len();
        with_elements::<T, _>(matrix, |elements| T::to_float(&elements[start..start + out.len()], out))
    }
    match matrix.dtype() {
        DType::F32 => copy::<f32>(matrix, index, out),
        DType::BF16 => copy::<bf16>(matrix, index, out),
        DType::F16 => copy::<f16>(matrix, index, out),
        other => bail!("no embedding of type {other:?}"),
    }
}

/// Calls `f` with the elements of a contiguous f32 tensor.
pub(crate) fn with_f32<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    with_elements::<f32, R>(tensor, f)
}

fn with_elements<T: WithDType, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => Ok(f(&storage.as_slice::<T>()?[start..end])),
        _ => bail!("expected a contiguous tensor in main memory, not {layout:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small whole numbers, which every element type holds exactly.
    fn numbers(rows: usize, columns: usize) -> Tensor {
        let numbers = (0..rows * columns).map(|i| (i * 7 % 5) as f32 - 2.0);
        Tensor::from_iter(numbers, &Device::Cpu).unwrap().reshape((rows, columns)).unwrap()
    }

    #[test]
    fn both_kernels_give_the_same_product_in_every_element_type() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let weight = numbers(19, 40);
            let bias: Vec<f32> = (0..19).map(|i| i as f32).collect();
            let linear = Linear::new(weight.to_dtype(dtype).unwrap(), Some(bias.clone())).unwrap();
            for rows in [1, 3, matmul_rows(dtype)] {
                let x = numbers(rows, 40);
                let expected = x.matmul(&weight.t().unwrap()).unwrap();
                let expected =
                    expected.broadcast_add(&Tensor::new(bias.clone(), &Device::Cpu).unwrap()).unwrap();
                let expected = expected.to_vec2::<f32>().unwrap();
                assert_eq!(linear.forward(&x).unwrap().to_vec2::<f32>().unwrap(), expected);
                let mut y = vec![0.0; rows * 19];
                linear.forward_into(&x, 2, &mut y).unwrap();
                assert_eq!(y, expected.concat());
            }
        }
    }

    #[test]
    fn widening_reaches_the_last_element() {
        let weight = numbers(1, WIDEN_CHUNK + 3);
        let half = weight.to_dtype(DType::BF16).unwrap();
        let wide = widened::<bf16>(&half).unwrap();
        assert_eq!(wide.to_vec2::<f32>().unwrap(), weight.to_vec2::<f32>().unwrap());
    }
}
