//! What the adapter asks of a model, whichever of candle's ways it computes in.

use bundle::ModelConfig;
use candle_core::Result;
use engine::{CacheMemory, InEffect, KvCachePolicy, Want};

use crate::sequences::Cache;

/// A model, and the batch of sequences that it continues.
pub(crate) trait Decoder: std::fmt::Debug {
    fn config(&self) -> &ModelConfig;

    fn in_effect(&self) -> InEffect;

    /// Room for `batch` sequences of `capacity` tokens, in place of what there was.
    fn reserve(&mut self, batch: usize, capacity: usize) -> Result<()>;

    /// Begins such sequences anew, in the same room.
    fn restart(&mut self) -> Result<()> {
        Ok(())
    }

    /// As [`engine::Decode::kv_cache_bytes`].
    fn kv_cache_bytes(&self) -> Option<u64>;

    /// Where keys and values are, as [`engine::HandOver::export`] has it; `None` where there are none, or not in f32 in
    /// main memory.
    fn cache_memory(&mut self) -> Result<Option<CacheMemory>> {
        Ok(None)
    }

    /// Appends `tokens`, `[batch, positions]`, behind the `filled` positions of the sequences. Logits go to
    /// `logits`, and the hidden states to `hidden` where there is one. Complete on return.
    fn append(
        &mut self,
        tokens: &[u32],
        filled: usize,
        want: Want,
        logits: &mut Vec<f32>,
        hidden: Option<&mut Vec<Vec<f32>>>,
    ) -> Result<()>;

    /// Appends so many tokens of each sequence, of which nothing is filled, for the logits of the last of each. They end
    /// at the same place: those that are shorter have padding before them in the cache, and nowhere else.
    fn append_each(
        &mut self,
        tokens: (&[u32], &[usize]),
        logits: &mut Vec<f32>,
        hidden: Option<&mut Vec<Vec<f32>>>,
    ) -> Result<()>;

    /// Whether caches have no room ahead.
    fn grows(&self) -> bool {
        false
    }
}

/// What is kept of keys and values from one append to the next.
pub(crate) fn policy(config: &ModelConfig) -> KvCachePolicy {
    // An encoder keeps nothing, not even one whose tokens see those before them alone.
    if config.causal && config.encoder.is_none() { KvCachePolicy::Preallocated } else { KvCachePolicy::None }
}

/// As [`engine::Decode::kv_cache_bytes`]. What is not kept is no cache.
pub(crate) fn cache_bytes(config: &ModelConfig, caches: &[Cache]) -> Option<u64> {
    config.causal.then(|| caches.iter().map(Cache::bytes).sum())
}
