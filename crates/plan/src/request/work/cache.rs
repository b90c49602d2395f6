//! Whether keys and values are kept, and in which type.

use bundle::Precision;
use protocol::{DecoderSettings, KvCache};
use serde::{Deserialize, Serialize};

use crate::Request;

/// The element type asked for the KV cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvPrecision {
    /// 16 bits of the same type if the weights have 16 bits; else f32.
    #[default]
    Auto,
    F32,
    Bf16,
    F16,
}

impl KvPrecision {
    pub const ALL: [KvPrecision; 4] =
        [KvPrecision::Auto, KvPrecision::F32, KvPrecision::Bf16, KvPrecision::F16];

    pub fn name(self) -> &'static str {
        match self {
            KvPrecision::Auto => "auto",
            KvPrecision::F32 => "f32",
            KvPrecision::Bf16 => "bf16",
            KvPrecision::F16 => "f16",
        }
    }

    pub fn is_auto(&self) -> bool {
        *self == KvPrecision::Auto
    }

    /// The element type for weights of precision `weights`: f32, bf16 or f16.
    pub fn beside(self, weights: Precision) -> Precision {
        match self {
            KvPrecision::Auto => weights.usual_cache(),
            KvPrecision::F32 => Precision::F32,
            KvPrecision::Bf16 => Precision::Bf16,
            KvPrecision::F16 => Precision::F16,
        }
    }
}

/// How a contender is asked to keep keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheAsked {
    #[serde(rename = "kv_cache")]
    pub policy: KvCache,
    /// `None` in results of versions that left it to the engines.
    #[serde(rename = "kv_precision", default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<KvPrecision>,
}

impl Default for CacheAsked {
    fn default() -> CacheAsked {
        CacheAsked { policy: KvCache::On, precision: Some(KvPrecision::Auto) }
    }
}

impl CacheAsked {
    /// Whether they are kept from one token to the next.
    pub fn is_on(self) -> bool {
        self.policy == KvCache::On
    }

    /// The element type for weights of precision `weights`: f32, bf16 or f16.
    pub fn element(self, weights: Precision) -> Option<Precision> {
        Some(self.precision?.beside(weights))
    }

    /// The settings for a worker.
    pub fn settings(self, weights: Precision) -> DecoderSettings {
        let kv_precision = self.element(weights).map(|element| element.name().to_owned());
        DecoderSettings { kv_precision, autoregressive: false }
    }
}

impl Request {
    /// Asks for keys and values of this type.
    pub(crate) fn keep_in(&mut self, precision: KvPrecision) {
        self.kv_precision = precision;
    }

    /// How every contender keeps keys and values.
    pub fn cache(&self) -> CacheAsked {
        CacheAsked { policy: self.kv_cache, precision: Some(self.kv_precision) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_has_16_bits_where_the_weights_have() {
        let beside = |weights| KvPrecision::Auto.beside(weights).name();
        assert_eq!(Precision::ALL.map(beside).join(" "), "f32 bf16 f16 f32 f32 f32");
    }

    #[test]
    fn what_is_asked_for_holds_beside_any_weights() {
        for asked in &KvPrecision::ALL[1..] {
            assert!(Precision::ALL.iter().all(|&weights| asked.beside(weights).name() == asked.name()));
        }
    }
}
