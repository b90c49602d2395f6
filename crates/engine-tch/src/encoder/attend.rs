//! Attention within each text, for all texts of one length at once.

use bundle::{Encoder, ModelConfig, RelativePositions};
use tch::{Device, Kind, TchError, Tensor};
use worker::engine::Result;

use super::Group;
use crate::attend::{Heads, Manner};
use crate::reader::Reader;
use crate::sequences::hidden_keys;

/// Numbers added to the scores, by the distance of two tokens.
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
    ) -> Result<Option<RelativeBias>> {
        let Some((positions, name)) = encoder.relative.zip(config.relative_bias()) else { return Ok(None) };
        Ok(Some(RelativeBias { positions, table: reader.matrix(&name)? }))
    }

    /// `[1, heads, length, length]`
    fn scores(&self, length: i64, kind: Kind) -> Result<Tensor, TchError> {
        // For each difference between the positions of a key and a query, from the smallest to the largest.
        let last = length as usize - 1;
        let buckets = (0..=2 * last).map(|difference| {
            self.positions.bucket(last.saturating_sub(difference), difference.saturating_sub(last))
        });
        let buckets: Vec<i64> = buckets.map(|bucket| bucket as i64).collect();
        let buckets = Tensor::f_from_slice(&buckets)?.f_to_device(self.table.device())?;
        let biases = self.table.f_index_select(0, &buckets)?.f_to_kind(kind)?.f_transpose(0, 1)?;
        // The last query's differences start with the smallest; those of each earlier query start one
        // further.
        biases.f_unfold(1, length, 1)?.f_flip([1])?.f_unsqueeze(0)
    }
}

/// Texts of one length, and the keys that their queries see.
pub(crate) struct Seen<'a> {
    group: &'a Group,
    /// For layers without and with a window.
    ways: [Way; 2],
}

enum Way {
    /// All texts in one call. The mask is `[texts or 1, heads or 1, length or 1, length]`; none if the kernel
    /// needs none.
    Whole(Option<Tensor>),
    InBlocks(Near),
}

impl<'a> Seen<'a> {
    /// Added to scores to hide padding. It is finite, because a query of padding may see only padding, and
    /// the NaN would spread to all texts.
    const PADDING: f64 = -3e4;

    /// `padding`, `[texts, length]`: whether each token is padding, if there is any.
    pub(crate) fn new(
        group: &'a Group,
        config: &ModelConfig,
        relative: Option<&RelativeBias>,
        padding: Option<&Tensor>,
        options: (Kind, Device),
    ) -> Result<Seen<'a>, TchError> {
        let (length, causal) = (group.length, config.causal);
        let bias = relative.map(|relative| relative.scores(length, options.0)).transpose()?;
        let padded = |padding: &Tensor| {
            let hidden = padding.f_view([group.texts, 1, 1, length])?.f_to_kind(options.0)?;
            hidden.f_mul_scalar(Seen::PADDING)
        };
        let padded = padding.map(padded).transpose()?;
        let added = match (&bias, padded) {
            (Some(bias), Some(padded)) => Some(bias.f_add(&padded)?),
            (bias, padded) => padded.or_else(|| bias.as_ref().map(Tensor::shallow_clone)),
        };
        let mask = |window: Option<i64>| {
            // The kernel hides later keys from a query, but not if there is also a mask.
            if window.is_none() && !(causal && added.is_some()) {
                return Ok(added.as_ref().map(Tensor::shallow_clone));
            }
            let ahead = if causal { 1 } else { window.unwrap_or(length) };
            let hidden = hidden_keys([length; 2], ahead, window.map(|window| -window), options)?;
            let hidden = hidden.f_view([1, 1, length, length])?;
            added.as_ref().map_or(Ok(hidden.shallow_clone()), |added| added.f_add(&hidden)).map(Some)
        };
        let window = config.window().map(|window| window as i64).filter(|&window| window < length);
        let near = match window {
            Some(window) if bias.is_none() => Near::new(group, (window, causal), padding, options)?,
            _ => None,
        };
        let sliding = match near {
            Some(near) => Way::InBlocks(near),
            None => Way::Whole(mask(window)?),
        };
        Ok(Seen { group, ways: [Way::Whole(mask(None)?), sliding] })
    }

    /// `[rows, heads of queries, of keys and of values, dimension]` of all texts →
    /// `[rows, heads of queries · dimension]` of these texts.
    fn attend(&self, qkv: &Tensor, heads: Heads, manner: &Manner) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = heads;
        let Group { first_row, texts, length } = *self.group;
        let rows = texts * length;
        let qkv = qkv.f_narrow(0, first_row, rows)?;
        let [of_queries, of_keys, of_values] = [(0, query), (query, kv), (query + kv, kv)];
        let part = |x: &Tensor, (first, heads)| x.f_narrow(1, first, heads);
        // `[text or block, head, position, dimension]`
        let (queries, keys, values, mask) = match &self.ways[usize::from(manner.layer.window.is_some())] {
            Way::Whole(mask) => {
                let part = |of| part(&qkv, of)?.f_unfold(0, length, length)?.f_transpose(2, 3);
                (part(of_queries)?, part(of_keys)?, part(of_values)?, mask.as_ref())
            }
            Way::InBlocks(near) => {
                let padded = near.padded(&qkv)?;
                let keys = |of| near.keys(&part(&padded, of)?);
                let queries = near.queries(&part(&padded, of_queries)?)?;
                (queries, keys(of_keys)?, keys(of_values)?, Some(&near.mask))
            }
        };
        let causal = manner.layer.causal && length > 1 && mask.is_none();
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
        let attended = attended.f_transpose(1, 2)?.f_reshape([-1, query * dim])?;
        // The last block may extend beyond the last row.
        attended.f_narrow(0, 0, rows)
    }
}

