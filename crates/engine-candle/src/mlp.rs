//! The feed-forward block.

use bundle::{Activation, LayerNames, ModelConfig};
use candle_core::{Result, Tensor};
use engine::EngineError;

use crate::linear::Linear;
use crate::math::activate;
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::change_f32;

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
        let activated = if self.gated {
            self.gate_up.combined(x, |gate, up| {
                activate(gate, self.activation);
                gate.iter_mut().zip(up).for_each(|(gate, up)| *gate *= up);
            })?
        } else {
            let up = self.gate_up.forward(x)?;
            change_f32(&up, |x| {
                for_each_chunk(x, self.intermediate, |_, row| activate(row, self.activation))
            })?;
            up
        };
        self.down.forward(&activated)
    }
}
