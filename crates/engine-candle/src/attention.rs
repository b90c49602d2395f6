//! Grouped-query attention, causal or bidirectional, by operations of candle ([`calls`]) or by loops of its own. Over the
//! cache the loops have two ways: in decode each thread takes a share of the context; prefill multiplies whole matrices.
//! Encoders need no cache ([`texts`]).
//!
//! candle-nn's `flash_attn` was measured and dropped: it folds in one key at a time, and took ten times
//! as long as the products for 512 positions (1.0 s of a prefill of SmolLM2-135M).

mod audio;
mod calls;
mod grouped;
pub(crate) mod texts;

use std::ops::Range;

use bundle::{LayerAttention, ModelConfig};
use candle_core::{D, DType, Device, Result, Tensor, WithDType, bail};
use grouped::{KEY_BLOCK, Kept};
use half::{bf16, f16};
use worker::engine::{self};

use crate::elements::{change_f32, with_elements, with_f32};
use crate::kernels::Kernels;
use crate::math::{add_times, cap, exp, exponentials, softmax};
use crate::norm::HeadNorms;
use crate::parallel::{for_each, for_each_chunk, threads, try_for_each};
use crate::reader::Reader;
use crate::sequences::{Cache, RotaryTable, Sequences, Share};

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
    /// Whether it is to audio: keys and values are there, and rows have queries alone.
    hears: bool,
    /// A number beside the scores of each head, `[heads]`.
    sinks: Option<Vec<f32>>,
    kernels: Kernels,
}

/// The positions that one call appends, as many to each sequence.
struct Place<'a> {
    batch: usize,
    positions: usize,
    /// Cache positions in use, including padding before the sequences.
    filled: usize,
    /// Padding positions before each sequence; empty if there are none.
    padding: &'a [usize],
    /// Cached keys that every query sees, if its own are not among them.
    audio: Option<usize>,
}

/// The same, with what the own loops read.
struct Step<'a> {
    /// `[batch, positions, (heads + 2 · kv_heads) · head_dim]`, or of audio `[positions, heads · head_dim]`
    qkv: &'a [f32],
    at: Place<'a>,
    rotary: Option<&'a RotaryTable>,
}

impl Place<'_> {
    /// Padding positions before the sequence of a row.
    fn padding_before(&self, row: usize) -> usize {
        self.padding.get(row / self.positions).copied().unwrap_or(0)
    }
}

