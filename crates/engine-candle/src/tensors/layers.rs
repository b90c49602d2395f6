//! Layers, without their attention.

use bundle::{Activation, ModelConfig, NormNames};
use candle_core::{Result, Tensor};
use candle_nn::ops;
use engine::EngineError;

use super::attention::Attention;
use super::sequences::{Cache, Step};
use super::upload::{Linear, Upload};

/// RMSNorm, or LayerNorm if there is a bias.
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
        let offset = if config.rms_norm { config.form.norm_offset } else { 0.0 };
        Ok(Norm {
            weight: upload.offset_vector(&names.weight, offset)?,
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

/// The residual stream x becomes x + multiplier · norm(block(norm(x))). Parts that the model lacks are left
/// out.
#[derive(Debug)]
struct SublayerNorms {
    before: Option<Norm>,
    behind: Option<Norm>,
    multiplier: Option<f64>,
}

impl SublayerNorms {
    fn read(
        upload: &Upload<'_>,
        config: &ModelConfig,
        norms: [&Option<NormNames>; 2],
    ) -> std::result::Result<SublayerNorms, EngineError> {
        let norm = |names: &Option<NormNames>| {
            names.as_ref().map(|names| Norm::read(upload, config, names)).transpose()
        };
        let [before, behind] = norms.map(norm);
        Ok(SublayerNorms { before: before?, behind: behind?, multiplier: config.form.residual_multiplier })
    }

    /// The block's input.
    fn enter(&self, x: &Tensor) -> Result<Tensor> {
        match &self.before {
            Some(norm) => norm.forward(x),
            None => Ok(x.clone()),
        }
    }

    /// `x` plus the block's output.
    fn leave(&self, x: &Tensor, y: Tensor) -> Result<Tensor> {
        let y = match &self.behind {
            Some(norm) => norm.forward(&y)?,
            None => y,
        };
        match self.multiplier {
            Some(multiplier) => x + (y * multiplier)?,
            None => x + y,
        }
    }
}

#[derive(Debug)]
pub(super) struct Layer {
    attention_norms: SublayerNorms,
    qkv: Linear,
    attention: Attention,
    output: Linear,
    mlp_norms: SublayerNorms,
    gate_up: Linear,
    down: Linear,
    activation: Activation,
    /// Outputs of the gate, if there is one.
    gate: Option<usize>,
}

impl Layer {
    pub(super) fn read(
        upload: &Upload<'_>,
        config: &ModelConfig,
        index: usize,
    ) -> std::result::Result<Layer, EngineError> {
        let names = config.layer(index);
        let place = |norms| SublayerNorms::read(upload, config, norms);
        Ok(Layer {
            attention_norms: place([&names.attention_norm, &names.post_attention_norm])?,
            qkv: upload.linear(&names.qkv)?,
            attention: Attention::read(upload, config, index)?,
            output: upload.linear(&names.output)?,
            mlp_norms: place([&names.mlp_norm, &names.post_mlp_norm])?,
            gate_up: upload.linear(&names.gate_up)?,
            down: upload.linear(&names.down)?,
            activation: config.activation,
            gate: config.gated_mlp.then_some(config.intermediate_size),
        })
    }

    /// The residual stream `x`, `[rows, hidden]`, plus the outputs of both blocks.
    pub(super) fn forward(&self, x: &Tensor, cache: &Cache, steps: &[Step]) -> Result<Tensor> {
        let qkv = self.qkv.forward(&self.attention_norms.enter(x)?)?;
        let attended = self.attention.forward(&qkv, cache, steps)?;
        let x = self.attention_norms.leave(x, self.output.forward(&attended)?)?;
        let gate_up = self.gate_up.forward(&self.mlp_norms.enter(&x)?)?;
        let activated = match self.gate {
            None => self.activate(&gate_up)?,
            Some(width) => {
                let gate = self.activate(&gate_up.narrow(1, 0, width)?)?;
                (gate * gate_up.narrow(1, width, width)?)?
            }
        };
        self.mlp_norms.leave(&x, self.down.forward(&activated)?)
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
