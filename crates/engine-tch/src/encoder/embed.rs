//! Embeddings: the input of the first layer.

use bundle::{Encoder, ModelConfig};
use tch::{TchError, Tensor};
use worker::engine::{EngineError, Texts};

use super::Rows;
use crate::layer::{Norm, RmsNorm};
use crate::model::Reader;

/// The normed sum of the embeddings of tokens, positions and types. Parts that the model lacks are left out.
pub(crate) struct Embed {
    /// `[vocabulary, hidden]`
    tokens: Tensor,
    /// `[positions, hidden]`
    positions: Option<Tensor>,
    /// Row of `positions` for the first token of a text.
    first_position: i64,
    /// `[types, hidden]`
    types: Option<Tensor>,
    norm: Option<Norm>,
}

impl Embed {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        encoder: &Encoder,
    ) -> Result<Embed, EngineError> {
        let table = |name: Option<String>| name.map(|name| reader.matrix(&name)).transpose();
        let norm = config.embedding_norm();
        Ok(Embed {
            tokens: reader.matrix(&config.embedding())?,
            positions: table(config.position_embedding())?,
            first_position: encoder.first_position as i64,
            types: table(config.token_type_embedding())?,
            norm: norm.map(|names| Norm::read(reader, config, &names, RmsNorm::Fused)).transpose()?,
        })
    }

    /// `[rows, hidden]`. `positions`: each row's position within its text.
    pub(crate) fn forward(
        &self,
        texts: Texts<'_>,
        rows: &Rows,
        positions: &Tensor,
    ) -> Result<Tensor, TchError> {
        let look_up = |table: &Tensor, ids: &Tensor| Tensor::f_embedding(table, ids, -1, false, false);
        let of_tokens = |values: &[u32]| {
            let ids: Vec<i64> = rows.tokens.iter().map(|&token| i64::from(values[token])).collect();
            Tensor::f_from_slice(&ids)?.f_to_device(positions.device())
        };
        let mut x = look_up(&self.tokens, &of_tokens(texts.tokens)?)?;
        if let Some(table) = &self.positions {
            x = x.f_add_(&look_up(table, &positions.f_add_scalar(self.first_position)?)?)?;
        }
        match &self.types {
            Some(table) if texts.types.is_empty() => x = x.f_add_(&table.f_narrow(0, 0, 1)?)?,
            Some(table) => x = x.f_add_(&look_up(table, &of_tokens(texts.types)?)?)?,
            None => {}
        }
        match &self.norm {
            Some(norm) => norm.normed(&x),
            None => Ok(x),
        }
    }
}
