//! Attention of queries over the cache, by libtorch's kernel.

use bundle::{LayerAttention, ModelConfig};
use tch::{Kind, TchError, Tensor};
use worker::engine::Result;

use crate::framework;
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{rms_weight, unit_rms};
use crate::reader::Reader;
use crate::rotation::Rotation;
use crate::sequences::{Kinds, Parts, Step};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) query: i64,
    /// Heads of keys, and also of values.
    pub(crate) kv: i64,
    pub(crate) dim: i64,
}

impl Heads {
    pub(crate) fn from_config(config: &ModelConfig) -> Heads {
        Heads { query: config.heads as i64, kv: config.kv_heads as i64, dim: config.head_dim as i64 }
    }
}

/// Differences between a layer's attention and llama's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) layer: LayerAttention,
    /// Factor of the scores, if it is not 1/√dim.
    pub(crate) scale: Option<f64>,
    /// Soft bound of the scores.
    pub(crate) cap: Option<f64>,
}

impl Manner {
    pub(crate) fn from_config(config: &ModelConfig, index: usize) -> Manner {
        let (layer, form) = (config.layer_attention(index), &config.form);
        Manner { layer, scale: form.attention_scale, cap: form.attention_cap }
    }

    /// The softmax of unscaled `scores`, `[batch, heads, positions, keys]`, after scaling, cap and mask. `sinks` are
    /// numbers beside the scores, one for each head.
    pub(crate) fn shares(
        &self,
        scores: &Tensor,
        dim: i64,
        (mask, sinks): (Option<&Tensor>, Option<&Tensor>),
        kind: Kind,
    ) -> Result<Tensor, TchError> {
        let mut scores = scores.f_mul_scalar(self.scale.unwrap_or(1.0 / (dim as f64).sqrt()))?;
        if let Some(cap) = self.cap {
            scores = scores.f_div_scalar(cap)?.f_tanh()?.f_mul_scalar(cap)?;
        }
        if let Some(mask) = mask {
            scores = scores.f_add(mask)?;
        }
        let Some(sinks) = sinks else { return scores.f_softmax(-1, Kind::Float)?.f_to_kind(kind) };
        let (batch, heads, positions, keys) = scores.size4()?;
        let column = sinks.f_view([1, heads, 1, 1])?.f_expand([batch, heads, positions, 1], false)?;
        let shares = Tensor::f_cat(&[scores, column], -1)?.f_softmax(-1, Kind::Float)?;
        shares.f_narrow(-1, 0, keys)?.f_to_kind(kind)
    }
}

/// A layer's attention, between its projections.
pub(crate) struct Attend<'a> {
    pub(crate) heads: Heads,
    pub(crate) manner: Manner,
    pub(crate) sinks: Option<&'a Tensor>,
    pub(crate) kinds: Kinds,
}

