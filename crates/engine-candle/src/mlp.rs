//! The feed-forward block.

use bundle::{Activation, LayerNames, ModelConfig};
use candle_core::{Device, Result, Tensor};
use engine::EngineError;

use crate::linear::Linear;
use crate::math::activate;
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::{change_f32, with_f32};

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
        if self.gated {
            return self.down.forward(&self.gate(&gate_up)?);
        }
        let width = self.intermediate;
        change_f32(&gate_up, |x| for_each_chunk(x, width, |_, row| activate(row, self.activation)))?;
        self.down.forward(&gate_up)
    }

    /// act(gate) · up
    fn gate(&self, gate_up: &Tensor) -> Result<Tensor> {
        let width = self.intermediate;
        let rows = gate_up.dim(0)?;
        let mut gated = vec![0.0; rows * width];
        with_f32(gate_up, |gate_up| {
            for_each_chunk(&mut gated, width, |row, out| {
                let (gate, up) = gate_up[row * 2 * width..][..2 * width].split_at(width);
                out.copy_from_slice(gate);
                activate(out, self.activation);
                out.iter_mut().zip(up).for_each(|(out, up)| *out *= up);
            });
        })?;
        Tensor::from_vec(gated, (rows, width), &Device::Cpu)
    }
}
