//! Activations, and their names in a config.json.

use serde::{Deserialize, Serialize};

use crate::error::BundleError;

/// Between the two linear layers of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x · σ(x)
    Silu,
    /// tanh approximation of GELU (`gelu_new`, `gelu_pytorch_tanh`)
    GeluTanh,
    /// exact GELU, by the error function
    GeluErf,
    Relu,
}

pub(super) fn activation(name: &str) -> Result<Activation, BundleError> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::GeluErf,
        "relu" => Activation::Relu,
        other => {
            let reason =
                format!("activation {other:?} is not supported; supported are silu, gelu, gelu_new and relu");
            return Err(BundleError::Config(reason));
        }
    })
}
