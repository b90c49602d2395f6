//! The norms and the residual addition around a block of a layer.

use bundle::{ModelConfig, NormNames, NormPlacement};
use candle_core::{Result, Tensor, bail};
use engine::EngineError;

use crate::math::{add, add_times};
use crate::norm::Norm;
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::{change_f32, with_f32};

/// The residual stream x becomes norm(x + multiplier · norm(block(norm(x)))). Parts that the model lacks are
/// left out.
#[derive(Debug)]
pub(crate) struct SublayerNorms {
    before: Option<Norm>,
    behind: Option<Norm>,
    of_sum: Option<Norm>,
    multiplier: Option<f32>,
}

impl SublayerNorms {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        [before, behind]: [&Option<NormNames>; 2],
    ) -> std::result::Result<SublayerNorms, EngineError> {
        let behind = Norm::read_optional(reader, config, behind.as_ref())?;
        let (behind, of_sum) = match config.form.norms {
            NormPlacement::OfSum => (None, behind),
            _ => (behind, None),
        };
        Ok(SublayerNorms {
            before: Norm::read_optional(reader, config, before.as_ref())?,
            behind,
            of_sum,
            multiplier: config.form.residual_multiplier.map(|multiplier| multiplier as f32),
        })
    }

    /// The block's input, `[rows, width]`.
    pub(crate) fn enter(&self, x: &Tensor) -> Result<Tensor> {
        match &self.before {
            Some(norm) => norm.forward(x),
            None => Ok(x.clone()),
        }
    }

    /// Adds the block's output `y` to `x`, in place.
    pub(crate) fn leave(&self, x: &Tensor, y: Tensor) -> Result<()> {
        let (_, width) = x.dims2()?;
        if y.dims() != x.dims() {
            bail!("a sum of {:?} and {:?}", x.dims(), y.dims());
        }
        if let Some(norm) = &self.behind {
            norm.change(&y)?;
        }
        with_f32(&y, |y| {
            change_f32(x, |x| {
                for_each_chunk(x, width, |row, x| {
                    let y = &y[row * width..][..width];
                    match self.multiplier {
                        None => add(x, y),
                        Some(multiplier) => add_times(x, y, multiplier),
                    }
                    if let Some(norm) = &self.of_sum {
                        norm.norm_row(x);
                    }
                });
            })
        })?
    }
}
