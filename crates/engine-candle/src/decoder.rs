//! The interface between the adapter and its decoders, and the hand-over of their keys and values.

use std::sync::atomic::{AtomicUsize, Ordering};

use bundle::ModelConfig;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
use worker::engine::{
    self, CacheMemory, EngineError, HandsOver, InEffect, KvCachePolicy, Plane, Want, check_filled,
};

use crate::Candle;
use crate::reader::framework;
use crate::sequences::Cache;

/// The results of an append.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) logits: Vec<f32>,
    /// As in [`engine::HiddenStates`], if they are kept.
    pub(crate) hidden: Option<Vec<Vec<f32>>>,
}

/// A model, and the batch of sequences that it continues.
pub(crate) trait Decoder: std::fmt::Debug {
    fn config(&self) -> &ModelConfig;

    fn in_effect(&self) -> InEffect;

    /// Makes room for `batch` sequences of `capacity` tokens, instead of the previous room.
    fn reserve(&mut self, batch: usize, capacity: usize) -> Result<()>;

    /// Begins new sequences in the same room.
    fn restart(&mut self) -> Result<()> {
        Ok(())
    }

    fn kv_cache_bytes(&self) -> Option<u64>;

    /// The addresses of keys and values, for [`engine::HandsOver::export`]; `None` if there are none, or not
    /// in f32 in main memory.
    fn cache_memory(&mut self) -> Result<Option<CacheMemory>> {
        Ok(None)
    }

    /// Encodes audio, for the appends that follow.
    fn listen(&mut self, frames: &[f32]) -> Result<()>;

    /// Appends `tokens`, `[batch, positions]`, after the `filled` positions of the sequences. Complete on
    /// return.
    fn append(&mut self, tokens: &[u32], filled: usize, want: Want, answer: &mut Answer) -> Result<()>;

    /// Appends prompts of different lengths to empty sequences, for the logits of each one's last token. All
    /// prompts end at the same cache position: shorter ones have padding before them, in the cache and
    /// nowhere else.
    fn append_each(&mut self, tokens: (&[u32], &[usize]), answer: &mut Answer) -> Result<()>;

    /// Whether caches have no spare room.
    fn grows(&self) -> bool {
        false
    }
}

/// How keys and values are kept from one append to the next.
pub(crate) fn policy(config: &ModelConfig) -> KvCachePolicy {
    // An encoder keeps nothing, even if it is causal.
    if config.causal && config.encoder.is_none() { KvCachePolicy::Preallocated } else { KvCachePolicy::None }
}

/// As [`engine::Decode::kv_cache_bytes`]. Without causal attention nothing is kept, so there is no cache.
pub(crate) fn cache_bytes(config: &ModelConfig, caches: &[Cache]) -> Option<u64> {
    config.causal.then(|| caches.iter().map(Cache::bytes).sum())
}

// Sharing keys and values with another engine of the process ([`engine::HandsOver`]), as plain memory.
//
// candle cannot make a tensor over memory that it does not own: its storage on a CPU is a `Vec`, which frees
// its memory. So candle can lend its memory but not use another engine's.

impl HandsOver for Candle {
    fn export(&mut self) -> engine::Result<CacheMemory> {
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
    ) -> engine::Result<()> {
        Err(EngineError::Unsupported("makes no tensor over memory that it does not own".into()))
    }

    fn set_filled(&mut self, positions: usize) -> engine::Result<()> {
        check_filled(positions, self.capacity)?;
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
