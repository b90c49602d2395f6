//! A layer of an encoder.

use bundle::{ModelConfig, NormNames};
use engine::EngineError;
use tch::{Kind, TchError, Tensor};

use super::attend::{Seen, attend};
use crate::fused::Mlp;
use crate::layer::Manner;
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{Norm, RmsNorm};
use crate::qkv::Qkv;
use crate::reader::Reader;
use crate::rotation::Rotation;

pub(crate) struct Layer {
    attention_norms: Norms,
    qkv: Qkv,
    output: Linear,
    manner: Manner,
    mlp_norms: Norms,
    mlp: Mlp,
}

/// One batch, as input of the layers.
pub(crate) struct Batch<'a> {
    pub(crate) seen: Vec<Seen<'a>>,
    /// Rotations for the rows' positions.
    pub(crate) rotations: Vec<Rotation>,
    /// Element type of attention.
    pub(crate) kind: Kind,
}

impl Layer {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        index: usize,
        layout: Layout,
    ) -> Result<Layer, EngineError> {
        let names = config.layer(index);
        Ok(Layer {
            attention_norms: Norms::read(
                reader,
                config,
                [&names.attention_norm, &names.post_attention_norm],
            )?,
            qkv: Qkv::read(reader, config, index, layout)?,
            output: Linear::fused(reader, &names.output, layout)?,
            manner: Manner::from_config(config, index),
            mlp_norms: Norms::read(reader, config, [&names.mlp_norm, &names.post_mlp_norm])?,
            mlp: Mlp::activated(reader, config, index, layout)?,
        })
    }

    /// `[rows, hidden]` in and out.
    pub(crate) fn forward(&self, x: &Tensor, batch: &Batch<'_>) -> Result<Tensor, TchError> {
        let x = self.attention_norms.around(x, |x| self.attention(x, batch))?;
        self.mlp_norms.around(&x, |x| self.mlp.forward(x))
    }

    fn attention(&self, x: &Tensor, batch: &Batch<'_>) -> Result<Tensor, TchError> {
        let (rows, _) = x.size2()?;
        let rotation = self.manner.layer.rotation.map(|rotation| &batch.rotations[rotation]);
        // All rows are treated as one text; each has the rotation of its own position.
        let qkv = self.qkv.forward(x, (1, rows), rotation)?.f_squeeze_dim(0)?.f_to_kind(batch.kind)?;
        let attended = attend(&qkv, &batch.seen, self.qkv.heads, &self.manner)?;
        self.output.forward(&attended.f_to_kind(x.kind())?)
    }
}

/// The norms around a block: x becomes behind(x + block(before(x))). Absent norms are left out.
struct Norms {
    before: Option<Norm>,
    behind: Option<Norm>,
}

impl Norms {
    fn read(
        reader: &Reader,
        config: &ModelConfig,
        names: [&Option<NormNames>; 2],
    ) -> Result<Norms, EngineError> {
        let norm = |names: &Option<NormNames>| {
            names.as_ref().map(|names| Norm::read(reader, config, names, RmsNorm::Fused)).transpose()
        };
        let [before, behind] = names.map(norm);
        Ok(Norms { before: before?, behind: behind? })
    }

    fn around(
        &self,
        x: &Tensor,
        block: impl FnOnce(&Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let of_block = match &self.before {
            Some(norm) => block(&norm.normed(x)?),
            None => block(x),
        };
        let sum = of_block?.f_add_(x)?;
        match &self.behind {
            Some(norm) => norm.normed(&sum),
            None => Ok(sum),
        }
    }
}
