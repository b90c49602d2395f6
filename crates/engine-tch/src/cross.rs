//! The attention of a decoder's layers to the vectors of audio.

use bundle::ModelConfig;
use tch::{TchError, Tensor};
use worker::engine::Result;

use crate::attend::Heads;
use crate::framework;
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{Norm, Residual, RmsNorm};
use crate::reader::Reader;

/// A decoder's layer's attention to what was heard.
pub(crate) struct Cross {
    pub(crate) norm: Norm,
    pub(crate) q: Linear,
    pub(crate) output: Linear,
    heads: Heads,
    /// `[1, heads, positions, dimension]`, which the encoder of audio writes.
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

impl Cross {
    /// `heard`: keys and values of all layers, `[layers, keys or values, heads, positions, dimension]`.
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        (index, heard): (usize, Option<&Tensor>),
        layout: Layout,
    ) -> Result<Option<Cross>> {
        let Some((names, heard)) = config.layer(index).cross.zip(heard) else { return Ok(None) };
        let part = |part| heard.f_select(0, index as i64)?.f_narrow(0, part, 1);
        Ok(Some(Cross {
            norm: Norm::read(reader, config, &names.norm, RmsNorm::Fused)?,
            q: Linear::fused(reader, &names.q, layout)?,
            output: Linear::fused(reader, &names.output, layout)?,
            heads: Heads::from_config(config),
            keys: part(0).map_err(framework)?,
            values: part(1).map_err(framework)?,
        }))
    }

    /// Adds to the stream of one sequence. In products, because libtorch's kernel for attention takes longer for the one
    /// query of a token: see the README.
    pub(crate) fn forward(&self, residual: &mut Residual) -> Result<(), TchError> {
        let (Heads { query, dim, .. }, keys, values) = (self.heads, &self.keys, &self.values);
        let kind = keys.kind();
        let x = self.norm.forward(residual)?;
        let (rows, _) = x.size2()?;
        let queries = self.q.forward(&x)?.f_view([1, rows, query, dim])?.f_transpose(1, 2)?;
        let queries = queries.f_to_kind(kind)?.f_mul_scalar(1.0 / (dim as f64).sqrt())?;
        let shares = queries.f_matmul(&keys.f_transpose(2, 3)?)?.f_softmax(-1, kind)?;
        let attended = shares.f_matmul(values)?;
        let attended = attended.f_transpose(1, 2)?.f_reshape([rows, query * dim])?.f_to_kind(x.kind())?;
        residual.add(&self.output.forward(&attended)?)
    }
}
