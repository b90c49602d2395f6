//! RMSNorm and LayerNorm.

use bundle::NormNames;
use burn_backend::ops::ModuleOps;
use burn_flex::Flex;
use worker::engine::EngineError;

use crate::reader::Reader;
use crate::tensor::{Tensor, dims, multiply, reshape, rms_norm};

#[derive(Debug, Clone)]
pub(crate) struct Norm {
    /// `[hidden]`
    weight: Tensor,
    /// A LayerNorm has one, an RMSNorm has none.
    bias: Option<Tensor>,
    epsilon: f64,
}

impl Norm {
    pub(crate) fn read(reader: &Reader, names: &NormNames, epsilon: f64) -> Result<Norm, EngineError> {
        let bias = names.bias.as_ref().map(|name| reader.one(name)).transpose()?;
        Ok(Norm { weight: reader.one(&names.weight)?, bias, epsilon })
    }

    /// `[rows, hidden]` → the same
    pub(crate) fn forward(&self, x: Tensor) -> Tensor {
        let weight = self.weight.clone();
        match &self.bias {
            Some(bias) => Flex::layer_norm(x, weight, Some(bias.clone()), self.epsilon),
            None => {
                let [width] = dims(&weight);
                multiply(rms_norm(x, self.epsilon), reshape(weight, [1, width]))
            }
        }
    }
}