impl Attend<'_> {
    /// `[batch, positions, heads, dimension]` in and out; the last two dimensions may be merged.
    pub(crate) fn forward(&self, queries: &Tensor, step: &Step, index: usize) -> Result<Tensor, TchError> {
        let Manner { layer, scale, cap } = self.manner;
        let within = step.within_window(index, layer)?;
        let (keys, values) = match &within {
            Some([keys, values]) => (keys, values),
            None => (&step.keys[index], &step.values[index]),
        };
        let Kinds { attention, single, .. } = self.kinds;
        let in_products = self.kinds.in_products || cap.is_some() || self.sinks.is_some();
        let kind = if step.positions == 1 && !in_products { single } else { attention };
        let queries = queries.f_to_kind(kind)?;
        let mask = step.mask(layer).map(|mask| mask.f_to_kind(kind)).transpose()?;
        if let Some(parts) = step.parts.as_ref().filter(|_| !in_products && within.is_none()) {
            return self.in_parts(&queries, keys, values, parts);
        }
        let (keys, values) = (keys.f_to_kind(kind)?, values.f_to_kind(kind)?);
        if in_products {
            return self.in_products(&queries, &keys, &values, mask.as_ref());
        }
        let Heads { query, kv, dim } = self.heads;
        // The kernel for half precisions packs the keys again for every query head. Heads that share keys and
        // values can be passed as successive queries, because the mask hides at most padding, for all of them
        // alike.
        if step.positions == 1 && query != kv && kind != Kind::Float {
            let grouped = queries.f_view([step.batch, kv, query / kv, dim])?;
            return Tensor::f_scaled_dot_product_attention(
                &grouped,
                &keys,
                &values,
                mask.as_ref(),
                0.0,
                false,
                scale,
                false,
            );
        }
        let causal = step.causal && step.positions > 1 && step.past == 0 && mask.is_none();
        let queries = queries.f_transpose(1, 2)?;
        let shared = query != kv;
        let attended = Tensor::f_scaled_dot_product_attention(
            &queries,
            &keys,
            &values,
            mask.as_ref(),
            0.0,
            causal,
            scale,
            shared,
        )?;
        attended.f_transpose(1, 2)
    }

    /// One query over parts of the context, as if they were sequences of a batch. The sums of exponentials
    /// combine the parts.
    fn in_parts(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        parts: &Parts,
    ) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.heads;
        let shape = [parts.count, kv, query / kv, dim];
        let queries = queries.f_view([1, kv, query / kv, dim])?.f_expand(shape, false)?;
        let cut = |all: &Tensor| {
            let from_head_to_head = all.stride()[1];
            let (sizes, strides) =
                ([parts.count, kv, parts.keys, dim], [parts.keys * dim, from_head_to_head, dim, 1]);
            all.f_as_strided(sizes, strides, None)
        };
        let (attended, sums) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu(
            &queries,
            &cut(keys)?,
            &cut(values)?,
            0.0,
            false,
            parts.mask.as_ref(),
            self.manner.scale,
        )?;
        let shares = sums.f_softmax(0, Kind::Float)?.f_unsqueeze(-1)?;
        attended.f_mul(&shares)?.f_sum_dim_intlist(0i64, false, Kind::Float)
    }

    /// As [`Attend::forward`], but in separate operations: for capped scores and sinks, which libtorch's kernel
    /// does not support, and for comparison with that kernel. The query heads that share keys and values are rows
    /// of one matrix.
    fn in_products(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.heads;
        let (batch, positions, ..) = queries.size4()?;
        let total = keys.size4()?.2;
        let rows = [batch, kv, query / kv * positions];
        let grouped = queries.f_transpose(1, 2)?.f_reshape([rows[0], rows[1], rows[2], dim])?;
        let scores = grouped.f_matmul(&keys.f_transpose(2, 3)?)?.f_view([batch, query, positions, total])?;
        let shares = self.manner.shares(&scores, dim, (mask, self.sinks), queries.kind())?;
        let attended = shares.f_reshape([rows[0], rows[1], rows[2], total])?.f_matmul(values)?;
        attended.f_view([batch, query, positions, dim])?.f_transpose(1, 2)
    }
}

// Queries, keys and values from one product; queries and keys are then normed and rotated.

pub(crate) struct Qkv {
    pub(crate) linear: Linear,
    /// `[query heads + key heads, dimension]`: the weights of the norms over each head, if any.
    pub(crate) norm: Option<Tensor>,
    /// The weights of the norms over all heads of queries and over all heads of keys.
    whole_norms: Option<[Tensor; 2]>,
    pub(crate) heads: Heads,
    pub(crate) epsilon: f64,
}

impl Qkv {
    pub(crate) fn read(reader: &Reader, config: &ModelConfig, index: usize, layout: Layout) -> Result<Qkv> {
        let (names, heads) = (config.layer(index), Heads::from_config(config));
        let mut whole_norms = None;
        let norm = match (&names.q_norm, &names.k_norm) {
            (Some(q), Some(k)) if config.form.whole_qk_norm => {
                whole_norms = Some([rms_weight(reader, config, q)?, rms_weight(reader, config, k)?]);
                None
            }
            (Some(q), Some(k)) => {
                let (q, k) = (rms_weight(reader, config, q)?, rms_weight(reader, config, k)?);
                let repeated = |weight: Tensor, heads| weight.f_expand([heads, -1], false);
                let both =
                    repeated(q, heads.query).and_then(|q| Tensor::f_cat(&[q, repeated(k, heads.kv)?], 0));
                Some(both.map_err(framework)?)
            }
            _ => None,
        };
        let linear = Linear::fused(reader, &names.qkv, layout)?;
        Ok(Qkv { linear, norm, whole_norms, heads, epsilon: config.norm_epsilon })
    }

