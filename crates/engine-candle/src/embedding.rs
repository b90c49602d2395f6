//! Embeddings: the input of the first layer.

use bundle::ModelConfig;
use candle_core::{Device, Result, Tensor};
use engine::EngineError;

use crate::math::add;
use crate::norm::Norm;
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::Weight;

/// The normed sum of the embeddings of tokens, positions and types. Parts that the model lacks are left out.
#[derive(Debug)]
pub(crate) struct Embedding {
    /// `[vocabulary, hidden]`
    tokens: Weight,
    multiplier: Option<f32>,
    /// `[positions, hidden]`
    positions: Option<Weight>,
    /// Row of `positions` for the first token.
    first_position: usize,
    /// `[types, hidden]`
    types: Option<Weight>,
    norm: Option<Norm>,
    width: usize,
}

impl Embedding {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
    ) -> std::result::Result<Embedding, EngineError> {
        let optional = |name: Option<String>| name.map(|name| reader.matrix(&name)).transpose();
        Ok(Embedding {
            tokens: reader.matrix(&config.embedding())?,
            multiplier: config.form.embedding_multiplier.map(|multiplier| multiplier as f32),
            positions: optional(config.position_embedding())?,
            first_position: config.encoder.as_ref().map_or(0, |encoder| encoder.first_position),
            types: optional(config.token_type_embedding())?,
            norm: Norm::read_optional(reader, config, config.embedding_norm().as_ref())?,
            width: config.hidden_size,
        })
    }

    pub(crate) fn tokens(&self) -> &Weight {
        &self.tokens
    }

    /// `[tokens, hidden]`, for tokens at these positions. If `types` is empty, all have the first type.
    pub(crate) fn forward(
        &self,
        tokens: &[u32],
        positions: impl Iterator<Item = usize>,
        types: &[u32],
    ) -> Result<Tensor> {
        let width = self.width;
        let mut x = vec![0.0; tokens.len() * width];
        let mut other = vec![0.0; width];
        for (row, (out, position)) in x.chunks_exact_mut(width).zip(positions).enumerate() {
            self.tokens.copy_rows(tokens[row] as usize, out)?;
            if let Some(multiplier) = self.multiplier {
                out.iter_mut().for_each(|x| *x *= multiplier);
            }
            if let Some(table) = &self.positions {
                table.copy_rows(self.first_position + position, &mut other)?;
                add(out, &other);
            }
            if let Some(table) = &self.types {
                table.copy_rows(types.get(row).map_or(0, |&kind| kind as usize), &mut other)?;
                add(out, &other);
            }
        }
        if let Some(norm) = &self.norm {
            for_each_chunk(&mut x, width, |_, row| norm.norm_row(row));
        }
        Tensor::from_vec(x, (tokens.len(), width), &Device::Cpu)
    }
}
