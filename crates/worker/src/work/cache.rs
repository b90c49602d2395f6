//! The state that a decoder keeps between two steps, converted between the protocol's types and the engine's.

use engine::{EngineError, HandedOver, InEffect, InferenceEngine, KvCachePolicy, Precision, Side};
use protocol::{CacheInEffect, CacheUsage, DecoderSettings, KvCache, Task};

/// The data type of keys and values.
pub(crate) fn precision(asked: &DecoderSettings, weights: Precision) -> Result<Precision, EngineError> {
    match asked.kv_precision.as_deref().map(str::parse).transpose().map_err(EngineError::Input)? {
        None => Ok(weights.usual_cache()),
        Some(asked) if Precision::CACHES.contains(&asked) => Ok(asked),
        Some(other) => {
            Err(EngineError::Input(format!("no KV cache is kept in {other}: take f32, bf16 or f16")))
        }
    }
}

/// How they are kept by the requests of a task.
pub(crate) fn in_effect(observed: &InEffect, task: &Task) -> CacheInEffect {
    let asked = match task {
        Task::Measure(measure) => measure.work.kv_cache(),
        Task::Answer(answer) => answer.work.kv_cache(),
        _ => KvCache::On,
    };
    let policy = match (asked, observed.kv_cache_policy) {
        (_, KvCachePolicy::None) => "none",
        (KvCache::Off, _) => "recomputed",
        (KvCache::On, KvCachePolicy::Preallocated) => "preallocated",
        (KvCache::On, KvCachePolicy::Growing) => "growing",
    };
    CacheInEffect { precision: observed.kv_cache.name().into(), policy: policy.into() }
}

/// The two engines of a decoder, if it is a hybrid.
pub(crate) fn hybrid<E: InferenceEngine>(engine: &mut E) -> Option<engine::Hybrid> {
    engine.decode().ok()?.hybrid()
}

/// A hand-over of keys and values, and how long it took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandOver {
    pub(crate) handed: HandedOver,
    pub(crate) ns: u64,
}

/// The hand-overs of all measured requests so far.
#[derive(Default)]
pub(crate) struct Kept(Option<protocol::HandOver>);

impl Kept {
    pub(crate) fn add(&mut self, of_request: Option<HandOver>) {
        let Some(HandOver { handed, ns }) = of_request else { return };
        let (times, bytes, before) = self.0.as_ref().map_or((0, 0, 0), |all| (all.times, all.bytes, all.ns));
        self.0 = Some(protocol::HandOver {
            times: times + 1,
            bytes: bytes + handed.bytes,
            ns: before + ns,
            prefill_address: handed.addresses[0] as u64,
            decode_address: handed.addresses[1] as u64,
            obstacle: None,
        });
    }

    /// With the size of the buffers that hold keys and values, as they are allocated.
    pub(crate) fn usage<E: InferenceEngine>(self, engine: &mut E) -> CacheUsage {
        let bytes = engine.decode().ok().and_then(|decoder| decoder.kv_cache_bytes());
        let hand_over = self.0.map(|of_all| {
            let obstacle = hybrid(engine).and_then(|hybrid| hybrid.obstacle).map(Into::into);
            protocol::HandOver { obstacle, ..of_all }
        });
        let padding = engine.decode().ok().and_then(|decoder| decoder.padding()).map(|padding| {
            let side = if padding.side == Side::Left { "left" } else { "right" };
            protocol::Padding { side: side.into(), computed: padding.computed as u64 }
        });
        CacheUsage { bytes, hand_over, padding }
    }
}
