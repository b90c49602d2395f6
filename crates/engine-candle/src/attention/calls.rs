//! Attention by operations of candle: two products and a softmax, each called for the query heads that share keys and for
//! a block of queries. The threads take such blocks. Between the operations, numbers are copied and nothing else.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{ops, rotary_emb};

use super::texts::TextRows;
use super::{Attention, Place, Relative};
use crate::elements::{change_f32, with_f32};
use crate::parallel::{by_rows, each_element, try_for_each};
use crate::sequences::Sequences;

/// Rows of scores of a block: few enough that they stay in a core's cache, and that the causal mask discards few of them.
const BLOCK_ROWS: usize = 192;

/// Fewer queries are not worth a product.
const LEAST_QUERIES: usize = 16;

/// Fewer scores than these are found before another thread is awake.
const SCORES_OF_ONE_THREAD: usize = 1024;

/// Up to so many rows, and from so many keys, candle multiplies each row by a matrix sooner than all rows at once.
const FEW_ROWS: usize = 4;
const MANY_KEYS: usize = 128;

/// Some queries of a sequence, for the query heads that share a head of keys.
struct Block<'a> {
    /// The sequence's place in the step, or its first row.
    of: usize,
    queries: Range<usize>,
    kv_head: usize,
    /// For each query `[heads that share keys · head_dim]`.
    out: Vec<&'a mut [f32]>,
}

impl Attention {
    /// As [`Attention::forward`].
    pub(super) fn by_candle(
        &self,
        qkv: &Tensor,
        sequences: &mut Sequences,
        (layer, lengths): (usize, Option<&[usize]>),
    ) -> Result<Tensor> {
        let (rows, width) = (qkv.dim(0)?, self.heads * self.head_dim);
        let Sequences { batch, filled, padding, caches, grows, turns, .. } = sequences;
        let [queries, keys, values] =
            self.turned(qkv, self.layer.rotation.map(|rotation| &turns[rotation]))?;
        let mut attended = vec![0.0; rows * width];
        let cache = &mut caches[layer];
        let Some(lengths) = lengths else {
            let at = Place { batch: *batch, positions: rows / *batch, filled: *filled, padding, audio: None };
            let (keys, values) = (self.by_lane(&keys, &at)?, self.by_lane(&values, &at)?);
            match *grows {
                true => cache.grow(&keys, &values)?,
                false => cache.append(&keys, &values, at.filled)?,
            }
            self.attend_to_cache(&queries, [&cache.keys, &cache.values], &at, &mut attended)?;
            return Tensor::from_vec(attended, (rows, width), &Device::Cpu);
        };
        // One sequence after the other, so that nothing is computed for padding.
        let (mut first, mut rest) = (0, &mut attended[..]);
        for (sequence, &positions) in lengths.iter().enumerate() {
            let out;
            (out, rest) = rest.split_at_mut(positions * width);
            let padding = &padding[sequence..=sequence];
            let at = Place { batch: 1, positions, filled: padding[0], padding, audio: None };
            let own = |x: &Tensor| x.narrow(0, first, positions);
            let cache = cache.of_sequence(sequence, self.kv_heads)?;
            cache.append(
                &self.by_lane(&own(&keys)?, &at)?,
                &self.by_lane(&own(&values)?, &at)?,
                at.filled,
            )?;
            self.attend_to_cache(&own(&queries)?, [&cache.keys, &cache.values], &at, out)?;
            first += positions;
        }
        Tensor::from_vec(attended, (rows, width), &Device::Cpu)
    }

    /// Attention within each text, as [`Attention::of_texts`].
    pub(super) fn of_texts_by_candle(&self, qkv: &Tensor, texts: &TextRows<'_>) -> Result<Tensor> {
        let (rows, width) = (qkv.dim(0)?, self.heads * self.head_dim);
        let turns = self.layer.rotation.map(|rotation| &texts.turns[rotation]);
        let [queries, keys, values] = self.turned(qkv, turns)?;
        let mut attended = vec![0.0; rows * width];
        let mut blocks = Vec::new();
        let (mut first, mut rest) = (0, &mut attended[..]);
        for (text, &length) in texts.lengths.iter().enumerate() {
            let out;
            (out, rest) = rest.split_at_mut(length * width);
            blocks.extend(self.blocks((text, length), out).into_iter().map(|block| (first, block)));
            first += length;
        }
        try_for_each(blocks, |(first, Block { of: text, queries: own, kv_head, out })| {
            let (length, tokens) = (texts.lengths[text], texts.tokens[text]);
            let all = self.layer.keys(own.start, length).start..self.layer.keys(own.end - 1, length).end;
            let seen = own.clone().map(|position| {
                let seen = self.layer.keys(position, length);
                seen.start..seen.end.min(tokens)
            });
            let head = |x: &Tensor| {
                x.narrow(0, first + all.start, all.len())?.narrow(1, kv_head * self.head_dim, self.head_dim)
            };
            let relative = texts.relative.map(|relative| (relative, own.clone()));
            let own = self.stacked(&queries.narrow(0, first + own.start, own.len())?, kv_head)?;
            let seen: Vec<_> = seen.collect();
            let made =
                self.of_block(&own, [head(&keys)?, head(&values)?], (&all, &seen), relative, kv_head)?;
            put(&made, out)
        })?;
        Tensor::from_vec(attended, (rows, width), &Device::Cpu)
    }

