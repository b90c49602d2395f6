//! What a layer is made of, but for its attention.

use bundle::{Activation, LinearNames, ModelConfig, NormNames};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops;
use engine::EngineError;

use super::attention::Attention;
use super::sequences::{Cache, Step};
use crate::framework;
use crate::reader::Reader;
use crate::weight::Weight;

/// Reads a bundle's tensors onto a device, in one element type.
pub(super) struct Upload<'a> {
    pub(super) reader: Reader<'a>,
    pub(super) device: Device,
    pub(super) dtype: DType,
}

impl Upload<'_> {
    pub(super) fn matrix(&self, name: &str) -> std::result::Result<Tensor, EngineError> {
        self.weight(self.reader.matrix(name)?)
    }

    pub(super) fn linear(&self, names: &LinearNames) -> std::result::Result<Linear, EngineError> {
        let weight = self.weight(self.reader.stacked(names)?)?;
        let bias = self.reader.stacked_bias(names)?.map(|bias| self.vector(bias)).transpose()?;
        Linear::new(&weight, bias).map_err(framework)
    }

    pub(super) fn named_vector(&self, name: &str) -> std::result::Result<Tensor, EngineError> {
        self.vector(self.reader.vector(name)?)
    }

    fn vector(&self, vector: Vec<f32>) -> std::result::Result<Tensor, EngineError> {
        let vector = Tensor::new(vector, &Device::Cpu).and_then(|vector| vector.to_dtype(self.dtype));
        vector.and_then(|vector| vector.to_device(&self.device)).map_err(framework)
    }

    fn weight(&self, weight: Weight) -> std::result::Result<Tensor, EngineError> {
        match weight {
            Weight::Plain(weight) => weight.to_device(&self.device).map_err(framework),
            Weight::Blocks(_) => Err(EngineError::Unsupported(
                "candle's quantised kernels are driven on a CPU alone: use f32, bf16 or f16".into(),
            )),
        }
    }
}

/// y = x · weightᵀ + bias
#[derive(Debug)]
pub(super) struct Linear {
    /// `[in, out]`: a view of what is held as `[out, in]`.
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Of a weight `[out, in]`.
    pub(super) fn new(weight: &Tensor, bias: Option<Tensor>) -> Result<Linear> {
        Ok(Linear { weight: weight.t()?, bias })
    }

    /// `[rows, in]` → `[rows, out]`
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

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
