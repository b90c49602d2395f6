//! Products of activations with a weight, by the fastest of candle's kernels.

use std::ops::Range;

use bundle::LinearNames;
use candle_core::{DType, Device, Module, Result, Tensor};
use worker::engine::{self};

use crate::elements::with_f32;
use crate::kernels::Kernels;
use crate::math::dot;
use crate::parallel::try_for_each;
use crate::reader::{Reader, framework};
use crate::weight::{Kernel, Weight};

/// y = x · weightᵀ + bias. The weight is `[out, in]`.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
    kernels: Kernels,
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Linear::forward(self, x)
    }
}

impl Linear {
    /// Reads and stacks the weights and biases with these names.
    pub(crate) fn read(reader: &Reader<'_>, names: &LinearNames) -> engine::Result<Linear> {
        let bias = reader.stacked_bias(names)?.map(|bias| Tensor::new(bias, &Device::Cpu));
        Ok(Linear::new(reader.stacked(names)?, bias.transpose().map_err(framework)?, reader.kernels()))
    }

    pub(crate) fn new(weight: Weight, bias: Option<Tensor>, kernels: Kernels) -> Linear {
        Linear { weight, bias, kernels }
    }

    pub(crate) fn weight(&self) -> &Weight {
        &self.weight
    }

    /// `[rows, in]` → `[rows, out]`, f32.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let shape = (x.dim(0)?, self.weight.dims()?.0);
        let mut y = vec![0.0; shape.0 * shape.1];
        self.multiply(x, &mut y)?;
        let y = Tensor::from_vec(y, shape, &Device::Cpu)?;
        match &self.bias {
            None => Ok(y),
            Some(bias) => self.kernels.with_bias(y, bias),
        }
    }

    /// The same without the bias.
    pub(crate) fn multiply(&self, x: &Tensor, y: &mut [f32]) -> Result<()> {
        let (rows, width) = (x.dim(0)?, self.weight.dims()?.0);
        if self.weight.kernel(rows) == Kernel::RowByRow {
            return self.weight.row_by_row_into(x, y);
        }
        let pieces = Pieces::new(&self.weight, x)?;
        pieces.for_each(y, width, |outputs| pieces.product(outputs))
    }

    /// `[rows, in]` → `[rows, out / 2]`: what `combine` makes of the products with the first half of the weight and with
    /// the second. It gets parts of rows while they are in cache.
    pub(crate) fn combined(
        &self,
        x: &Tensor,
        combine: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync,
    ) -> Result<Tensor> {
        let (rows, width) = (x.dim(0)?, self.weight.dims()?.0 / 2);
        if self.weight.kernel(rows) == Kernel::RowByRow {
            let product = self.forward(x)?;
            // Copied, because `combine` may change the first while it reads the second.
            let first = product.narrow(1, 0, width)?.force_contiguous()?;
            return combine(&first, &product.narrow(1, width, width)?.contiguous()?);
        }
        let pieces = Pieces::new(&self.weight, x)?;
        let product = |outputs: Range<usize>| match &self.bias {
            None => pieces.product(outputs),
            Some(bias) => {
                let bias = bias.narrow(0, outputs.start, outputs.len())?;
                self.kernels.with_bias(pieces.product(outputs)?, &bias)
            }
        };
        let mut y = vec![0.0; rows * width];
        pieces.for_each(&mut y, width, |outputs| {
            let second_half = width + outputs.start..width + outputs.end;
            combine(&product(outputs)?, &product(second_half)?)
        })?;
        Tensor::from_vec(y, (rows, width), &Device::Cpu)
    }
}

// Products by `Tensor::matmul`, in pieces: every thread computes some of the weight's outputs at a time.

/// Outputs of a piece: few enough that its weights, in f32, stay in a core's cache.
const OUTPUTS: usize = 96;

/// Rows that gemm's kernel computes together.
const KERNEL_ROWS: usize = 16;

/// So many rows beyond them cost less in another turn of the kernel than one by one.
const WORTH_A_KERNEL: usize = 5;

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
    /// How many those are.
    by_kernel: usize,
}

impl Pieces {
    /// `x`: `[rows, in]`. Converts [`Weight::Converted`], on one thread as in users' code.
    fn new(weight: &Weight, x: &Tensor) -> Result<Pieces> {
        let (rows, width) = x.dims2()?;
        let weight_first = weight.kernel(rows) == Kernel::WeightFirst;
        let by_kernel = if rows < KERNEL_ROWS + WORTH_A_KERNEL { rows.min(KERNEL_ROWS) } else { rows };
        let first = weight_first.then(|| {
            let filled = by_kernel.next_multiple_of(VECTOR_ROWS);
            let mut first = vec![0.0; width * filled];
            with_f32(&x.narrow(0, 0, by_kernel)?, |x| {
                // As many rows at a time as a line of the cache has elements.
                for (block, x) in x.chunks(KERNEL_ROWS * width).enumerate() {
                    for (column, first) in first.chunks_exact_mut(filled).enumerate() {
                        let column = x[column..].iter().step_by(width);
                        first[block * KERNEL_ROWS..]
                            .iter_mut()
                            .zip(column)
                            .for_each(|(first, x)| *first = *x);
                    }
                }
            })?;
            Tensor::from_vec(first, (width, filled), &Device::Cpu)
        });
        let weight = match weight {
            Weight::Converted(weight) => Weight::Plain(weight.to_dtype(DType::F32)?),
            other => other.clone(),
        };
        Ok(Pieces { weight, x: x.clone(), first: first.transpose()?, by_kernel })
    }

