//! What one batch of sequences needs beside the weights, allocated when it begins.

use bundle::{ModelConfig, Position, rotary};
use candle_core::{DType, Device, Result, Tensor};

use crate::parallel::decode_threads;

/// A batch of sequences of equal length, and the room for them to grow.
#[derive(Debug)]
pub(crate) struct Sequences {
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    /// Positions that the caches hold.
    pub(crate) filled: usize,
    /// One for each layer.
    pub(crate) caches: Vec<Cache>,
    pub(crate) rotary: Option<RotaryTable>,
    /// `[decode_threads, capacity]`: attention scores of the head that a thread is at.
    pub(crate) scores: Vec<f32>,
}

/// Keys and values of one layer, each `[batch · kv_heads, capacity, head_dim]`.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

/// Cosines and sines, each `[capacity, head_dim / 2]`.
#[derive(Debug)]
pub(crate) struct RotaryTable {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Sequences {
    pub(crate) fn new(config: &ModelConfig, batch: usize, capacity: usize) -> Result<Sequences> {
        let caches = Cache::of_layers(config, batch, capacity);
        let rotary = match &config.position {
            Position::Learned => None,
            Position::Rotary(rotary) => {
                let (cos, sin) = rotary::cos_sin(rotary, config.head_dim, capacity);
                Some(RotaryTable { cos, sin, half: config.head_dim / 2 })
            }
        };
        Ok(Sequences {
            batch,
            capacity,
            filled: 0,
            caches: caches?,
            rotary,
            scores: vec![0.0; decode_threads() * capacity],
        })
    }
}

impl Cache {
    /// Those of all layers in one piece, keys before values, layer after layer: another engine of the process may want
    /// them so.
    fn of_layers(config: &ModelConfig, batch: usize, capacity: usize) -> Result<Vec<Cache>> {
        let lanes = batch * config.kv_heads;
        let all =
            Tensor::zeros((2 * config.layers, lanes, capacity, config.head_dim), DType::F32, &Device::Cpu)?;
        let caches = (0..config.layers)
            .map(|layer| Ok(Cache { keys: all.get(2 * layer)?, values: all.get(2 * layer + 1)? }));
        caches.collect()
    }

    pub(crate) fn new(
        config: &ModelConfig,
        batch: usize,
        capacity: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Cache> {
        let shape = (batch * config.kv_heads, capacity, config.head_dim);
        Ok(Cache { keys: Tensor::zeros(shape, dtype, device)?, values: Tensor::zeros(shape, dtype, device)? })
    }

    /// As allocated.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        (bytes(&self.keys) + bytes(&self.values)) as u64
    }

    /// Writes `[batch · kv_heads, positions, head_dim]` behind the `filled` positions.
    pub(crate) fn append(&self, keys: &Tensor, values: &Tensor, filled: usize) -> Result<()> {
        self.keys.slice_set(keys, 1, filled)?;
        self.values.slice_set(values, 1, filled)
    }
}

impl RotaryTable {
    /// Cosines and sines of one position.
    pub(crate) fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let range = position * self.half..(position + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}
