//! Products by `Tensor::matmul`, in pieces: every thread computes some of the weight's outputs at a time.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::math::dot;
use crate::parallel::try_for_each;
use crate::weight::{Kernel, Weight, with_f32};

/// Outputs of a piece: few enough that its weights, in f32, stay in a core's cache.
const OUTPUTS: usize = 96;
/// Rows that gemm's kernel computes together.
const KERNEL_ROWS: usize = 16;
/// Rows in one of its vectors.
const VECTOR_ROWS: usize = 8;

/// A product of rows with a weight, as its pieces need it.
pub(crate) struct Pieces {
    weight: Weight,
    /// `[rows, in]`
    x: Tensor,
    /// The first rows, `[in, rows]`, padded with zeros to whole vectors, so that gemm need not pack them.
    /// Only for [`Kernel::WeightFirst`].
    first: Option<Tensor>,
}

impl Pieces {
    /// `x`: `[rows, in]`. Converts [`Weight::Converted`], on one thread as in users' code.
    pub(crate) fn new(weight: &Weight, x: &Tensor) -> Result<Pieces> {
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
    pub(crate) fn for_each(
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
    pub(crate) fn write(&self, outputs: Range<usize>, y: &mut [&mut [f32]]) -> Result<()> {
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
