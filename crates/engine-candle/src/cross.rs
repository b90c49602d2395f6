//! A decoder's attention to the vectors of audio.

use bundle::{CrossNames, ModelConfig};
use candle_core::{Result, Tensor};
use worker::engine;

use crate::attention::Attention;
use crate::linear::Linear;
use crate::norm::SublayerNorms;
use crate::reader::Reader;
use crate::sequences::Cache;

/// A layer's attention to the vectors of audio.
#[derive(Debug)]
pub(crate) struct Cross {
    norms: SublayerNorms,
    q: Linear,
    kv: Linear,
    attention: Attention,
    output: Linear,
}

impl Cross {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        names: &CrossNames,
    ) -> engine::Result<Cross> {
        Ok(Cross {
            norms: SublayerNorms::read(reader, config, [&Some(names.norm.clone()), &None])?,
            q: Linear::read(reader, &names.q)?,
            kv: Linear::read(reader, &names.kv)?,
            attention: Attention::of_audio(config, reader.kernels()),
            output: Linear::read(reader, &names.output)?,
        })
    }

    pub(crate) fn linears(&self) -> [&Linear; 3] {
        [&self.q, &self.kv, &self.output]
    }

    /// Keys and values of the encoder's vectors.
    pub(crate) fn heard(&self, vectors: &Tensor) -> Result<Cache> {
        self.attention.heard(&self.kv.forward(vectors)?)
    }

    /// The residual stream after it.
    pub(crate) fn forward(
        &self,
        x: Tensor,
        attend: &mut impl FnMut(&Attention, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let queries = self.q.forward(&self.norms.enter(&x)?)?;
        self.norms.leave(&x, self.output.forward(&attend(&self.attention, &queries)?)?)
    }
}