    /// Queries, keys and values of rows of `[heads + 2 · kv_heads, head_dim]`: each `[rows, its heads · head_dim]`. Queries
    /// and keys are normed and rotated, and queries scaled, so that the scores need not be.
    fn turned(&self, qkv: &Tensor, turns: Option<&[Tensor; 2]>) -> Result<[Tensor; 3]> {
        let (rows, d) = (qkv.dim(0)?, self.head_dim);
        let heads = |part: &Range<usize>, first: usize, count: usize| {
            qkv.narrow(0, part.start, part.len())?.narrow(1, first * d, count * d)
        };
        let turned = |first: usize, count: usize| {
            by_rows((rows, count * d), |part| {
                let mut x = heads(&part, first, count)?.contiguous()?;
                if let Some(norms) = &self.norms {
                    x = norms.forward(&x, first > 0)?;
                }
                if let Some([cos, sin]) = turns {
                    let own = |table: &Tensor| table.narrow(0, part.start, part.len());
                    x = rotated(&x.reshape((1, part.len(), count, d))?, &own(cos)?, &own(sin)?)?;
                }
                if first == 0 {
                    x = (x * f64::from(self.scale))?;
                }
                x.reshape((part.len(), count * d))
            })
        };
        let values = heads(&(0..rows), self.heads + self.kv_heads, self.kv_heads)?;
        Ok([turned(0, self.heads)?, turned(self.heads, self.kv_heads)?, values])
    }

    /// `[rows, kv_heads · head_dim]` in the order of the cache, `[batch · kv_heads, positions, head_dim]`.
    pub(super) fn by_lane(&self, x: &Tensor, at: &Place<'_>) -> Result<Tensor> {
        let lanes = x.reshape((at.batch, at.positions, self.kv_heads, self.head_dim))?.transpose(1, 2)?;
        lanes.contiguous()?.reshape((at.batch * self.kv_heads, at.positions, self.head_dim))
    }

