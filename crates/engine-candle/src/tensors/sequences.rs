//! Caches, rotation tables and masks of a batch of sequences.

use bundle::{ModelConfig, rotary};
use candle_core::{DType, Device, Result, Tensor};

pub(super) use crate::sequences::Cache;

#[derive(Debug)]
pub(super) struct Sequences {
    pub(super) batch: usize,
    /// Padding positions before each sequence; empty if all have the same length.
    pub(super) padding: Vec<u32>,
    /// One for each layer.
    pub(super) caches: Vec<Cache>,
    /// Cosines and sines, each `[capacity, rotated dimensions / 2]`, for each of the model's rotations.
    pub(super) rotary: Vec<[Tensor; 2]>,
    /// The window of sliding layers.
    pub(super) window: Option<usize>,
    /// Whether a query sees no later key.
    pub(super) causal: bool,
    pub(super) dtype: DType,
    pub(super) device: Device,
}

/// The positions that one call appends, as many to each sequence of the step.
pub(super) struct Step {
    /// The first of its sequences.
    pub(super) sequence: usize,
    pub(super) batch: usize,
    /// First cache position of these sequences.
    pub(super) start: usize,
    /// Positions in use from `start` on.
    pub(super) filled: usize,
    pub(super) positions: usize,
    /// Positions of the new tokens, `[batch · positions]`, if sequences differ in them.
    pub(super) places: Option<Tensor>,
    /// Cosines and sines of these positions, by rotation: each `[positions, rotated dimensions / 2]`, or with
    /// `places` `[batch, positions, …]`.
    pub(super) rotary: Vec<[Tensor; 2]>,
    /// `[positions, filled + positions]`, or `[batch, 1, …]` if sequences differ: 0 if a query sees a key, −∞
    /// if the key is later or padding. `None` if every query sees all keys.
    pub(super) mask: Option<Tensor>,
    /// The mask of sliding layers, if it differs.
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
        let padding = Vec::new();
        Ok(Sequences {
            batch,
            padding,
            caches,
            rotary,
            window,
            causal: config.causal,
            dtype,
            device: device.clone(),
        })
    }

    /// The step that appends `positions` after `filled`.
    pub(super) fn step(&self, filled: usize, positions: usize) -> Result<Step> {
        let part = |[cos, sin]: &[Tensor; 2]| {
            Ok([cos.narrow(0, filled, positions)?, sin.narrow(0, filled, positions)?])
        };
        let rotary = self.rotary.iter().map(part).collect::<Result<_>>()?;
        let masked = positions > 1 && self.causal;
        let mask = masked.then(|| self.mask(filled, positions, None)).transpose()?;
        let window = self.window.filter(|&window| masked && filled + positions > window);
        let sliding_mask = window.map(|window| self.mask(filled, positions, Some(window))).transpose()?;
        Ok(Step {
            sequence: 0,
            batch: self.batch,
            start: 0,
            filled,
            positions,
            places: None,
            rotary,
            mask,
            sliding_mask,
        })
    }

    /// The steps that append prompts of these lengths, one for each.
    pub(super) fn prompts(&self, lengths: &[usize]) -> Result<Vec<Step>> {
        let steps = lengths.iter().zip(&self.padding).enumerate();
        let step = |(sequence, (&length, &padding)): (usize, (&usize, &u32))| {
            Ok(Step { sequence, batch: 1, start: padding as usize, ..self.step(0, length)? })
        };
        steps.map(step).collect()
    }

    /// The step that appends `positions` after `filled`, if there is padding before sequences.
    pub(super) fn padded_step(&self, filled: usize, positions: usize) -> Result<Step> {
        let first = filled as u32..(filled + positions) as u32;
        let places = self.padding.iter().flat_map(|&padding| first.clone().map(move |place| place - padding));
        let places = Tensor::from_vec(places.collect::<Vec<u32>>(), self.batch * positions, &self.device)?;
        let part = |[cos, sin]: &[Tensor; 2]| {
            let part = |table: &Tensor| {
                let shape = (self.batch, positions, table.dim(1)?);
                table.index_select(&places, 0)?.reshape(shape)
            };
            Ok([part(cos)?, part(sin)?])
        };
        let hidden_padding = self.padding_mask(filled + positions)?;
        let mask = self.mask(filled, positions, None)?.broadcast_add(&hidden_padding)?;
        let window = self.window.filter(|&window| filled + positions > window);
        let sliding = |window| self.mask(filled, positions, Some(window))?.broadcast_add(&hidden_padding);
        Ok(Step {
            sequence: 0,
            batch: self.batch,
            start: 0,
            filled,
            positions,
            rotary: self.rotary.iter().map(part).collect::<Result<_>>()?,
            places: Some(places),
            mask: Some(mask),
            sliding_mask: window.map(sliding).transpose()?,
        })
    }

    /// `[batch, 1, 1, keys]`: −∞ for padding, else 0.
    fn padding_mask(&self, keys: usize) -> Result<Tensor> {
        let padding = Tensor::from_slice(&self.padding, (self.batch, 1, 1, 1), &self.device)?;
        let key = Tensor::arange(0, keys as u32, &self.device)?.reshape((1, 1, 1, keys))?;
        let shape = (self.batch, 1, 1, keys);
        let hidden = Tensor::full(f32::NEG_INFINITY, shape, &self.device)?.to_dtype(self.dtype)?;
        key.broadcast_lt(&padding)?.where_cond(&hidden, &hidden.zeros_like()?)
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
            // A key is outside the window of all queries from `window` positions after it.
            Some(window) => {
                let last = (key + window as f64)?;
                last.broadcast_le(&query)?.where_cond(&hidden, &mask)
            }
        }
    }
}
