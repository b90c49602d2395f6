//! The interface between the adapter and its decoders.

use bundle::ModelConfig;
use candle_core::Result;
use engine::{CacheMemory, InEffect, KvCachePolicy, Want};

use crate::sequences::Cache;

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

    /// As [`engine::Decode::kv_cache_bytes`].
    fn kv_cache_bytes(&self) -> Option<u64>;

    /// The addresses of keys and values, for [`engine::HandOver::export`]; `None` if there are none, or not
    /// in f32 in main memory.
    fn cache_memory(&mut self) -> Result<Option<CacheMemory>> {
        Ok(None)
    }

    /// Appends `tokens`, `[batch, positions]`, after the `filled` positions of the sequences. Writes the
    /// logits to `logits` and the hidden states to `hidden`, if given. Complete on return.
    fn append(
        &mut self,
        tokens: &[u32],
        filled: usize,
        want: Want,
        logits: &mut Vec<f32>,
        hidden: Option<&mut Vec<Vec<f32>>>,
    ) -> Result<()>;

    /// Appends prompts of different lengths to empty sequences, for the logits of each one's last token. All
    /// prompts end at the same cache position: shorter ones have padding before them, in the cache and
    /// nowhere else.
    fn append_each(
        &mut self,
        tokens: (&[u32], &[usize]),
        logits: &mut Vec<f32>,
        hidden: Option<&mut Vec<Vec<f32>>>,
    ) -> Result<()>;

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
