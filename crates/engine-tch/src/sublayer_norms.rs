//! The norms and the residual addition around a block of a layer.

use bundle::{ModelConfig, NormNames};
use engine::EngineError;
use tch::{TchError, Tensor};

use crate::norm::{Norm, Residual, RmsNorm};
use crate::reader::Reader;

/// The residual stream x becomes x + multiplier · norm(block(norm(x))). Parts that the model lacks are left
/// out.
pub(crate) struct SublayerNorms {
    pub(crate) before: Option<Norm>,
    behind: Option<Norm>,
    multiplier: Option<f64>,
}

impl SublayerNorms {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        norms: [&Option<NormNames>; 2],
        rms_norm: RmsNorm,
    ) -> Result<SublayerNorms, EngineError> {
        let norm = |names: &Option<NormNames>| {
            names.as_ref().map(|names| Norm::read(reader, config, names, rms_norm)).transpose()
        };
        let [before, behind] = norms.map(norm);
        Ok(SublayerNorms { before: before?, behind: behind?, multiplier: config.form.residual_multiplier })
    }

    /// The block's input.
    pub(crate) fn enter(&self, residual: &Residual) -> Result<Tensor, TchError> {
        match &self.before {
            Some(norm) => norm.forward(residual),
            None => Ok(residual.stream().shallow_clone()),
        }
    }

    /// Adds the block's output.
    pub(crate) fn leave(&self, residual: &mut Residual, block: &Tensor) -> Result<(), TchError> {
        if self.behind.is_none() && self.multiplier.is_none() {
            return residual.add(block);
        }
        let mut added = block.shallow_clone();
        if let Some(norm) = &self.behind {
            added = norm.normed(&added)?;
        }
        if let Some(multiplier) = self.multiplier {
            added = added.f_mul_scalar(multiplier)?;
        }
        residual.add(&added)
    }
}
