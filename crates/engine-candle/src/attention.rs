//! Grouped-query attention, causal or bidirectional. Over the cache there are two ways: in decode each thread
//! takes a share of the context ([`shares`]); prefill multiplies whole matrices. Encoders need no cache
//! ([`texts`]).
//!
//! candle-nn's `flash_attn` was measured and dropped: it folds in one key at a time, and took ten times
//! as long as the products for 512 positions (1.0 s of a prefill of SmolLM2-135M).

mod grouped;
pub(crate) mod relative;
mod shares;
pub(crate) mod texts;

use std::ops::Range;

use bundle::{LayerAttention, ModelConfig};
use candle_core::{D, DType, Device, Result, Tensor};
use engine::EngineError;

use crate::head_norms::HeadNorms;
use crate::math::{cap, softmax};
use crate::parallel::{for_each_chunk, threads, try_for_each};
use crate::reader::Reader;
use crate::sequences::{Cache, RotaryTable, Sequences};
use crate::share::Share;
use crate::weight::{change_f32, with_f32};

/// From this many new positions per sequence, matrix products are faster than shares.
const BLOCK_POSITIONS: usize = 24;
/// Queries per product: few enough that the scores stay in cache and that the causal mask discards few of
/// them.
const QUERY_BLOCK: usize = 128;
/// Fewer queries are not worth a product.
const LEAST_QUERIES: usize = 32;
/// Blocks of queries for each thread.
const BLOCKS: usize = 4;

#[derive(Debug)]
pub(crate) struct Attention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    norms: Option<HeadNorms>,
    scale: f32,
    /// Soft bound of the scores.
    cap: Option<f32>,
    layer: LayerAttention,
}

/// The positions that one call appends, as many to each sequence.
struct Step<'a> {
    /// `[batch, positions, (heads + 2 · kv_heads) · head_dim]`
    qkv: &'a [f32],
    batch: usize,
    positions: usize,
    /// Cache positions in use, including padding before the sequences.
    filled: usize,
    /// Padding positions before each sequence; empty if there are none.
    padding: &'a [usize],
    rotary: Option<&'a RotaryTable>,
}

impl Step<'_> {
    /// Padding positions before the sequence of a row.
    fn padding_before(&self, row: usize) -> usize {
        self.padding.get(row / self.positions).copied().unwrap_or(0)
    }
}