/// The same for all texts.
pub(crate) fn attend(
    qkv: &Tensor,
    seen: &[Seen<'_>],
    heads: Heads,
    manner: &Manner,
) -> Result<Tensor, TchError> {
    let parts = seen.iter().map(|seen| seen.attend(qkv, heads, manner)).collect::<Result<Vec<_>, _>>()?;
    if parts.len() == 1 { Ok(parts[0].shallow_clone()) } else { Tensor::f_cat(&parts, 0) }
}

// Attention within a window over long texts. Rows are cut into blocks. Each attends only to the keys that
// its queries may see, not to all keys of the text, most of which a mask would hide.

pub(crate) struct Near {
    blocks: i64,
    /// Queries of a block.
    queries: i64,
    /// Keys of a block.
    keys: i64,
    /// Rows added before the first and after the last, so that all blocks have the same shape.
    around: [i64; 2],
    /// `[blocks, 1, queries, keys]`
    pub(crate) mask: Tensor,
}

impl Near {
    /// Texts longer than this many windows are faster in blocks. The README has the measurements.
    const LEAST: i64 = 4;

    /// `None` if the texts are too short for blocks to be faster.
    pub(crate) fn new(
        group: &Group,
        (window, causal): (i64, bool),
        padding: Option<&Tensor>,
        options: (Kind, Device),
    ) -> Result<Option<Near>, TchError> {
        let Group { texts, length, .. } = *group;
        if length <= Near::LEAST * window {
            return Ok(None);
        }
        let rows = texts * length;
        let queries = (window / 2).max(32);
        let blocks = (rows + queries - 1) / queries;
        let (before, ahead) = (window - 1, if causal { 0 } else { window - 1 });
        let (keys, around) = (before + queries + ahead, [before, blocks * queries - rows + ahead]);
        // Key k of a block is before + q − k rows before query q.
        let band = hidden_keys([queries, keys], before + ahead + 1, Some(-1), options)?;
        // A query sees only its own text. Padding and the added rows belong to no text.
        let of_text = Tensor::f_arange_start(length, rows + length, (Kind::Int64, options.1))?;
        let mut of_text = of_text.f_divide_scalar_mode(length, "floor")?;
        if let Some(padding) = padding {
            of_text = of_text.f_masked_fill(&padding.f_view(-1)?, 0)?;
        }
        let of_text = of_text.f_constant_pad_nd(around)?;
        let of_keys = of_text.f_unfold(0, keys, queries)?.f_unsqueeze(1)?;
        let of_queries = of_text.f_narrow(0, before, blocks * queries)?.f_view([blocks, queries, 1])?;
        let mask =
            band.f_masked_fill(&of_queries.f_ne_tensor(&of_keys)?, f64::NEG_INFINITY)?.f_unsqueeze(1)?;
        Ok(Some(Near { blocks, queries, keys, around, mask }))
    }

    /// `[rows, heads, dimension]` → the same with the added rows.
    pub(crate) fn padded(&self, qkv: &Tensor) -> Result<Tensor, TchError> {
        let [before, behind] = self.around;
        qkv.f_constant_pad_nd([0, 0, 0, 0, before, behind])
    }

    /// Queries of padded rows, `[blocks, heads, queries, dimension]`.
    pub(crate) fn queries(&self, padded: &Tensor) -> Result<Tensor, TchError> {
        let rows = padded.f_narrow(0, self.around[0], self.blocks * self.queries)?;
        rows.f_unfold(0, self.queries, self.queries)?.f_transpose(2, 3)
    }

    /// Keys or values of padded rows, `[blocks, heads, keys, dimension]`. Neighbouring blocks share memory.
    pub(crate) fn keys(&self, padded: &Tensor) -> Result<Tensor, TchError> {
        padded.f_unfold(0, self.keys, self.queries)?.f_transpose(2, 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_of_a_long_text_sees_the_keys_that_the_model_s_description_says() {
        let config = serde_json::json!({
            "model_type": "modernbert", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 32, "local_attention": 16
        });
        let mut config = ModelConfig::from_json(&config).unwrap();
        config.kv_heads = 2;
        let options = (Kind::Float, Device::Cpu);
        let (heads, rows) = (Heads::from_config(&config), 1 + 2 * 100);
        let qkv = Tensor::f_arange(rows * 8 * 8, options).unwrap();
        let qkv = (qkv.f_square().unwrap() / 1000.0).f_sin().unwrap().view([rows, 8, 8]) * 3.0;
        let cases = [(false, 100), (true, 100), (false, 30), (true, 30), (true, 9)];
        for ((causal, length), filled) in
            cases.into_iter().flat_map(|case| [(case, 0), (case, case.1 * 2 / 3)])
        {
            config.causal = causal;
            let manner = Manner::from_config(&config, 1);
            let group = Group { first_row: 1, texts: 2, length };
            // The second text ends in padding.
            let lengths = [length, length - filled];
            let places = Tensor::f_arange(length, (Kind::Int64, Device::Cpu)).unwrap();
            let padding = places.ge_tensor(&Tensor::from_slice(&lengths).view([2, 1]));
            let padding = (filled > 0).then_some(&padding);
            let seen = Seen::new(&group, &config, None, padding, options).unwrap();
            assert_eq!(matches!(seen.ways[1], Way::InBlocks(_)), length == 100);
            let found = attend(&qkv, &[seen], heads, &manner).unwrap().view([2, length, 4, 8]);
            assert!(found.isfinite().all() == Tensor::from(true), "padding would make all texts NaN");
            for (text, query, head) in [0, 1].into_iter().flat_map(|text| {
                let length = lengths[text as usize];
                (0..length).flat_map(move |query| (0..4).map(move |head| (text, query, head)))
            }) {
                let of_text = qkv.narrow(0, 1 + text * length, length);
                let keys = manner.layer.keys(query as usize, lengths[text as usize] as usize);
                let (first, count) = (keys.start as i64, keys.len() as i64);
                let seen = |place| of_text.select(1, place + head / 2).narrow(0, first, count);
                let scores = seen(4).matmul(&of_text.get(query).get(head)) / 8f64.sqrt();
                let expected = scores.softmax(0, Kind::Float).matmul(&seen(6));
                let found = found.get(text).get(query).get(head);
                assert!(
                    found.allclose(&expected, 1e-4, 1e-5, false),
                    "{causal} {length} {filled} {text} {query} {head}"
                );
            }
        }
    }
}
