//! The feed-forward block.

use bundle::{Activation, LayerNames, ModelConfig};
use candle_core::{Device, Result, Tensor};
use engine::EngineError;

use crate::linear::Linear;
use crate::math::{gelu_erf, gelu_tanh, silu};
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::with_f32;

/// down(act(gate(x)) · up(x)), or down(act(up(x))) without a gate.
#[derive(Debug)]
pub(crate) struct Mlp {
    gate_up: Linear,
    down: Linear,
    activation: Activation,
    gated: bool,
    intermediate: usize,
}

impl Mlp {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        names: &LayerNames,
    ) -> std::result::Result<Mlp, EngineError> {
        Ok(Mlp {
            gate_up: Linear::read(reader, &names.gate_up)?,
            down: Linear::read(reader, &names.down)?,
            activation: config.activation,
            gated: config.gated_mlp,
            intermediate: config.intermediate_size,
        })
    }

    pub(crate) fn linears(&self) -> [&Linear; 2] {
        [&self.gate_up, &self.down]
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gate_up = self.gate_up.forward(x)?;
        let activated = match self.activation {
            Activation::Silu => self.activate(&gate_up, silu),
            Activation::GeluTanh => self.activate(&gate_up, gelu_tanh),
            Activation::GeluErf => self.activate(&gate_up, gelu_erf),
            Activation::Relu => self.activate(&gate_up, |x| x.max(0.0)),
        }?;
        self.down.forward(&activated)
    }

    /// Generic over the function, so that each is inlined into a vectorised loop of its own.
    fn activate(&self, gate_up: &Tensor, function: impl Fn(f32) -> f32 + Send + Sync) -> Result<Tensor> {
        let width = self.intermediate;
        let rows = gate_up.dim(0)?;
        let mut activated = vec![0.0; rows * width];
        with_f32(gate_up, |gate_up| {
            for_each_chunk(&mut activated, width, |row, out| {
                if self.gated {
                    let (gate, up) = gate_up[row * 2 * width..][..2 * width].split_at(width);
                    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                        *out = function(*gate) * up;
                    }
                } else {
                    let x = &gate_up[row * width..][..width];
                    out.iter_mut().zip(x).for_each(|(out, x)| *out = function(*x));
                }
            });
        })?;
        Tensor::from_vec(activated, (rows, width), &Device::Cpu)
    }
}