    /// `[batch · positions, hidden]` → `[batch, positions, heads of queries, of keys and of values, dimension]`.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        (batch, positions): (i64, i64),
        rotation: Option<&Rotation>,
    ) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.heads;
        let qkv = self.linear.forward(x)?.f_view([batch, positions, query + 2 * kv, dim])?;
        // Queries and keys are adjacent, so they are normed and rotated together, in place.
        let mut qk = qkv.f_narrow(2, 0, query + kv)?;
        if let Some(weights) = &self.norm {
            let _ = unit_rms(&qk, self.epsilon)?.f_multiply_out(&qk, weights)?;
        }
        if let Some(weights) = &self.whole_norms {
            self.norm_whole(&qkv, weights)?;
        }
        if let Some(rotation) = rotation {
            rotation.turn(&mut qk, dim)?;
        }
        Ok(qkv)
    }

    /// Norms queries and keys over all of their heads, in place.
    fn norm_whole(&self, qkv: &Tensor, weights: &[Tensor; 2]) -> Result<(), TchError> {
        let Heads { query, kv, dim } = self.heads;
        let rows = qkv.f_view([-1, (query + 2 * kv) * dim])?;
        for (weight, (start, heads)) in weights.iter().zip([(0, query), (query, kv)]) {
            let part = rows.f_narrow(1, start * dim, heads * dim)?;
            let _ = unit_rms(&part, self.epsilon)?.f_multiply_out(&part, weight)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::Layout;
    use crate::sequences::{Causal, Sequences};
    use bundle::{LayerAttention, ModelConfig};
    use tch::Device;
    use worker::engine::{Precision, Settings};

    use super::*;

    const CAPACITY: usize = 1200;

    fn sequences(cache: Precision) -> Sequences {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 32,
            "max_position_embeddings": 2048
        });
        let config = ModelConfig::from_json(&config).unwrap();
        let settings = Settings { kv_precision: Some(cache), ..conformance::at(Precision::F32) };
        tch::set_num_threads(2);
        let kinds = Kinds::choose(&settings, (Layout::Plain, Kind::Float), Device::Cpu, true).unwrap();
        let options = (Kind::Float, Device::Cpu);
        let mut sequences = Sequences::new(&config, (1, CAPACITY), options, kinds).unwrap();
        let mut step = sequences.step(CAPACITY, Causal::ByKernel).unwrap();
        for slot in &mut step.slots {
            let _ = slot.f_normal_(0.0, 1.0).unwrap();
        }
        sequences
    }

    /// Attention of one query after `filled` keys, and whether it was computed in parts.
    fn attended(sequences: &mut Sequences, filled: usize, in_parts: bool) -> (Tensor, bool) {
        sequences.filled = filled;
        let mut step = sequences.step(1, Causal::ByKernel).unwrap();
        if !in_parts {
            step.parts = None;
        }
        let attend = Attend {
            heads: Heads { query: 6, kv: 2, dim: 8 },
            manner: Manner {
                layer: LayerAttention { window: None, causal: true, rotation: None },
                scale: None,
                cap: None,
            },
            sinks: None,
            kinds: sequences.kinds,
        };
        // Not random: libtorch has one generator for all threads, so another test may draw from it in
        // between.
        let queries = Tensor::arange(48, (Kind::Float, Device::Cpu)).f_sin().unwrap().view([1, 1, 6, 8]);
        let attended = attend.forward(&queries, &step, 1).unwrap();
        (attended.f_reshape([48]).unwrap(), step.parts.is_some())
    }

    #[test]
    fn parts_of_a_context_give_what_it_gives_whole() {
        let mut sequences = sequences(Precision::F32);
        for (filled, cut) in [(100, false), (998, true), (999, true), (1199, true)] {
            let (whole, _) = attended(&mut sequences, filled, false);
            let (parts, is_cut) = attended(&mut sequences, filled, true);
            assert_eq!(is_cut, cut, "{filled} positions before");
            let difference = (parts - whole).f_abs().unwrap().f_max().unwrap().double_value(&[]);
            assert!(difference < 1e-6, "{difference} behind {filled} positions");
        }
    }

    #[test]
    fn keys_in_16_bits_are_attended_to_in_one_piece() {
        let mut sequences = sequences(Precision::Bf16);
        let (attended, is_cut) = attended(&mut sequences, 1100, true);
        assert!(!is_cut && attended.kind() == Kind::BFloat16);
    }
}
