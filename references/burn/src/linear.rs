//! Products with weights.

use burn_backend::DType;
use worker::engine::EngineError;

use crate::reader::Reader;
use crate::tensor::{Tensor, add, dims, matmul, reshape, swap, transpose};

/// From this many multiplications on, flex spreads the matrices of a batched product over its threads
/// (`BATCH_PARALLEL_THRESHOLD` of burn-flex).
const PARALLEL: usize = 128 * 128 * 128;

/// A weight with its bias.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    /// `[in, out]`. In f32 it is so in memory, else it is a view of the file's `[out, in]`.
    weight: Tensor,
    /// A view of the same numbers as `[pieces, in, out / pieces]`, for single rows.
    pieces: Option<Tensor>,
    /// `[1, out]`
    bias: Option<Tensor>,
}

impl Linear {
    /// Weights that are side by side, stacked to one.
    pub(crate) fn read(
        reader: &Reader,
        weights: &[String],
        biases: &[String],
    ) -> Result<Linear, EngineError> {
        let weight = reader.stacked(weights)?;
        let [outputs, inputs] = dims(&weight);
        let pieces = pieces(outputs, inputs, rayon::current_num_threads());
        let bias = reader.row(biases)?;
        if weight.dtype() != DType::F32 {
            return Ok(Linear::over(weight, pieces, bias));
        }
        // With one row, gemm reads this layout faster: 1.4 times as fast at 576 inputs.
        let weight = transpose(weight).to_contiguous();
        reader.release(weights)?;
        let pieces =
            pieces.map(|pieces| swap(reshape(weight.clone(), [inputs, pieces, outputs / pieces]), 0, 1));
        Ok(Linear { weight, pieces, bias })
    }

    /// The output head over `weight` `[vocabulary, hidden]`, which it shares.
    pub(crate) fn head(weight: Tensor) -> Linear {
        let [outputs, inputs] = dims(&weight);
        Linear::over(weight, pieces(outputs, inputs, rayon::current_num_threads()), None)
    }

    /// A view of `weight` `[out, in]`.
    fn over(weight: Tensor, pieces: Option<usize>, bias: Option<Tensor>) -> Linear {
        let [outputs, inputs] = dims(&weight);
        let cut = |pieces| transpose(reshape(weight.clone(), [pieces, outputs / pieces, inputs]));
        Linear { pieces: pieces.map(cut), weight: transpose(weight), bias }
    }

    /// Whether the product of a single row uses several threads.
    pub(crate) fn is_parallel(&self) -> bool {
        self.pieces.is_some() && self.weight.dtype() != DType::BF16
    }

    /// `[rows, in]` → `[rows, out]`
    pub(crate) fn forward(&self, x: Tensor) -> Tensor {
        let [rows, inputs] = dims(&x);
        let [_, outputs] = dims(&self.weight);
        let product = match &self.pieces {
            // flex widens both sides to f32 in row-major order: the view would be transposed anew each time.
            _ if self.weight.dtype() == DType::BF16 => {
                transpose(matmul(transpose(self.weight.clone()), transpose(x)))
            }
            // Left to itself, a product with one row runs on one thread.
            Some(pieces) if rows == 1 => {
                reshape(matmul(reshape(x, [1, 1, inputs]), pieces.clone()), [1, outputs])
            }
            _ => matmul(x, self.weight.clone()),
        };
        match &self.bias {
            Some(bias) => add(product, bias.clone()),
            None => product,
        }
    }
}

/// Into how many equal pieces a weight is cut, so that the products of a single row with them run on all
/// threads; `None` where they would not.
fn pieces(outputs: usize, inputs: usize, threads: usize) -> Option<usize> {
    if threads == 1 || outputs * inputs < PARALLEL {
        return None;
    }
    // Some more than threads, so that a thread that is late holds up less; not so many that they get small.
    (4 * threads..=64 * threads).find(|pieces| outputs.is_multiple_of(*pieces))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_cut_into_equal_pieces_where_flex_spreads_them() {
        assert_eq!(pieces(49_152, 576, 2), Some(8));
        assert_eq!(pieces(50_257, 768, 2), Some(29), "29 · 1733");
        assert_eq!(pieces(1536, 576, 2), None, "too few multiplications");
        assert_eq!(pieces(49_157, 576, 2), None, "a prime");
        assert_eq!(pieces(49_152, 576, 1), None, "one thread");
    }
}
