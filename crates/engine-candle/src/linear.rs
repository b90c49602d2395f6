//! Products of activations with a weight, by the fastest of candle's kernels.

use std::ops::Range;

use bundle::LinearNames;
use candle_core::{DType, Device, Result, Tensor};
use worker::engine::{self};

use crate::math::{add, dot};
use crate::parallel::{for_each_chunk, try_for_each};
use crate::reader::Reader;
use crate::weight::{Kernel, Weight, with_f32};

/// y = x · weightᵀ + bias. The weight is `[out, in]`.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// Reads and stacks the weights and biases with these names.
    pub(crate) fn read(reader: &Reader<'_>, names: &LinearNames) -> engine::Result<Linear> {
        Ok(Linear::new(reader.stacked(names)?, reader.stacked_bias(names)?))
    }

    pub(crate) fn new(weight: Weight, bias: Option<Vec<f32>>) -> Linear {
        Linear { weight, bias }
    }

    pub(crate) fn weight(&self) -> &Weight {
        &self.weight
    }

    /// `[rows, in]` → `[rows, out]`, f32.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let shape = (x.dim(0)?, self.weight.dims()?.0);
        let mut y = vec![0.0; shape.0 * shape.1];
        self.forward_into(x, &mut y)?;
        Tensor::from_vec(y, shape, &Device::Cpu)
    }

    pub(crate) fn forward_into(&self, x: &Tensor, y: &mut [f32]) -> Result<()> {
        let (rows, width) = (x.dim(0)?, self.weight.dims()?.0);
        if self.weight.kernel(rows) == Kernel::RowByRow {
            self.weight.row_by_row_into(x, y)?;
            if let Some(bias) = &self.bias {
                // On all threads: `broadcast_add` would make a second result, on one thread.
                for_each_chunk(y, width, |_, row| add(row, bias));
            }
            return Ok(());
        }
        let pieces = Pieces::new(&self.weight, x)?;
        pieces.for_each(y, width, |outputs, mut y| self.write(&pieces, outputs, &mut y))
    }

    /// `[rows, in]` → `[rows, out / 2]`: the product with the first half of the weight, which `combine`
    /// changes by the product with the second half. It gets parts of rows while they are in cache.
    pub(crate) fn combined(
        &self,
        x: &Tensor,
        combine: impl Fn(&mut [f32], &[f32]) + Send + Sync,
    ) -> Result<Tensor> {
        let (rows, width) = (x.dim(0)?, self.weight.dims()?.0 / 2);
        let mut y = vec![0.0; rows * width];
        if self.weight.kernel(rows) == Kernel::RowByRow {
            with_f32(&self.forward(x)?, |product| {
                for_each_chunk(&mut y, width, |row, y| {
                    let (first, second) = product[row * 2 * width..][..2 * width].split_at(width);
                    y.copy_from_slice(first);
                    combine(y, second);
                });
            })?;
            return Tensor::from_vec(y, (rows, width), &Device::Cpu);
        }
        let pieces = Pieces::new(&self.weight, x)?;
        pieces.for_each(&mut y, width, |outputs, mut y| {
            let count = outputs.len();
            let second_half = width + outputs.start..width + outputs.end;
            self.write(&pieces, outputs, &mut y)?;
            let mut second = vec![0.0; rows * count];
            self.write(&pieces, second_half, &mut second.chunks_exact_mut(count).collect::<Vec<_>>())?;
            y.into_iter().zip(second.chunks_exact(count)).for_each(|(y, second)| combine(y, second));
            Ok(())
        })?;
        Tensor::from_vec(y, (rows, width), &Device::Cpu)
    }

    /// Computes some outputs of every row, on this thread.
    fn write(&self, pieces: &Pieces, outputs: Range<usize>, y: &mut [&mut [f32]]) -> Result<()> {
        pieces.write(outputs.clone(), y)?;
        if let Some(bias) = &self.bias {
            y.iter_mut().for_each(|y| add(y, &bias[outputs.clone()]));
        }
        Ok(())
    }
}

// Products by `Tensor::matmul`, in pieces: every thread computes some of the weight's outputs at a time.

/// Outputs of a piece: few enough that its weights, in f32, stay in a core's cache.
const OUTPUTS: usize = 96;

/// Rows that gemm's kernel computes together.
const KERNEL_ROWS: usize = 16;

/// Rows in one of its vectors.
const VECTOR_ROWS: usize = 8;

/// A product of rows with a weight, as its pieces need it.
struct Pieces {
    weight: Weight,
    /// `[rows, in]`
    x: Tensor,
    /// The first rows, `[in, rows]`, padded with zeros to whole vectors, so that gemm need not pack them.
    /// Only for [`Kernel::WeightFirst`].
    first: Option<Tensor>,
}