impl Attention {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        index: usize,
    ) -> std::result::Result<Attention, EngineError> {
        let form = &config.form;
        let usual = (config.head_dim as f32).sqrt().recip();
        Ok(Attention {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            norms: HeadNorms::read(reader, config, index)?,
            scale: form.attention_scale.map_or(usual, |scale| scale as f32),
            cap: form.attention_cap.map(|bound| bound as f32),
            layer: config.layer_attention(index),
        })
    }

    /// `[rows, (heads + 2 · kv_heads) · head_dim]` → `[rows, heads · head_dim]`. Keys and values are added to
    /// the cache of layer `layer`. `lengths`: rows of each sequence, if they differ.
    pub(crate) fn forward(
        &self,
        qkv: &Tensor,
        sequences: &mut Sequences,
        (layer, lengths): (usize, Option<&[usize]>),
    ) -> Result<Tensor> {
        let (rows, columns) = qkv.dims2()?;
        let Sequences { batch, filled, padding, caches, grows, rotary, shares, .. } = sequences;
        let cache = &mut caches[layer];
        let width = self.heads * self.head_dim;
        let mut attended = vec![0.0; rows * width];
        if let Some(norms) = &self.norms {
            norms.over_all_heads(qkv)?;
        }
        with_f32(qkv, |qkv| {
            let rotary = self.layer.rotation.map(|rotation| &rotary[rotation]);
            let Some(lengths) = lengths else {
                let (batch, filled) = (*batch, *filled);
                let step = Step { qkv, batch, positions: rows / batch, filled, padding, rotary };
                return self.attend(cache, *grows, &step, shares, &mut attended);
            };
            // One sequence after the other, so that nothing is computed for padding.
            let (mut qkv, mut attended) = (qkv, &mut attended[..]);
            for (sequence, &positions) in lengths.iter().enumerate() {
                let (own, out);
                (own, qkv) = qkv.split_at(positions * columns);
                (out, attended) = attended.split_at_mut(positions * width);
                let padding = &padding[sequence..=sequence];
                let step = Step { qkv: own, batch: 1, positions, filled: padding[0], padding, rotary };
                let mut cache = cache.of_sequence(sequence, self.kv_heads)?;
                self.attend(&mut cache, false, &step, shares, out)?;
            }
            Ok(())
        })??;
        Tensor::from_vec(attended, (rows, width), &Device::Cpu)
    }

    /// Adds the step's keys and values to the cache, then attends to the cache.
    fn attend(
        &self,
        cache: &mut Cache,
        grows: bool,
        step: &Step<'_>,
        shares: &mut [Share],
        attended: &mut [f32],
    ) -> Result<()> {
        let (keys, values) = self.new_keys(step)?;
        match grows {
            true => cache.grow(&keys, &values)?,
            false => cache.append(&keys, &values, step.filled)?,
        }
        if step.positions < BLOCK_POSITIONS {
            self.attend_in_shares(cache, step, shares, attended)
        } else {
            self.attend_by_block(cache, step, attended)
        }
    }

    /// Keys and values of the new positions, in the cache's layout.
    fn new_keys(&self, step: &Step<'_>) -> Result<(Tensor, Tensor)> {
        let d = self.head_dim;
        let lanes = step.batch * self.kv_heads;
        let mut keys = vec![0.0; lanes * step.positions * d];
        let mut values = vec![0.0; keys.len()];
        let place = |chunk: usize| {
            let (lane, position) = (chunk / step.positions, chunk % step.positions);
            (lane / self.kv_heads * step.positions + position, lane % self.kv_heads)
        };
        for_each_chunk(&mut keys, d, |chunk, key| {
            let (row, head) = place(chunk);
            key.copy_from_slice(self.head(step, row, self.heads + head));
            if let Some(norms) = &self.norms {
                norms.norm_key(key);
            }
            self.rotate(step, row, key);
        });
        for_each_chunk(&mut values, d, |chunk, value| {
            let (row, head) = place(chunk);
            value.copy_from_slice(self.head(step, row, self.heads + self.kv_heads + head));
        });
        let shape = (lanes, step.positions, d);
        let keys = Tensor::from_vec(keys, shape, &Device::Cpu)?;
        Ok((keys, Tensor::from_vec(values, shape, &Device::Cpu)?))
    }

    /// Head `index` of a row, which holds q, k and v in this order.
    fn head<'a>(&self, step: &Step<'a>, row: usize, index: usize) -> &'a [f32] {
        let heads = self.heads + 2 * self.kv_heads;
        &step.qkv[(row * heads + index) * self.head_dim..][..self.head_dim]
    }

    /// The query of one head. It is scaled, so that the scores need not be.
    fn write_query(&self, step: &Step<'_>, row: usize, head: usize, query: &mut [f32]) {
        query.copy_from_slice(self.head(step, row, head));
        if let Some(norms) = &self.norms {
            norms.norm_query(query);
        }
        self.rotate(step, row, query);
        query.iter_mut().for_each(|q| *q *= self.scale);
    }

    fn rotate(&self, step: &Step<'_>, row: usize, head: &mut [f32]) {
        if let Some(rotary) = step.rotary {
            rotary.rotate(step.filled + row % step.positions - step.padding_before(row), head);
        }
    }

    /// The cache positions that the query of a row sees.
    fn seen(&self, step: &Step<'_>, row: usize) -> Range<usize> {
        let place = step.filled + row % step.positions;
        let Range { start, end } = self.layer.keys(place, step.filled + step.positions);
        start.max(step.padding_before(row))..end
    }

    /// Two products per block of queries. The query heads that share a key/value head are stacked into one
    /// matrix, so that keys and values are never repeated.
    fn attend_by_block(&self, cache: &Cache, step: &Step<'_>, attended: &mut [f32]) -> Result<()> {
        let width = self.heads * self.head_dim;
        // Smaller blocks if large ones would leave threads without work.
        let rows =
            (step.batch * step.positions).div_ceil(BLOCKS * threads()).clamp(LEAST_QUERIES, QUERY_BLOCK);
        let mut blocks = Vec::new();
        for (sequence, mut attended) in attended.chunks_mut(step.positions * width).enumerate() {
            for start in (0..step.positions).step_by(rows) {
                let out;
                (out, attended) = attended.split_at_mut(rows.min(step.positions - start) * width);
                blocks.push((sequence, sequence * step.positions + start, out));
            }
        }
        // The last blocks of a sequence see the most keys, so they start first.
        blocks.reverse();
        try_for_each(blocks, |(sequence, first_row, out)| {
            self.attend_block(cache, step, (sequence, first_row), out)
        })
    }

    /// The rows of a sequence from `first_row`, as many as fit into `out`, `[rows, heads · head_dim]`.
    fn attend_block(
        &self,
        cache: &Cache,
        step: &Step<'_>,
        (sequence, first_row): (usize, usize),
        out: &mut [f32],
    ) -> Result<()> {
        let (d, heads, kv_heads) = (self.head_dim, self.heads, self.kv_heads);
        let (group, count) = (heads / kv_heads, out.len() / (heads * d));
        // All keys that any query of the block sees.
        let all = self.seen(step, first_row).start..self.seen(step, first_row + count - 1).end;
        let seen_by = |query: usize| {
            let own = self.seen(step, first_row + query);
            own.start - all.start..own.end - all.start
        };
        let seen: Vec<_> = (0..count).map(seen_by).collect();
        for kv_head in 0..kv_heads {
            let mut queries = vec![0.0; group * count * d];
            for (index, query) in queries.chunks_exact_mut(d).enumerate() {
                self.write_query(step, first_row + index % count, kv_head * group + index / count, query);
            }
            let queries = Tensor::from_vec(queries, (group * count, d), &Device::Cpu)?;
            let cached = |lanes: &Tensor| {
                lanes
                    .get(sequence * kv_heads + kv_head)?
                    .narrow(0, all.start, all.len())?
                    .to_dtype(DType::F32)
            };
            let scores = queries.matmul(&cached(&cache.keys)?.t()?)?;
            softmax_of_seen(&scores, &seen, |_, scores| {
                if let Some(bound) = self.cap {
                    cap(scores, bound);
                }
            })?;
            with_f32(&scores.matmul(&cached(&cache.values)?)?, |product| {
                for (index, from) in product.chunks_exact(d).enumerate() {
                    let (query, head) = (index % count, kv_head * group + index / count);
                    out[(query * heads + head) * d..][..d].copy_from_slice(from);
                }
            })?;
        }
        Ok(())
    }
}

/// Softmax of scores, `[.., queries, keys]`, in place, over the keys that each query sees. `finish` first
/// gets the query and its visible scores.
fn softmax_of_seen(
    scores: &Tensor,
    seen: &[Range<usize>],
    finish: impl Fn(usize, &mut [f32]) + Send + Sync,
) -> Result<()> {
    let keys = scores.dim(D::Minus1)?;
    change_f32(scores, |scores| {
        for_each_chunk(scores, keys, |row, scores| {
            let query = row % seen.len();
            let seen = &seen[query];
            let (before, rest) = scores.split_at_mut(seen.start);
            let (seen, behind) = rest.split_at_mut(seen.len());
            finish(query, seen);
            softmax(seen);
            before.fill(0.0);
            behind.fill(0.0);
        });
    })
}
