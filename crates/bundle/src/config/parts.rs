//! Values that configurations of several families share.

use super::model::Activation;
use crate::error::BundleError;

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

pub(super) fn even_share(hidden_size: usize, heads: usize) -> Result<usize, BundleError> {
    if heads == 0 || !hidden_size.is_multiple_of(heads) {
        return Err(BundleError::Config(format!(
            "hidden size {hidden_size} does not divide into {heads} heads"
        )));
    }
    Ok(hidden_size / heads)
}
