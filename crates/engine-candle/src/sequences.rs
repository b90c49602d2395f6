//! The memory of one batch of sequences, allocated when it begins.

use bundle::{ModelConfig, rotary};
use candle_core::{DType, Device, Result, Tensor};

use crate::math::rotate_half;
use crate::parallel::threads;

/// A batch of sequences, and room for them to grow. All end at the same cache position; shorter ones have
/// padding before their first token.
#[derive(Debug)]
pub(crate) struct Sequences {
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    /// Positions that the caches hold, padding included.
    pub(crate) filled: usize,
    /// Padding positions before each sequence; empty if all have the same length.
    pub(crate) padding: Vec<usize>,
    /// One for each layer. In a bidirectional model nothing is kept, and all layers share one.
    pub(crate) caches: Vec<Cache>,
    /// Whether caches have no spare room, so that every append copies them into new memory.
    pub(crate) grows: bool,
    /// One for each of the model's rotations.
    pub(crate) rotary: Vec<RotaryTable>,
    /// What candle rotates the rows of the current call by: cosines and sines, for each of the model's rotations.
    pub(crate) turns: Vec<[Tensor; 2]>,
    /// Keys and values of the audio, one for each layer; empty until it is heard.
    pub(crate) heard: Vec<Cache>,
    /// Working memory of decode's attention, one per thread.
    pub(crate) shares: Vec<Share>,
}

/// Keys and values of one layer, each `[batch · kv_heads, capacity, head_dim]`. A clone shares them.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

/// Cosines and sines, each `[positions, rotated dimensions / 2]`.
#[derive(Debug)]
pub(crate) struct RotaryTable {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Sequences {
    /// `dtype`: element type of keys and values.
    pub(crate) fn new(
        config: &ModelConfig,
        (batch, capacity): (usize, usize),
        (dtype, grows): (DType, bool),
    ) -> Result<Sequences> {
        let room = if grows { 0 } else { capacity };
        Ok(Sequences {
            batch,
            capacity,
            filled: 0,
            padding: Vec::new(),
            caches: Cache::of_layers(config, batch, room, dtype, &Device::Cpu)?,
            grows,
            rotary: RotaryTable::of_rotations(config, capacity),
            turns: Vec::new(),
            heard: Vec::new(),
            shares: vec![Share::new(config, capacity); threads()],
        })
    }

    /// Sets what candle rotates the rows of a call by, which are at these positions.
    pub(crate) fn turn(&mut self, positions: &[usize]) -> Result<()> {
        self.turns = self.rotary.iter().map(|table| table.turns(positions)).collect::<Result<_>>()?;
        Ok(())
    }
}

impl Cache {
    /// One for each layer, or the same for all if nothing is kept. All are in one allocation, keys before
    /// values, layer after layer: another engine of the process may need them in this layout.
    pub(crate) fn of_layers(
        config: &ModelConfig,
        batch: usize,
        capacity: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Vec<Cache>> {
        let held = if config.causal { config.layers.len() } else { 1 };
        let lanes = batch * config.kv_heads;
        let all = Tensor::zeros((2 * held, lanes, capacity, config.head_dim), dtype, device)?;
        let cache = |layer: usize| Ok(Cache { keys: all.get(2 * layer)?, values: all.get(2 * layer + 1)? });
        (0..config.layers.len()).map(|layer| cache(layer % held)).collect()
    }

    /// Keys and values of one sequence, in the same memory.
    pub(crate) fn of_sequence(&self, sequence: usize, kv_heads: usize) -> Result<Cache> {
        let part = |all: &Tensor| all.narrow(0, sequence * kv_heads, kv_heads);
        Ok(Cache { keys: part(&self.keys)?, values: part(&self.values)? })
    }

    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        (bytes(&self.keys) + bytes(&self.values)) as u64
    }

    /// Writes `[batch · kv_heads, positions, head_dim]` after the `filled` positions, rounded to the cache's
    /// type.
    pub(crate) fn append(&self, keys: &Tensor, values: &Tensor, filled: usize) -> Result<()> {
        self.keys.slice_set(&keys.to_dtype(self.keys.dtype())?, 1, filled)?;
        self.values.slice_set(&values.to_dtype(self.values.dtype())?, 1, filled)
    }

    /// The same without spare room: copies everything into new memory of exactly the needed length.
    pub(crate) fn grow(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        for (held, new) in [(&mut self.keys, keys), (&mut self.values, values)] {
            *held = Tensor::cat(&[&*held, &new.to_dtype(held.dtype())?], 1)?;
        }
        Ok(())
    }

    pub(crate) fn empty(&mut self) -> Result<()> {
        for held in [&mut self.keys, &mut self.values] {
            let (lanes, _, width) = held.dims3()?;
            *held = Tensor::zeros((lanes, 0, width), held.dtype(), held.device())?;
        }
        Ok(())
    }
}

/// Padding positions before sequences of these lengths, so that all end where the longest does.
pub(crate) fn padding(lengths: &[usize]) -> Vec<usize> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    lengths.iter().map(|length| longest - length).collect()
}

impl RotaryTable {
    /// One for each of the model's rotations, for `positions` positions.
    pub(crate) fn of_rotations(config: &ModelConfig, positions: usize) -> Vec<RotaryTable> {
        let half = config.rotary_dim() / 2;
        let tables = rotary::tables(config, positions).into_iter();
        tables.map(|(cos, sin)| RotaryTable { cos, sin, half }).collect()
    }

    /// Cosines and sines of these positions, each `[positions, rotated dimensions / 2]`.
    pub(crate) fn turns(&self, positions: &[usize]) -> Result<[Tensor; 2]> {
        let of = |table: &[f32]| {
            let rows = positions.iter().flat_map(|position| &table[position * self.half..][..self.half]);
            let rows = rows.copied().collect::<Vec<f32>>();
            Tensor::from_vec(rows, (positions.len(), self.half), &Device::Cpu)
        };
        Ok([of(&self.cos)?, of(&self.sin)?])
    }

    /// Rotates a query or key of one head at this position.
    pub(crate) fn rotate(&self, position: usize, head: &mut [f32]) {
        let range = position * self.half..(position + 1) * self.half;
        rotate_half(&mut head[..2 * self.half], &self.cos[range.clone()], &self.sin[range]);
    }
}

/// Partial results and working memory of one thread of decode's attention.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    /// Scores of the heads that share keys, and then their exponentials: `[group, capacity]`.
    pub(crate) scores: Vec<f32>,
    /// `[rows, heads, head_dim]`: Σ e^(score − highest) · value over this thread's keys.
    pub(crate) weighted: Vec<f32>,
    /// `[rows, heads]`: the highest score, and the sum of e^(score − highest).
    pub(crate) sums: Vec<(f32, f32)>,
}

impl Share {
    pub(crate) fn new(config: &ModelConfig, capacity: usize) -> Share {
        let group = config.heads / config.kv_heads;
        let keys = capacity.max(config.audio.map_or(0, |audio| audio.positions()));
        Share { scores: vec![0.0; group * keys], weighted: Vec::new(), sums: Vec::new() }
    }

    /// Clears the results and makes room for `heads` heads of `width`, counted over all rows.
    pub(crate) fn clear(&mut self, heads: usize, width: usize) {
        self.weighted.clear();
        self.weighted.resize(heads * width, 0.0);
        self.sums.clear();
        self.sums.resize(heads, (f32::NEG_INFINITY, 0.0));
    }
}