impl Pieces {
    /// `x`: `[rows, in]`. Converts [`Weight::Converted`], on one thread as in users' code.
    fn new(weight: &Weight, x: &Tensor) -> Result<Pieces> {
        let (rows, width) = x.dims2()?;
        let weight_first = weight.kernel(rows) == Kernel::WeightFirst;
        let first = weight_first.then(|| {
            let rows = rows.min(KERNEL_ROWS);
            let filled = rows.next_multiple_of(VECTOR_ROWS);
            let mut first = vec![0.0; width * filled];
            with_f32(&x.narrow(0, 0, rows)?, |x| {
                for (row, x) in x.chunks_exact(width).enumerate() {
                    first[row..].iter_mut().step_by(filled).zip(x).for_each(|(first, x)| *first = *x);
                }
            })?;
            Tensor::from_vec(first, (width, filled), &Device::Cpu)
        });
        let weight = match weight {
            Weight::Converted(weight) => Weight::Plain(weight.to_dtype(DType::F32)?),
            other => other.clone(),
        };
        Ok(Pieces { weight, x: x.clone(), first: first.transpose()? })
    }

    /// Calls `f` with ranges of the columns of `y`, `[rows, width]`, and their part of every row, on any free
    /// thread.
    fn for_each(
        &self,
        y: &mut [f32],
        width: usize,
        f: impl Fn(Range<usize>, Vec<&mut [f32]>) -> Result<()> + Send + Sync,
    ) -> Result<()> {
        let rows = y.len() / width;
        let starts = (0..width).step_by(OUTPUTS);
        let mut pieces: Vec<_> =
            starts.map(|start| (start..width.min(start + OUTPUTS), Vec::with_capacity(rows))).collect();
        for row in y.chunks_exact_mut(width) {
            for ((_, piece), part) in pieces.iter_mut().zip(row.chunks_mut(OUTPUTS)) {
                piece.push(part);
            }
        }
        try_for_each(pieces, |(outputs, y)| f(outputs, y))
    }

    /// Writes the product with some of the weight's outputs to `y`, row by row, on this thread. If they are
    /// not in f32, only these outputs are widened: candle has no kernel for them, or widens the whole matrix.
    fn write(&self, outputs: Range<usize>, y: &mut [&mut [f32]]) -> Result<()> {
        let weight = self.weight.rows(outputs.clone())?;
        let Some(first) = &self.first else {
            let count = outputs.len();
            return with_f32(&self.x.matmul(&weight.t()?)?, |product| {
                y.iter_mut().zip(product.chunks_exact(count)).for_each(|(y, row)| y.copy_from_slice(row));
            });
        };
        let (of_kernel, rest) = y.split_at_mut(y.len().min(KERNEL_ROWS));
        let filled = first.dim(1)?;
        with_f32(&weight.matmul(first)?, |product| {
            for (row, y) in of_kernel.iter_mut().enumerate() {
                y.iter_mut()
                    .zip(product[row..].iter().step_by(filled))
                    .for_each(|(y, product)| *y = *product);
            }
        })?;
        if rest.is_empty() {
            return Ok(());
        }
        // Rows beyond the kernel's go one by one: in the kernel a few would cost as much as another
        // `KERNEL_ROWS`.
        let width = weight.dim(1)?;
        with_f32(&weight, |weight| {
            with_f32(&self.x, |x| {
                for (y, x) in rest.iter_mut().zip(x.chunks_exact(width).skip(KERNEL_ROWS)) {
                    y.iter_mut().zip(weight.chunks_exact(width)).for_each(|(y, weight)| *y = dot(weight, x));
                }
            })
        })?
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    /// Small whole numbers, which every element type holds exactly.
    fn numbers(rows: usize, columns: usize) -> Tensor {
        let numbers = (0..rows * columns).map(|i| (i * 7 % 5) as f32 - 2.0);
        Tensor::from_iter(numbers, &Device::Cpu).unwrap().reshape((rows, columns)).unwrap()
    }

    #[test]
    fn all_kernels_give_the_same_product_in_every_element_type() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let weight = numbers(19, 40);
            let bias: Vec<f32> = (0..19).map(|i| i as f32).collect();
            let held = Weight::Plain(weight.to_dtype(dtype).unwrap());
            let linear = Linear::new(held, Some(bias.clone()));
            let taken = |rows| linear.weight.kernel(rows);
            assert_eq!([3, 16, 40].map(taken), [Kernel::RowByRow, Kernel::WeightFirst, Kernel::RowsFirst]);
            for rows in [1, 3, 16, 18, 40] {
                let x = numbers(rows, 40);
                let expected = x.matmul(&weight.t().unwrap()).unwrap();
                let expected =
                    expected.broadcast_add(&Tensor::new(bias.clone(), &Device::Cpu).unwrap()).unwrap();
                let expected = expected.to_vec2::<f32>().unwrap();
                assert_eq!(linear.forward(&x).unwrap().to_vec2::<f32>().unwrap(), expected);
                let mut y = vec![0.0; rows * 19];
                linear.forward_into(&x, &mut y).unwrap();
                assert_eq!(y, expected.concat());
            }
        }
    }
}
