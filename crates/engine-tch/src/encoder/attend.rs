//! Attention of every text's tokens to one another, over all texts of one length at once.

use bundle::{Encoder, LayerAttention, ModelConfig, RelativePositions};
use engine::EngineError;
use tch::{Device, Kind, TchError, Tensor};

use super::rows::Group;
use crate::layer::{self, Heads, Manner};
use crate::reader::Reader;

/// What is added to scores by how far apart two tokens are.
pub(crate) struct RelativeBias {
    positions: RelativePositions,
    /// `[buckets, heads]`
    table: Tensor,
}

impl RelativeBias {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        encoder: &Encoder,
    ) -> Result<Option<RelativeBias>, EngineError> {
        let Some((positions, name)) = encoder.relative.zip(config.relative_bias()) else { return Ok(None) };
        Ok(Some(RelativeBias { positions, table: reader.matrix(&name)? }))
    }

    /// `[1, heads, length, length]`
    fn of(&self, length: i64, kind: Kind) -> Result<Tensor, TchError> {
        // For each difference of the places of a key and a query, from the least to the greatest.
        let last = length as usize - 1;
        let buckets = (0..=2 * last).map(|difference| {
            self.positions.bucket(last.saturating_sub(difference), difference.saturating_sub(last))
        });
        let buckets: Vec<i64> = buckets.map(|bucket| bucket as i64).collect();
        let buckets = Tensor::f_from_slice(&buckets)?.f_to_device(self.table.device())?;
        let biases = self.table.f_index_select(0, &buckets)?.f_to_kind(kind)?.f_transpose(0, 1)?;
        // The last query has the differences from the least on; each one before it begins one further on.
        biases.f_unfold(1, length, 1)?.f_flip([1])?.f_unsqueeze(0)
    }
}

/// Texts of one length, and what is added to their scores.
pub(crate) struct Seen<'a> {
    group: &'a Group,
    /// `[1, heads or 1, length, length]`, in layers without a window and in those with one; nothing where the kernel knows
    /// what a query sees.
    masks: [Option<Tensor>; 2],
}

impl<'a> Seen<'a> {
    pub(crate) fn new(
        group: &'a Group,
        config: &ModelConfig,
        relative: Option<&RelativeBias>,
        options: (Kind, Device),
    ) -> Result<Seen<'a>, TchError> {
        let length = group.length;
        let bias = relative.map(|relative| relative.of(length, options.0)).transpose()?;
        let of_layers = |window: Option<usize>| {
            let layer = LayerAttention { window, causal: config.causal, rotation: None };
            let window = window.filter(|&window| (window as i64) < length);
            let hides = window.is_some() || bias.is_some() && !layer.sees_all(length as usize);
            let hidden = || {
                let ahead = if config.causal { Some(1) } else { window.map(|window| window as i64) };
                let behind = window.map(|window| -(window as i64));
                layer::hidden([length; 2], ahead.unwrap_or(length), behind, options)
            };
            match &bias {
                Some(bias) if hides => bias.f_add(&hidden()?).map(Some),
                Some(bias) => Ok(Some(bias.shallow_clone())),
                None if hides => hidden()?.f_view([1, 1, length, length]).map(Some),
                None => Ok(None),
            }
        };
        let masks = [of_layers(None)?, config.form.window.map_or(Ok(None), |n| of_layers(Some(n)))?];
        Ok(Seen { group, masks })
    }

    /// `[rows, heads of queries, of keys and of values, dimension]` of all texts → `[rows, heads of queries · dimension]` of
    /// these.
    fn attend(&self, qkv: &Tensor, heads: Heads, manner: &Manner) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = heads;
        let Group { texts, length, .. } = *self.group;
        let qkv = self.group.part(qkv)?;
        // `[text, head, position, dimension]`
        let part = |start, heads| qkv.f_narrow(2, start, heads)?.f_transpose(1, 2);
        let mask = self.masks[usize::from(manner.layer.window.is_some())].as_ref();
        let causal = manner.layer.causal && length > 1 && mask.is_none();
        let [queries, keys, values] = [part(0, query)?, part(query, kv)?, part(query + kv, kv)?];
        let shared = query != kv;
        let attended = Tensor::f_scaled_dot_product_attention(
            &queries,
            &keys,
            &values,
            mask,
            0.0,
            causal,
            manner.scale,
            shared,
        )?;
        attended.f_transpose(1, 2)?.f_reshape([texts * length, query * dim])
    }
}

/// The same of all texts.
pub(crate) fn attend(
    qkv: &Tensor,
    seen: &[Seen<'_>],
    heads: Heads,
    manner: &Manner,
) -> Result<Tensor, TchError> {
    let parts = seen.iter().map(|seen| seen.attend(qkv, heads, manner)).collect::<Result<Vec<_>, _>>()?;
    if parts.len() == 1 { Ok(parts[0].shallow_clone()) } else { Tensor::f_cat(&parts, 0) }
}