    /// `attended`: `[rows, heads · head_dim]`.
    pub(super) fn attend_to_cache(
        &self,
        queries: &Tensor,
        cached: [&Tensor; 2],
        at: &Place<'_>,
        attended: &mut [f32],
    ) -> Result<()> {
        let sequences = attended.chunks_exact_mut(at.positions * self.heads * self.head_dim).enumerate();
        let mut blocks = sequences.flat_map(|(sequence, out)| self.blocks((sequence, at.positions), out));
        let attend = |Block { of: sequence, queries: own, kv_head, out }: Block<'_>| {
            let rows = sequence * at.positions + own.start..sequence * at.positions + own.end;
            let seen: Vec<_> = rows.clone().map(|row| self.seen(at, row)).collect();
            // All keys that any query of the block sees.
            let all = seen[0].start..seen[seen.len() - 1].end;
            let head = |x: &Tensor| {
                x.get(sequence * self.kv_heads + kv_head)?
                    .narrow(0, all.start, all.len())?
                    .to_dtype(DType::F32)
            };
            let own = self.stacked(&queries.narrow(0, rows.start, rows.len())?, kv_head)?;
            let (keys, values) = (head(cached[0])?, head(cached[1])?);
            put(&self.of_block(&own, [keys, values], (&all, &seen), None, kv_head)?, out)
        };
        let scores = at.batch * at.positions * self.heads * (at.filled + at.positions);
        match scores <= SCORES_OF_ONE_THREAD {
            true => blocks.try_for_each(attend),
            false => try_for_each(blocks.collect(), attend),
        }
    }

    /// The blocks of a sequence, of which `out` is `[length, heads · head_dim]`. The last see the most keys if the model is
    /// causal, so they are first.
    fn blocks<'a>(&self, (of, length): (usize, usize), out: &'a mut [f32]) -> Vec<Block<'a>> {
        let (group, d) = (self.heads / self.kv_heads, self.head_dim);
        let count = (BLOCK_ROWS / group).max(LEAST_QUERIES);
        let mut blocks = Vec::with_capacity(length.div_ceil(count) * self.kv_heads);
        for (index, rows) in out.chunks_mut(count * self.heads * d).enumerate() {
            let first = index * count;
            let queries = first..length.min(first + count);
            let of_head =
                |kv_head| Block { of, queries: queries.clone(), kv_head, out: Vec::with_capacity(count) };
            blocks.extend((0..self.kv_heads).map(of_head));
            let own = blocks.len() - self.kv_heads;
            for row in rows.chunks_exact_mut(self.heads * d) {
                let parts = row.chunks_exact_mut(group * d);
                blocks[own..].iter_mut().zip(parts).for_each(|(block, part)| block.out.push(part));
            }
        }
        blocks.reverse();
        blocks
    }

    /// The query heads that share this head of keys: `[queries, heads · head_dim]` → `[queries · such heads, head_dim]`.
    fn stacked(&self, queries: &Tensor, kv_head: usize) -> Result<Tensor> {
        let (group, d) = (self.heads / self.kv_heads, self.head_dim);
        let heads = queries.narrow(1, kv_head * group * d, group * d)?;
        heads.contiguous()?.reshape((queries.dim(0)? * group, d))
    }

    /// `[queries · heads, head_dim]` → the same. Keys and values are those at the positions `all`, of which each query
    /// sees `seen`.
    fn of_block(
        &self,
        queries: &Tensor,
        [keys, values]: [Tensor; 2],
        (all, seen): (&Range<usize>, &[Range<usize>]),
        relative: Option<(&Relative, Range<usize>)>,
        kv_head: usize,
    ) -> Result<Tensor> {
        let group = self.heads / self.kv_heads;
        let mut scores = product(queries, &keys.t()?)?;
        if let Some((relative, positions)) = relative {
            let heads = kv_head * group..(kv_head + 1) * group;
            let biases = relative.tensor(heads, positions, all)?;
            scores = each_element([&scores, &biases], |[scores, biases]| scores + biases)?;
        }
        scores = self.kernels.capped(scores, self.cap.map(f64::from))?;
        if seen.iter().any(|seen| seen != all) {
            hide(&scores, all, seen)?;
        }
        let Some(sinks) = &self.sinks else { return ops::softmax_last_dim(&scores)?.matmul(&values) };
        let (rows, keys) = scores.dims2()?;
        let column = Tensor::new(&sinks[kv_head * group..][..group], &Device::Cpu)?.reshape((1, group))?;
        let column = column.broadcast_as((rows / group, group))?.contiguous()?.reshape((rows, 1))?;
        let shares = ops::softmax_last_dim(&Tensor::cat(&[scores, column], 1)?)?.narrow(1, 0, keys)?;
        shares.contiguous()?.matmul(&values)
    }
}

/// Writes −∞ to the scores of keys that are not seen. A query of padding that sees none would have no softmax: it sees
/// all, and nothing reads what it finds.
fn hide(scores: &Tensor, all: &Range<usize>, seen: &[Range<usize>]) -> Result<()> {
    let (rows, keys) = scores.dims2()?;
    change_f32(scores, |scores| {
        for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
            let seen = &seen[row / (rows / seen.len())];
            if seen.start < seen.end {
                scores[..seen.start - all.start].fill(f32::NEG_INFINITY);
                scores[seen.end - all.start..].fill(f32::NEG_INFINITY);
            }
        }
    })
}

/// `[rows, head_dim]` by `[head_dim, keys]`.
fn product(queries: &Tensor, keys: &Tensor) -> Result<Tensor> {
    let rows = queries.dim(0)?;
    if !(2..=FEW_ROWS).contains(&rows) || keys.dim(1)? < MANY_KEYS {
        return queries.matmul(keys);
    }
    let each = (0..rows).map(|row| queries.narrow(0, row, 1)?.matmul(keys));
    Tensor::cat(&each.collect::<Result<Vec<_>>>()?, 0)
}

/// Rotates `[1, rows, heads, head_dim]`, of which the model may rotate the first elements alone.
fn rotated(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (rotated, width) = (2 * cos.dim(1)?, x.dim(3)?);
    if rotated == width {
        return rotary_emb::rope_thd(x, cos, sin);
    }
    let turned = rotary_emb::rope_thd(&x.narrow(3, 0, rotated)?.contiguous()?, cos, sin)?;
    Tensor::cat(&[turned, x.narrow(3, rotated, width - rotated)?], 3)
}

/// Copies what was found to its places.
fn put(made: &Tensor, out: Vec<&mut [f32]>) -> Result<()> {
    with_f32(made, |made| {
        let width = made.len() / out.len();
        out.into_iter().zip(made.chunks_exact(width)).for_each(|(out, made)| out.copy_from_slice(made));
    })
}
