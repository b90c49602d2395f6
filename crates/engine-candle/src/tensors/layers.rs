//! What a layer is made of, but for its attention.

use bundle::{Activation, ModelConfig, NormNames};
use candle_core::{Result, Tensor};
use candle_nn::ops;
use engine::EngineError;

use super::attention::Attention;
use super::sequences::{Cache, Step};
use super::upload::{Linear, Upload};

/// RMSNorm, or LayerNorm where there is a bias.
#[derive(Debug)]
pub(super) struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    epsilon: f32,
}

impl Norm {
    pub(super) fn read(
        upload: &Upload<'_>,
        config: &ModelConfig,
        names: &NormNames,
    ) -> std::result::Result<Norm, EngineError> {
        Ok(Norm {
            weight: upload.named_vector(&names.weight)?,
            bias: names.bias.as_deref().map(|name| upload.named_vector(name)).transpose()?,
            epsilon: config.norm_epsilon as f32,
        })
    }

    /// Over the last dimension of contiguous `x`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            None => ops::rms_norm(x, &self.weight, self.epsilon),
            Some(bias) => ops::layer_norm(x, &self.weight, bias, self.epsilon),
        }
    }
}

#[derive(Debug)]
pub(super) struct Layer {
    attention_norm: Norm,
    qkv: Linear,
    attention: Attention,
    output: Linear,
    mlp_norm: Norm,
    gate_up: Linear,
    down: Linear,
    activation: Activation,
    /// Outputs of the gate, where there is one.
    gate: Option<usize>,
}

impl Layer {
    pub(super) fn read(
        upload: &Upload<'_>,
        config: &ModelConfig,
        index: usize,
    ) -> std::result::Result<Layer, EngineError> {
        let names = config.layer(index);
        Ok(Layer {
            attention_norm: Norm::read(upload, config, &names.attention_norm)?,
            qkv: upload.linear(&names.qkv)?,
            attention: Attention::read(upload, config, &names)?,
            output: upload.linear(&names.output)?,
            mlp_norm: Norm::read(upload, config, &names.mlp_norm)?,
            gate_up: upload.linear(&names.gate_up)?,
            down: upload.linear(&names.down)?,
            activation: config.activation,
            gate: config.gated_mlp.then_some(config.intermediate_size),
        })
    }

    /// The residual stream `x`, `[rows, hidden]`, with both blocks added to it.
    pub(super) fn forward(&self, x: &Tensor, cache: &Cache, step: &Step) -> Result<Tensor> {
        let qkv = self.qkv.forward(&self.attention_norm.forward(x)?)?;
        let x = (x + self.output.forward(&self.attention.forward(&qkv, cache, step)?)?)?;
        let gate_up = self.gate_up.forward(&self.mlp_norm.forward(&x)?)?;
        let activated = match self.gate {
            None => self.activate(&gate_up)?,
            Some(width) => {
                let gate = self.activate(&gate_up.narrow(1, 0, width)?)?;
                (gate * gate_up.narrow(1, width, width)?)?
            }
        };
        x + self.down.forward(&activated)?
    }

    fn activate(&self, x: &Tensor) -> Result<Tensor> {
        match self.activation {
            Activation::Silu => x.silu(),
            Activation::GeluTanh => x.gelu(),
            Activation::GeluErf => x.gelu_erf(),
            Activation::Relu => x.relu(),
        }
    }
}
