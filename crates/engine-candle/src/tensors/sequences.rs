//! What a batch of sequences needs beside the weights.

use bundle::{ModelConfig, Position, rotary};
use candle_core::{DType, Device, Result, Tensor};

pub(super) use crate::sequences::Cache;

#[derive(Debug)]
pub(super) struct Sequences {
    pub(super) batch: usize,
    /// One for each layer.
    pub(super) caches: Vec<Cache>,
    /// Cosines and sines, each `[capacity, head_dim / 2]`.
    pub(super) rotary: Option<[Tensor; 2]>,
    /// Whether a query sees no key ahead of it.
    pub(super) causal: bool,
    pub(super) dtype: DType,
    pub(super) device: Device,
}

/// The positions that one call appends.
pub(super) struct Step {
    pub(super) batch: usize,
    pub(super) filled: usize,
    pub(super) positions: usize,
    /// Cosines and sines of these positions, each `[positions, head_dim / 2]`.
    pub(super) rotary: Option<[Tensor; 2]>,
    /// `[positions, filled + positions]`: 0 where a query sees a key, −∞ where it lies ahead. None where
    /// every query sees all.
    pub(super) mask: Option<Tensor>,
}

impl Sequences {
    pub(super) fn new(
        config: &ModelConfig,
        batch: usize,
        capacity: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Sequences> {
        let caches = Cache::of_layers(config, batch, capacity, dtype, device)?;
        let table = |values: Vec<f32>| {
            Tensor::from_vec(values, (capacity, config.head_dim / 2), &Device::Cpu)?
                .to_dtype(dtype)?
                .to_device(device)
        };
        let rotary = match &config.position {
            Position::Learned => None,
            Position::Rotary(rotary) => {
                let (cos, sin) = rotary::cos_sin(rotary, config.head_dim, capacity);
                Some([table(cos)?, table(sin)?])
            }
        };
        Ok(Sequences { batch, caches, rotary, causal: config.causal, dtype, device: device.clone() })
    }

    /// The step that appends `positions` behind `filled`.
    pub(super) fn step(&self, filled: usize, positions: usize) -> Result<Step> {
        let rotary = match &self.rotary {
            None => None,
            Some([cos, sin]) => Some([cos.narrow(0, filled, positions)?, sin.narrow(0, filled, positions)?]),
        };
        let mask = match positions {
            1 => None,
            _ if !self.causal => None,
            _ => Some(self.mask(filled, positions)?),
        };
        Ok(Step { batch: self.batch, filled, positions, rotary, mask })
    }

    fn mask(&self, filled: usize, positions: usize) -> Result<Tensor> {
        let keys = filled + positions;
        let key = Tensor::arange(0, keys as u32, &self.device)?.unsqueeze(0)?;
        let query = Tensor::arange(filled as u32, keys as u32, &self.device)?.unsqueeze(1)?;
        let shape = (positions, keys);
        let hidden = Tensor::full(f32::NEG_INFINITY, shape, &self.device)?.to_dtype(self.dtype)?;
        let seen = hidden.zeros_like()?;
        key.broadcast_gt(&query)?.where_cond(&hidden, &seen)
    }
}
