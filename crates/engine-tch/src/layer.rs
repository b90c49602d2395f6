//! The common parts of the three implementations of a layer.

use bundle::{Activation, LayerAttention, ModelConfig};
use tch::{Kind, TchError, Tensor};

use crate::norm::Residual;
use crate::sequences::Step;

/// One layer, in one of the three implementations.
pub(crate) trait Layer {
    /// Adds the layer's output to `residual`, and its keys and values to the cache.
    fn forward(&self, residual: &mut Residual, step: &mut Step, index: usize) -> Result<(), TchError>;
}

/// Numbers of heads and their width.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) query: i64,
    /// Heads of keys, and also of values.
    pub(crate) kv: i64,
    pub(crate) dim: i64,
}

impl Heads {
    pub(crate) fn from_config(config: &ModelConfig) -> Heads {
        Heads { query: config.heads as i64, kv: config.kv_heads as i64, dim: config.head_dim as i64 }
    }
}

/// Differences between a layer's attention and llama's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) layer: LayerAttention,
    /// Factor of the scores, if it is not 1/√dim.
    pub(crate) scale: Option<f64>,
    /// Soft bound of the scores.
    pub(crate) cap: Option<f64>,
}

impl Manner {
    pub(crate) fn from_config(config: &ModelConfig, index: usize) -> Manner {
        let (layer, form) = (config.layer_attention(index), &config.form);
        Manner { layer, scale: form.attention_scale, cap: form.attention_cap }
    }

    /// The softmax of unscaled `scores`, `[.., positions, keys]`, after scaling, cap and mask.
    pub(crate) fn shares(
        &self,
        scores: &Tensor,
        dim: i64,
        mask: Option<&Tensor>,
        kind: Kind,
    ) -> Result<Tensor, TchError> {
        let mut scores = scores.f_mul_scalar(self.scale.unwrap_or(1.0 / (dim as f64).sqrt()))?;
        if let Some(cap) = self.cap {
            scores = scores.f_div_scalar(cap)?.f_tanh()?.f_mul_scalar(cap)?;
        }
        if let Some(mask) = mask {
            scores = scores.f_add(mask)?;
        }
        scores.f_softmax(-1, Kind::Float)?.f_to_kind(kind)
    }
}

pub(crate) fn activate(x: &Tensor, activation: Activation) -> Result<Tensor, TchError> {
    match activation {
        Activation::Silu => x.f_silu(),
        Activation::GeluTanh => x.f_gelu("tanh"),
        Activation::GeluErf => x.f_gelu("none"),
        Activation::Relu => x.f_relu(),
    }
}
