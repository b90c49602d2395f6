//! The memory of one batch of sequences, allocated when it begins.

use std::sync::atomic::{AtomicUsize, Ordering};

use bundle::{ModelConfig, rotary};
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Tensor, bail};
use worker::engine::{CacheMemory, EngineError, HandOver, Plane};

use crate::Candle;
use crate::math::rotate_half;
use crate::model::framework;
use crate::parallel::threads;
use crate::share::Share;

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
            shares: vec![Share::new(config, capacity); threads()],
        })
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
        let held = if config.causal { config.layers } else { 1 };
        let lanes = batch * config.kv_heads;
        let all = Tensor::zeros((2 * held, lanes, capacity, config.head_dim), dtype, device)?;
        let cache = |layer: usize| Ok(Cache { keys: all.get(2 * layer)?, values: all.get(2 * layer + 1)? });
        (0..config.layers).map(|layer| cache(layer % held)).collect()
    }

    /// Keys and values of one sequence, in the same memory.
    pub(crate) fn of_sequence(&self, sequence: usize, kv_heads: usize) -> Result<Cache> {
        let part = |all: &Tensor| all.narrow(0, sequence * kv_heads, kv_heads);
        Ok(Cache { keys: part(&self.keys)?, values: part(&self.values)? })
    }

    /// Allocated bytes.
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

    /// Drops all positions of a growing cache.
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

    /// Rotates a query or key of one head at this position.
    pub(crate) fn rotate(&self, position: usize, head: &mut [f32]) {
        let range = position * self.half..(position + 1) * self.half;
        rotate_half(&mut head[..2 * self.half], &self.cos[range.clone()], &self.sin[range]);
    }
}

// Sharing keys and values with another engine of the process ([`engine::HandOver`]), as plain memory.
//
// candle cannot make a tensor over memory that it does not own: its storage on a CPU is a `Vec`, which frees
// its memory. So candle can lend its memory but not use another engine's.

impl HandOver for Candle {
    fn export(&mut self) -> std::result::Result<CacheMemory, EngineError> {
        let nothing =
            "keys and values of candle are asked for before begin, or are not in f32 in main memory";
        let memory = self.body.decoder()?.cache_memory().map_err(framework)?;
        memory.filter(|_| self.batch > 0).ok_or_else(|| EngineError::Input(nothing.into()))
    }

    #[allow(unsafe_code)]
    unsafe fn begin_in(
        &mut self,
        _batch: usize,
        _capacity: usize,
        _memory: &CacheMemory,
    ) -> std::result::Result<(), EngineError> {
        Err(EngineError::Unsupported("makes no tensor over memory that it does not own".into()))
    }

    fn set_filled(&mut self, positions: usize) -> std::result::Result<(), EngineError> {
        if positions > self.capacity {
            let capacity = self.capacity;
            return Err(EngineError::Input(format!(
                "{positions} positions do not fit the capacity of {capacity}"
            )));
        }
        self.filled = positions;
        Ok(())
    }
}

/// The addresses of the keys and values of `caches`, each of this shape.
pub(crate) fn memory(caches: &[Cache], shape: [usize; 4]) -> Result<CacheMemory> {
    let plane = |tensor: &Tensor| -> Result<Plane> { Ok(Plane::contiguous(address(tensor)?, shape)) };
    let layers = caches.iter().map(|cache| Ok([plane(&cache.keys)?, plane(&cache.values)?]));
    Ok(CacheMemory { layers: layers.collect::<Result<_>>()? })
}

/// The address of a tensor's first element, for writing.
fn address(tensor: &Tensor) -> Result<usize> {
    let address = Address(AtomicUsize::new(0));
    tensor.inplace_op1(&address)?;
    Ok(address.0.into_inner())
}

/// Changes nothing. Only in-place operations get write access to a tensor's memory from candle.
struct Address(AtomicUsize);

impl InplaceOp1 for Address {
    fn name(&self) -> &'static str {
        "address"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(numbers) = storage else { bail!("keys and values are not f32") };
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("the cache is not contiguous") };
        self.0.store(numbers[start..end].as_mut_ptr() as usize, Ordering::Relaxed);
        Ok(())
    }
}