    /// Fills `y`, `[rows, width]`, with what `f` makes of ranges of its columns, on any free thread.
    fn for_each(
        &self,
        y: &mut [f32],
        width: usize,
        f: impl Fn(Range<usize>) -> Result<Tensor> + Send + Sync,
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
        try_for_each(pieces, |(outputs, y)| {
            let count = outputs.len();
            with_f32(&f(outputs)?, |made| {
                y.into_iter().zip(made.chunks_exact(count)).for_each(|(y, made)| y.copy_from_slice(made));
            })
        })
    }

    /// The product with some of the weight's outputs, `[rows, outputs]`, on this thread. If they are not in f32, only
    /// these outputs are widened: candle has no kernel for them, or widens the whole matrix.
    fn product(&self, outputs: Range<usize>) -> Result<Tensor> {
        let weight = self.weight.rows(outputs.clone())?;
        let Some(first) = &self.first else { return self.x.matmul(&weight.t()?) };
        let (filled, count, (rows, width)) = (first.dim(1)?, outputs.len(), self.x.dims2()?);
        let mut y = vec![0.0; rows * count];
        let (of_kernel, rest) = y.split_at_mut(self.by_kernel * count);
        with_f32(&weight.matmul(first)?, |product| {
            for (row, y) in of_kernel.chunks_exact_mut(count).enumerate() {
                y.iter_mut()
                    .zip(product[row..].iter().step_by(filled))
                    .for_each(|(y, product)| *y = *product);
            }
        })?;
        // Rows beyond the kernel's go one by one: in the kernel a few would cost as much as another
        // `KERNEL_ROWS`.
        with_f32(&weight, |weight| {
            with_f32(&self.x, |x| {
                let x = x.chunks_exact(width).skip(self.by_kernel);
                for (y, x) in rest.chunks_exact_mut(count).zip(x) {
                    y.iter_mut().zip(weight.chunks_exact(width)).for_each(|(y, weight)| *y = dot(weight, x));
                }
            })
        })??;
        Tensor::from_vec(y, (rows, count), &Device::Cpu)
    }
}

#[cfg(test)]
mod tests {
    use bundle::Activation;
    use candle_core::DType;

    use super::*;

    /// Small whole numbers, which every element type holds exactly.
    fn numbers(rows: usize, columns: usize) -> Tensor {
        let numbers = (0..rows * columns).map(|i| (i * 7 % 5) as f32 - 2.0);
        Tensor::from_iter(numbers, &Device::Cpu).unwrap().reshape((rows, columns)).unwrap()
    }

    #[test]
    fn all_kernels_give_the_same_product_in_every_element_type() {
        let own = [Kernels::Candle, Kernels::Own];
        for (dtype, kernels) in [DType::F32, DType::BF16, DType::F16].into_iter().zip(own.into_iter().cycle())
        {
            let weight = numbers(19, 40);
            let bias = Tensor::arange(0f32, 19.0, &Device::Cpu).unwrap();
            let held = Weight::Plain(weight.to_dtype(dtype).unwrap());
            let linear = Linear::new(held, Some(bias.clone()), kernels);
            let taken = |rows| linear.weight.kernel(rows);
            assert_eq!([3, 32, 40].map(taken), [Kernel::RowByRow, Kernel::WeightFirst, Kernel::RowsFirst]);
            for rows in [1, 3, 16, 18, 21, 32, 40] {
                let x = numbers(rows, 40);
                let expected = x.matmul(&weight.t().unwrap()).unwrap();
                let expected = expected.broadcast_add(&bias).unwrap().to_vec2::<f32>().unwrap();
                assert_eq!(linear.forward(&x).unwrap().to_vec2::<f32>().unwrap(), expected);
            }
        }
    }

    #[test]
    fn halves_are_combined_with_their_biases() {
        for kernels in [Kernels::Candle, Kernels::Own] {
            let (weight, bias) = (numbers(200, 40), Tensor::arange(0f32, 200.0, &Device::Cpu).unwrap());
            let linear = Linear::new(Weight::Plain(weight), Some(bias), kernels);
            // The last is more elements than candle computes on one thread.
            for rows in [1, 16, 40, 700] {
                let x = numbers(rows, 40);
                let product = linear.forward(&x).unwrap();
                let half = |first| product.narrow(1, first, 100).unwrap();
                let expected = (half(0).relu().unwrap() * half(100)).unwrap().to_vec2::<f32>().unwrap();
                let found =
                    linear.combined(&x, |gate, up| kernels.gated(gate, up, Activation::Relu)).unwrap();
                assert_eq!(found.to_vec2::<f32>().unwrap(), expected);
            }
        }
    }
}
