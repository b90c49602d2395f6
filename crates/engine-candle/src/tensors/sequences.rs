//! What a batch of sequences needs beside the weights.

use bundle::{ModelConfig, rotary};
use candle_core::{DType, Device, Result, Tensor};

pub(super) use crate::sequences::Cache;

#[derive(Debug)]
pub(super) struct Sequences {
    pub(super) batch: usize,
    /// One for each layer.
    pub(super) caches: Vec<Cache>,
    /// Cosines and sines, each `[capacity, rotated dimensions / 2]`, for each of the model's rotations.
    pub(super) rotary: Vec<[Tensor; 2]>,
    /// That of sliding layers.
    pub(super) window: Option<usize>,
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
    /// Cosines and sines of these positions, each `[positions, rotated dimensions / 2]`, by rotation.
    pub(super) rotary: Vec<[Tensor; 2]>,
    /// `[positions, filled + positions]`: 0 where a query sees a key, −∞ where it is ahead. None where
    /// every query sees all.
    pub(super) mask: Option<Tensor>,
    /// That of sliding layers, where it is another.
    pub(super) sliding_mask: Option<Tensor>,
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
            Tensor::from_vec(values, (capacity, config.rotary_dim() / 2), &Device::Cpu)?
                .to_dtype(dtype)?
                .to_device(device)
        };
        let tables = rotary::tables(config, capacity).into_iter();
        let rotary = tables.map(|(cos, sin)| Ok([table(cos)?, table(sin)?])).collect::<Result<_>>()?;
        let window = config.form.window;
        Ok(Sequences { batch, caches, rotary, window, causal: config.causal, dtype, device: device.clone() })
    }

    /// The step that appends `positions` behind `filled`.
    pub(super) fn step(&self, filled: usize, positions: usize) -> Result<Step> {
        let part = |[cos, sin]: &[Tensor; 2]| {
            Ok([cos.narrow(0, filled, positions)?, sin.narrow(0, filled, positions)?])
        };
        let rotary = self.rotary.iter().map(part).collect::<Result<_>>()?;
        let masked = positions > 1 && self.causal;
        let mask = masked.then(|| self.mask(filled, positions, None)).transpose()?;
        let window = self.window.filter(|&window| masked && filled + positions > window);
        let sliding_mask = window.map(|window| self.mask(filled, positions, Some(window))).transpose()?;
        Ok(Step { batch: self.batch, filled, positions, rotary, mask, sliding_mask })
    }

    fn mask(&self, filled: usize, positions: usize, window: Option<usize>) -> Result<Tensor> {
        let keys = filled + positions;
        let key = Tensor::arange(0, keys as u32, &self.device)?.unsqueeze(0)?;
        let query = Tensor::arange(filled as u32, keys as u32, &self.device)?.unsqueeze(1)?;
        let shape = (positions, keys);
        let hidden = Tensor::full(f32::NEG_INFINITY, shape, &self.device)?.to_dtype(self.dtype)?;
        let seen = hidden.zeros_like()?;
        let mask = key.broadcast_gt(&query)?.where_cond(&hidden, &seen)?;
        match window {
            None => Ok(mask),
            // A key is out of the window's reach from the position on that is a window behind it.
            Some(window) => {
                let last = (key + window as f64)?;
                last.broadcast_le(&query)?.where_cond(&hidden, &mask)
            }
        }
    }
}
