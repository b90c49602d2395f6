//! Products with weights.

use bundle::LinearNames;
use burn_backend::DType;
use engine::EngineError;

use crate::reader::Reader;
use crate::tensor::{Tensor, add, dims, matmul, reshape, transpose};

/// From this many multiplications on, flex spreads the matrices of a batched product over its threads
/// (`BATCH_PARALLEL_THRESHOLD` of burn-flex).
const PARALLEL: usize = 128 * 128 * 128;

/// A weight of `[out, in]` with its bias.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    /// `[out, in]`, as it lies in the file.
    weight: Tensor,
    /// The same numbers as `[pieces, in, out / pieces]`, for single rows.
    pieces: Option<Tensor>,
    /// `[1, out]`
    bias: Option<Tensor>,
}

impl Linear {
    pub(crate) fn read(reader: &Reader, names: &LinearNames) -> Result<Linear, EngineError> {
        Ok(Linear::new(reader.stacked(&names.weights)?, reader.row(&names.biases)?))
    }

    /// The output head.
    pub(crate) fn head(weight: Tensor) -> Linear {
        Linear::new(weight, None)
    }

    fn new(weight: Tensor, bias: Option<Tensor>) -> Linear {
        let [outputs, inputs] = dims(&weight);
        let pieces = pieces(outputs, inputs, rayon::current_num_threads())
            .map(|pieces| transpose(reshape(weight.clone(), [pieces, outputs / pieces, inputs])));
        Linear { weight, pieces, bias }
    }

    /// Whether the product of a single row uses several threads.
    pub(crate) fn is_parallel(&self) -> bool {
        self.pieces.is_some()
    }

    /// `[rows, in]` → `[rows, out]`
    pub(crate) fn forward(&self, x: Tensor) -> Tensor {
        let [rows, inputs] = dims(&x);
        let [outputs, _] = dims(&self.weight);
        let product = match &self.pieces {
            _ if self.weight.dtype() == DType::BF16 => {
                // flex widens both sides to f32 in row-major order: a transposed weight would be
                // transposed anew each time.
                transpose(matmul(self.weight.clone(), transpose(x)))
            }
            // Left to itself, a product with one row runs on one thread.
            Some(pieces) if rows == 1 => {
                let product = matmul(reshape(x, [1, 1, inputs]), pieces.clone());
                reshape(product, [1, outputs])
            }
            _ => matmul(x, transpose(self.weight.clone())),
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
