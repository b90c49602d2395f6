//! A block's place in a layer: what the residual stream goes through before it and what comes of it behind.

use bundle::{ModelConfig, NormNames};
use candle_core::{Device, Result, Tensor};
use engine::EngineError;

use crate::math::{add, add_times};
use crate::norm::Norm;
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::with_f32;

/// The residual stream is `x`: it becomes x + multiplier · norm(block(norm(x))), with those parts that the model has.
#[derive(Debug)]
pub(crate) struct Place {
    before: Option<Norm>,
    behind: Option<Norm>,
    multiplier: Option<f32>,
}

impl Place {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        [before, behind]: [&Option<NormNames>; 2],
    ) -> std::result::Result<Place, EngineError> {
        Ok(Place {
            before: Norm::read_optional(reader, config, before.as_ref())?,
            behind: Norm::read_optional(reader, config, behind.as_ref())?,
            multiplier: config.form.residual_multiplier.map(|multiplier| multiplier as f32),
        })
    }

    /// What the block takes: `[rows, width]`.
    pub(crate) fn enter(&self, x: &[f32], width: usize) -> Result<Tensor> {
        match &self.before {
            Some(norm) => norm.forward(x),
            None => Tensor::from_slice(x, (x.len() / width, width), &Device::Cpu),
        }
    }

    /// Adds what the block gave.
    pub(crate) fn leave(&self, x: &mut [f32], y: &Tensor) -> Result<()> {
        let width = y.dim(1)?;
        let normed;
        let y = match &self.behind {
            Some(norm) => {
                normed = with_f32(y, |y| norm.forward(y))??;
                &normed
            }
            None => y,
        };
        with_f32(y, |y| {
            for_each_chunk(x, width, |row, x| {
                let y = &y[row * width..][..width];
                match self.multiplier {
                    None => add(x, y),
                    Some(multiplier) => add_times(x, y, multiplier),
                }
            });
        })
    }
}
