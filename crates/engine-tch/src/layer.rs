//! What the three ways to compute a layer have in common.

use bundle::{Activation, ModelConfig};
use tch::{TchError, Tensor};

use crate::norm::Residual;
use crate::sequences::Step;

/// One layer, in one of the three ways.
pub(crate) trait Layer {
    /// Adds what the layer computes to `residual`, and its keys and values to the cache.
    fn forward(&self, residual: &mut Residual, step: &mut Step, index: usize) -> Result<(), TchError>;
}

/// How many heads there are, and how wide they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) query: i64,
    /// Heads of keys; there are as many of values.
    pub(crate) kv: i64,
    pub(crate) dim: i64,
}

impl Heads {
    pub(crate) fn from_config(config: &ModelConfig) -> Heads {
        Heads { query: config.heads as i64, kv: config.kv_heads as i64, dim: config.head_dim as i64 }
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
