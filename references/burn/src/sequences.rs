//! What depends on batch and capacity: the KV cache and the rotary tables.

use bundle::{ModelConfig, rotary};
use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType, Slice};
use burn_flex::Flex;

use crate::tensor::{Tensor, add, cat, dims, from_floats, multiply, narrow};

/// Keys and values of one layer, each `[batch, kv_heads, capacity, head_dim]`.
#[derive(Debug)]
pub(crate) struct Cache {
    keys: Tensor,
    values: Tensor,
}

#[derive(Debug)]
pub(crate) struct Sequences {
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    pub(crate) filled: usize,
    pub(crate) caches: Vec<Cache>,
    pub(crate) rotation: Option<Rotation>,
}

/// cos and sin of every position, `[1, capacity, 1, head_dim]`, for the rotate-half convention: the halves of
/// cos are equal, those of sin have opposite signs.
#[derive(Debug)]
pub(crate) struct Rotation {
    cos: Tensor,
    sin: Tensor,
}

impl Sequences {
    pub(crate) fn new(config: &ModelConfig, batch: usize, capacity: usize, dtype: DType) -> Sequences {
        let shape = [batch, config.kv_heads, capacity, config.head_dim];
        let zeros = || Tensor::zeros(shape.into(), dtype);
        let caches = (0..config.layers.len()).map(|_| Cache { keys: zeros(), values: zeros() }).collect();
        let rotation = match config.rotations.first() {
            None => None,
            Some(rotary) => {
                let (cos, sin) = rotary::cos_sin(rotary, config.head_dim, capacity);
                let table = |half: &[f32], sign: f32| {
                    let rows = half.chunks_exact(config.head_dim / 2);
                    let whole =
                        rows.flat_map(|row| row.iter().map(move |x| sign * x).chain(row.iter().copied()));
                    from_floats(whole.collect(), [1, capacity, 1, config.head_dim], dtype)
                };
                Some(Rotation { cos: table(&cos, 1.0), sin: table(&sin, -1.0) })
            }
        };
        Sequences { batch, capacity, filled: 0, caches, rotation }
    }
}

impl Cache {
    /// Writes keys and values `[batch, kv_heads, n, head_dim]` behind the first `filled` positions, and returns
    /// all up to there, as views.
    pub(crate) fn append(&mut self, keys: Tensor, values: Tensor, filled: usize) -> (Tensor, Tensor) {
        (write(&mut self.keys, keys, filled), write(&mut self.values, values, filled))
    }

    /// Size of the two buffers.
    pub(crate) fn bytes(&self) -> u64 {
        (self.keys.bytes().len() + self.values.bytes().len()) as u64
    }
}

fn write(held: &mut Tensor, new: Tensor, filled: usize) -> Tensor {
    let [batch, heads, count, width] = dims(&new);
    let end = filled + count;
    let place = [0..batch, 0..heads, filled..end, 0..width].map(Slice::from);
    // A tensor that somebody else holds as well would be copied.
    let whole = std::mem::replace(held, Tensor::zeros([0].into(), new.dtype()));
    *held = Flex::float_slice_assign(whole, &place, new);
    narrow(held, 2, 0, end)
}

/// Whether burn writes into a tensor without another owner in place, without a copy.
pub(crate) fn is_written_in_place(dtype: DType) -> bool {
    let mut held = Tensor::zeros([2, 2, 8, 4].into(), dtype);
    let before = held.bytes().as_ptr();
    drop(write(&mut held, Tensor::zeros([2, 2, 1, 4].into(), dtype), 3));
    held.bytes().as_ptr() == before
}

impl Rotation {
    /// Rotates `x` `[batch, n, heads, head_dim]`, whose first position is `filled`.
    pub(crate) fn apply(&self, x: Tensor, filled: usize) -> Tensor {
        let [_, count, _, width] = dims(&x);
        let half = width / 2;
        let swapped = cat(vec![narrow(&x, 3, half, half), narrow(&x, 3, 0, half)], 3);
        let cos = multiply(x, narrow(&self.cos, 1, filled, count));
        add(cos, multiply(swapped, narrow(&self.sin, 1, filled, count)))
    }
}