impl Attention {
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig, index: usize) -> engine::Result<Attention> {
        let form = &config.form;
        let usual = (config.head_dim as f32).sqrt().recip();
        let sinks = config.layer(index).sinks.map(|name| reader.vector(&name)).transpose()?;
        Ok(Attention {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            norms: HeadNorms::read(reader, config, index)?,
            scale: form.attention_scale.map_or(usual, |scale| scale as f32),
            cap: form.attention_cap.map(|bound| bound as f32),
            layer: config.layer_attention(index),
            hears: false,
            sinks,
            kernels: reader.kernels(),
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
        if self.hears {
            return self.to_audio(qkv, sequences, layer);
        }
        if self.kernels == Kernels::Candle {
            return self.by_candle(qkv, sequences, (layer, lengths));
        }
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
                let at = Place { batch, positions: rows / batch, filled, padding, audio: None };
                let step = Step { qkv, at, rotary };
                return self.attend(cache, *grows, &step, shares, &mut attended);
            };
            // One sequence after the other, so that nothing is computed for padding.
            let (mut qkv, mut attended) = (qkv, &mut attended[..]);
            for (sequence, &positions) in lengths.iter().enumerate() {
                let (own, out);
                (own, qkv) = qkv.split_at(positions * columns);
                (out, attended) = attended.split_at_mut(positions * width);
                let padding = &padding[sequence..=sequence];
                let at = Place { batch: 1, positions, filled: padding[0], padding, audio: None };
                let step = Step { qkv: own, at, rotary };
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
            false => cache.append(&keys, &values, step.at.filled)?,
        }
        self.attend_to(cache, step, shares, attended)
    }

    fn attend_to(
        &self,
        cache: &Cache,
        step: &Step<'_>,
        shares: &mut [Share],
        attended: &mut [f32],
    ) -> Result<()> {
        if step.at.positions < BLOCK_POSITIONS {
            self.attend_in_shares(cache, step, shares, attended)
        } else {
            self.attend_by_block(cache, step, attended)
        }
    }

    /// Keys and values of the new positions, in the cache's layout.
    fn new_keys(&self, step: &Step<'_>) -> Result<(Tensor, Tensor)> {
        let d = self.head_dim;
        let lanes = step.at.batch * self.kv_heads;
        let mut keys = vec![0.0; lanes * step.at.positions * d];
        let mut values = vec![0.0; keys.len()];
        let place = |chunk: usize| {
            let (lane, position) = (chunk / step.at.positions, chunk % step.at.positions);
            (lane / self.kv_heads * step.at.positions + position, lane % self.kv_heads)
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
        let shape = (lanes, step.at.positions, d);
        let keys = Tensor::from_vec(keys, shape, &Device::Cpu)?;
        Ok((keys, Tensor::from_vec(values, shape, &Device::Cpu)?))
    }

    /// Head `index` of a row, which holds q, k and v in this order.
    fn head<'a>(&self, step: &Step<'a>, row: usize, index: usize) -> &'a [f32] {
        let heads = if self.hears { self.heads } else { self.heads + 2 * self.kv_heads };
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
            rotary.rotate(step.at.filled + row % step.at.positions - step.at.padding_before(row), head);
        }
    }

    /// The cache positions that the query of a row sees.
    fn seen(&self, at: &Place<'_>, row: usize) -> Range<usize> {
        if let Some(keys) = at.audio {
            return 0..keys;
        }
        let place = at.filled + row % at.positions;
        let Range { start, end } = self.layer.keys(place, at.filled + at.positions);
        start.max(at.padding_before(row))..end
    }

    /// Two products per block of queries. The query heads that share a key/value head are stacked into one
    /// matrix, so that keys and values are never repeated.
    fn attend_by_block(&self, cache: &Cache, step: &Step<'_>, attended: &mut [f32]) -> Result<()> {
        let width = self.heads * self.head_dim;
        // Smaller blocks if large ones would leave threads without work.
        let rows = (step.at.batch * step.at.positions)
            .div_ceil(BLOCKS * threads())
            .clamp(LEAST_QUERIES, QUERY_BLOCK);
        let mut blocks = Vec::new();
        for (sequence, mut attended) in attended.chunks_mut(step.at.positions * width).enumerate() {
            for start in (0..step.at.positions).step_by(rows) {
                let out;
                (out, attended) = attended.split_at_mut(rows.min(step.at.positions - start) * width);
                blocks.push((sequence, sequence * step.at.positions + start, out));
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
        let all = self.seen(&step.at, first_row).start..self.seen(&step.at, first_row + count - 1).end;
        let seen_by = |query: usize| {
            let own = self.seen(&step.at, first_row + query);
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
            softmax_of_seen(&scores, &seen, |row, scores| {
                if let Some(bound) = self.cap {
                    cap(scores, bound);
                }
                self.sinks.as_ref().map(|sinks| sinks[kv_head * group + row / count])
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
/// gets the row and its visible scores, and returns the number beside them, if there is one.
fn softmax_of_seen(
    scores: &Tensor,
    seen: &[Range<usize>],
    finish: impl Fn(usize, &mut [f32]) -> Option<f32> + Send + Sync,
) -> Result<()> {
    let keys = scores.dim(D::Minus1)?;
    change_f32(scores, |scores| {
        for_each_chunk(scores, keys, |row, scores| {
            let seen = &seen[row % seen.len()];
            let (before, rest) = scores.split_at_mut(seen.start);
            let (seen, behind) = rest.split_at_mut(seen.len());
            let beside = finish(row, seen);
            softmax(seen, beside);
            before.fill(0.0);
            behind.fill(0.0);
        });
    })
}

// Relative position biases: numbers added to the scores, by the distance of two tokens.

/// One table for all layers and text lengths. A bias depends only on the distance, so the biases of a query's
/// keys are one contiguous piece of a row.
#[derive(Debug)]
pub(crate) struct Relative {
    /// `[heads, 2 · positions − 1]`, for keys from `positions − 1` before their query to as many after it.
    biases: Vec<f32>,
    positions: usize,
}

impl Relative {
    /// `None` if the model has no biases.
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig) -> engine::Result<Option<Relative>> {
        let relative = config.encoder.as_ref().and_then(|encoder| encoder.relative);
        let (Some(relative), Some(name)) = (relative, config.relative_bias()) else { return Ok(None) };
        let table = reader.vector(&name)?;
        let (heads, positions) = (config.heads, config.max_positions);
        let rows = (1..positions).rev().map(|before| relative.bucket(before, 0));
        let rows: Vec<usize> = rows.chain((0..positions).map(|behind| relative.bucket(0, behind))).collect();
        let biases = (0..heads).flat_map(|head| rows.iter().map(move |row| (row, head)));
        let biases = biases.map(|(row, head)| table[row * heads + head]).collect();
        Ok(Some(Relative { biases, positions }))
    }

    /// The same for heads of one group, their queries `queries` and these keys, as candle adds them to scores:
    /// `[queries · heads, keys]`.
    fn tensor(&self, heads: Range<usize>, queries: Range<usize>, keys: &Range<usize>) -> Result<Tensor> {
        let rows = queries.len() * heads.len();
        let of_queries = queries.flat_map(|query| heads.clone().map(move |head| (head, query)));
        let biases = of_queries.flat_map(|(head, query)| self.scores(head, query, keys.start, keys.len()));
        Tensor::from_vec(biases.copied().collect(), (rows, keys.len()), &Device::Cpu)
    }

    /// The biases of one head, for the query at this position and `keys` keys from `first` on.
    pub(crate) fn scores(&self, head: usize, query: usize, first: usize, keys: usize) -> &[f32] {
        let row = head * (2 * self.positions - 1);
        &self.biases[row + self.positions - 1 + first - query..][..keys]
    }
}

// Attention of few queries: each thread takes an equal share of the keys that a query sees, for all query
// heads that read them, and the partial results are combined. The threads are equally busy for any number of
// heads, and each key and value is read once.
//
// Combining softmax from parts is Milakov and Gimelshein's online softmax (2018). Flash-Decoding (Dao and
// others 2023) uses it in this way.

/// The part of `seen` for share `index` of `count`. The parts differ by at most one key.
fn part(seen: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let at = |index: usize| seen.start + seen.len() * index / count;
    at(index)..at(index + 1)
}

/// The inputs that all threads read.
struct Read<'a, T> {
    attention: &'a Attention,
    step: &'a Step<'a>,
    /// `[rows, heads, head_dim]`
    queries: &'a [f32],
    /// `[batch · kv_heads, capacity, head_dim]`
    keys: &'a [T],
    values: &'a [T],
    capacity: usize,
}

impl Attention {
    /// `attended`: `[rows, heads · head_dim]`.
    fn attend_in_shares(
        &self,
        cache: &Cache,
        step: &Step<'_>,
        shares: &mut [Share],
        attended: &mut [f32],
    ) -> Result<()> {
        match cache.keys.dtype() {
            DType::F32 => self.find_in_shares::<f32>(cache, step, shares)?,
            DType::BF16 => self.find_in_shares::<bf16>(cache, step, shares)?,
            DType::F16 => self.find_in_shares::<f16>(cache, step, shares)?,
            other => bail!("no attention over keys of type {other:?}"),
        }
        put_together(shares, self.head_dim, self.sinks.as_deref(), attended);
        Ok(())
    }

    fn find_in_shares<T: Kept + WithDType>(
        &self,
        cache: &Cache,
        step: &Step<'_>,
        shares: &mut [Share],
    ) -> Result<()> {
        let mut queries = vec![0.0; step.at.batch * step.at.positions * self.heads * self.head_dim];
        for (index, query) in queries.chunks_exact_mut(self.head_dim).enumerate() {
            self.write_query(step, index / self.heads, index % self.heads, query);
        }
        let capacity = cache.keys.dim(1)?;
        with_elements::<T, _>(&cache.keys, |keys| {
            with_elements::<T, _>(&cache.values, |values| {
                let read = Read { attention: self, step, queries: &queries, keys, values, capacity };
                let count = shares.len();
                for_each(shares.iter_mut().enumerate().collect(), |(index, share)| {
                    read.find(share, index, count);
                });
            })
        })?
    }
}

impl<T: Kept + Sync> Read<'_, T> {
    /// Computes share `index` of `count`, for all rows and heads.
    fn find(&self, share: &mut Share, index: usize, count: usize) {
        let Attention { heads, kv_heads, head_dim, .. } = *self.attention;
        let rows = self.step.at.batch * self.step.at.positions;
        share.clear(rows * heads, head_dim);
        for row in 0..rows {
            let seen = part(&self.attention.seen(&self.step.at, row), index, count);
            for kv_head in (0..kv_heads).filter(|_| !seen.is_empty()) {
                let lane = row / self.step.at.positions * kv_heads + kv_head;
                let first = lane * self.capacity + seen.start;
                let group = heads / kv_heads;
                self.attend(share, row * heads + kv_head * group, first..first + seen.len());
            }
        }
    }

    /// Computes a group of heads that share keys, starting at `head` (counted over all rows), over the rows
    /// `cached` of keys and values.
    fn attend(&self, share: &mut Share, head: usize, cached: Range<usize>) {
        let Attention { heads, kv_heads, head_dim: d, cap: bound, .. } = *self.attention;
        let (group, keys) = (heads / kv_heads, cached.len());
        let queries = &self.queries[head * d..][..group * d];
        let Share { scores, weighted, sums } = share;
        let scores = &mut scores[..group * keys];
        let blocks = || (0..keys).step_by(KEY_BLOCK).map(|start| (start, KEY_BLOCK.min(keys - start)));
        for (start, count) in blocks() {
            let rows = &self.keys[(cached.start + start) * d..][..count * d];
            grouped::scores(queries, rows, d, &mut scores[start..], keys);
        }
        for (scores, sums) in scores.chunks_exact_mut(keys).zip(&mut sums[head..]) {
            if let Some(bound) = bound {
                cap(scores, bound);
            }
            *sums = exponentials(scores);
        }
        let weighted = &mut weighted[head * d..][..group * d];
        for (start, count) in blocks() {
            let rows = &self.values[(cached.start + start) * d..][..count * d];
            grouped::add_weighted(&scores[start..], keys, rows, d, weighted);
        }
    }
}

/// Combines the shares of all threads into one softmax over all keys.
fn put_together(shares: &[Share], head_dim: usize, sinks: Option<&[f32]>, attended: &mut [f32]) {
    for (head, out) in attended.chunks_exact_mut(head_dim).enumerate() {
        let sink = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head % sinks.len()]);
        let highest = shares.iter().map(|share| share.sums[head].0).fold(sink, f32::max);
        let total: f32 =
            shares.iter().map(|share| share.sums[head].1 * exp(share.sums[head].0 - highest)).sum();
        let total = if sinks.is_some() { total + exp(sink - highest) } else { total };
        for share in shares {
            let weight = exp(share.sums[head].0 - highest) / total;
            add_times(out, &share.weighted[head * head_dim..][..head_dim], weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole_without_gaps() {
        for (seen, count) in [(0..7, 2), (3..4, 4), (5..5, 3), (0..2048, 3)] {
            let parts: Vec<_> = (0..count).map(|index| part(&seen, index, count)).collect();
            assert_eq!(parts.iter().flat_map(Clone::clone).collect::<Vec<_>>(), seen.collect::<Vec<_>>());
            let lengths = || parts.iter().map(Range::len);
            assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1, "{parts:?}");
        }
    }

    #[test]
    fn shares_give_one_softmax_and_those_without_keys_nothing() {
        let share =
            |weighted: f32, sums| Share { scores: Vec::new(), weighted: vec![weighted], sums: vec![sums] };
        // Scores 0 and ln 3 with the values 10 and 20: weights 1/4 and 3/4.
        let shares =
            [share(10.0, (0.0, 1.0)), share(20.0, (3f32.ln(), 1.0)), share(0.0, (f32::NEG_INFINITY, 0.0))];
        let mut attended = [0.0];
        put_together(&shares, 1, None, &mut attended);
        assert!((attended[0] - 17.5).abs() < 1e-5, "{attended:?}");
    }
}
