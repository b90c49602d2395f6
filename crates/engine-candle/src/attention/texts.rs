//! Attention within each text. The tokens of all texts are the rows of one matrix. Threads take blocks of
//! queries from any text, so a long text is divided among threads just as many short ones are.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};

use super::Relative;
use super::{Attention, softmax_of_seen};
use crate::elements::{change_f32, with_f32};
use crate::kernels::Kernels;
use crate::math::{add, cap};
use crate::parallel::{for_each_chunk, try_for_each};
use crate::sequences::RotaryTable;

/// Queries per product: few enough that the scores stay in cache and that masks discard few of them.
const QUERY_BLOCK: usize = 128;

/// A batch of texts, as input of the layers' attention.
#[derive(Debug)]
pub(crate) struct TextRows<'a> {
    /// Rows of each text.
    pub(crate) lengths: &'a [usize],
    /// Tokens of each text: its first rows. The rest is padding.
    pub(crate) tokens: &'a [usize],
    /// The position of each row in its text.
    pub(crate) positions: &'a [usize],
    /// One for each of the model's rotations.
    pub(crate) rotary: &'a [RotaryTable],
    /// What candle rotates the rows by, if it does.
    pub(crate) turns: &'a [[Tensor; 2]],
    pub(crate) relative: Option<&'a Relative>,
}

impl Attention {
    /// `[rows, (heads + 2 · kv_heads) · head_dim]` → `[rows, heads · head_dim]`. Queries and keys are normed
    /// and rotated in place.
    pub(crate) fn of_texts(&self, qkv: &Tensor, texts: &TextRows<'_>) -> Result<Tensor> {
        if self.kernels == Kernels::Candle {
            return self.of_texts_by_candle(qkv, texts);
        }
        self.norm_and_rotate(qkv, texts)?;
        let rows = qkv.dim(0)?;
        let width = self.heads * self.head_dim;
        let mut attended = vec![0.0; rows * width];
        let mut blocks = Vec::new();
        let (mut first, mut rest) = (0, &mut attended[..]);
        for (&length, &tokens) in texts.lengths.iter().zip(texts.tokens) {
            for start in (0..length).step_by(QUERY_BLOCK) {
                let queries = start..length.min(start + QUERY_BLOCK);
                let out;
                (out, rest) = rest.split_at_mut(queries.len() * width);
                blocks.push((first..first + length, tokens, queries, out));
            }
            first += length;
        }
        try_for_each(blocks, |(text, tokens, queries, out)| {
            let text = qkv.narrow(0, text.start, text.len())?;
            self.attend_in_text((&text, tokens), queries, texts.relative, out)
        })?;
        Tensor::from_vec(attended, (rows, width), &Device::Cpu)
    }

    fn norm_and_rotate(&self, qkv: &Tensor, texts: &TextRows<'_>) -> Result<()> {
        let rotary = self.layer.rotation.map(|rotation| &texts.rotary[rotation]);
        if rotary.is_none() && self.norms.is_none() {
            return Ok(());
        }
        if let Some(norms) = &self.norms {
            norms.over_all_heads(qkv)?;
        }
        let width = qkv.dim(1)?;
        change_f32(qkv, |qkv| {
            for_each_chunk(qkv, width, |row, row_of_heads| {
                let heads = row_of_heads.chunks_exact_mut(self.head_dim).take(self.heads + self.kv_heads);
                for (index, head) in heads.enumerate() {
                    match &self.norms {
                        Some(norms) if index < self.heads => norms.norm_query(head),
                        Some(norms) => norms.norm_key(head),
                        None => {}
                    }
                    if let Some(rotary) = rotary {
                        rotary.rotate(texts.positions[row], head);
                    }
                }
            });
        })
    }

    /// Two products per head, on views of `[length, (heads + 2 · kv_heads) · head_dim]`. Nothing is copied
    /// beforehand, and keys and values are never repeated. `out`: `[queries, heads · head_dim]`.
    fn attend_in_text(
        &self,
        (text, tokens): (&Tensor, usize),
        queries: Range<usize>,
        relative: Option<&Relative>,
        out: &mut [f32],
    ) -> Result<()> {
        let (heads, d) = (self.heads, self.head_dim);
        let length = text.dim(0)?;
        // All keys that any query of the block sees, or would see if the query were not padding.
        let all = self.layer.keys(queries.start, length).start..self.layer.keys(queries.end - 1, length).end;
        let of_query = |position| {
            let own = self.layer.keys(position, length);
            let end = own.end.min(tokens);
            // A query of padding may see no token at all.
            if own.start < end { own.start - all.start..end - all.start } else { 0..0 }
        };
        let seen: Vec<_> = queries.clone().map(of_query).collect();
        let view =
            |rows: &Range<usize>, head: usize| text.narrow(0, rows.start, rows.len())?.narrow(1, head * d, d);
        for head in 0..heads {
            let kv_head = head / (heads / self.kv_heads);
            let (keys, values) = (view(&all, heads + kv_head)?, view(&all, heads + self.kv_heads + kv_head)?);
            let scores = view(&queries, head)?.matmul(&keys.t()?)?;
            softmax_of_seen(&scores, &seen, |row, scores| {
                let query = row % seen.len();
                scores.iter_mut().for_each(|score| *score *= self.scale);
                if let Some(relative) = relative {
                    let first = all.start + seen[query].start;
                    add(scores, relative.scores(head, queries.start + query, first, scores.len()));
                }
                if let Some(bound) = self.cap {
                    cap(scores, bound);
                }
                None
            })?;
            with_f32(&scores.matmul(&values)?, |product| {
                for (out, from) in out.chunks_exact_mut(heads * d).zip(product.chunks_exact(d)) {
                    out[head * d..][..d].copy_from_slice(from);
                }
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bundle::LayerAttention;

    use super::*;

    /// The same attention, computed score by score.
    fn expected(attention: &Attention, qkv: &[f32], lengths: &[usize]) -> Vec<f32> {
        let (heads, kv_heads, d) = (attention.heads, attention.kv_heads, attention.head_dim);
        let of = |row: usize, head: usize| &qkv[(row * (heads + 2 * kv_heads) + head) * d..][..d];
        let mut attended = Vec::new();
        let mut first = 0;
        for &length in lengths {
            for (position, head) in
                (0..length).flat_map(|position| (0..heads).map(move |head| (position, head)))
            {
                let kv_head = head * kv_heads / heads;
                let keys = || attention.layer.keys(position, length).map(|key| first + key);
                let weight = |key: usize| {
                    let pairs = of(first + position, head).iter().zip(of(key, heads + kv_head));
                    (pairs.map(|(q, k)| q * k).sum::<f32>() * attention.scale).exp()
                };
                let total: f32 = keys().map(weight).sum();
                attended.extend((0..d).map(|i| {
                    keys().map(|key| weight(key) * of(key, heads + kv_heads + kv_head)[i]).sum::<f32>()
                        / total
                }));
            }
            first += length;
        }
        attended
    }

    #[test]
    fn texts_of_several_blocks_attend_as_those_of_one() {
        let lengths = [2 * QUERY_BLOCK + 3, 1, QUERY_BLOCK];
        for (window, causal, kv_heads) in
            [(None, false, 4), (Some(9), false, 2), (Some(200), true, 1), (None, true, 2)]
        {
            let layer = LayerAttention { window, causal, rotation: None };
            let attention = |kernels| {
                let (heads, head_dim, norms, scale, cap) = (4, 8, None, 0.5, None);
                Attention {
                    heads,
                    kv_heads,
                    head_dim,
                    norms,
                    scale,
                    cap,
                    layer,
                    hears: false,
                    sinks: None,
                    kernels,
                }
            };
            let (rows, width) = (lengths.iter().sum::<usize>(), (4 + 2 * kv_heads) * 8);
            let qkv: Vec<f32> = (0..rows * width).map(|i| (i * 31 % 101) as f32 / 50.0 - 1.0).collect();
            let (lengths, relative) = (&lengths[..], None);
            let texts =
                TextRows { lengths, tokens: lengths, positions: &[], rotary: &[], turns: &[], relative };
            let tensor = Tensor::from_slice(&qkv, (rows, width), &Device::Cpu).unwrap();
            for kernels in [Kernels::Candle, Kernels::Own] {
                let attention = attention(kernels);
                let found = attention.of_texts(&tensor, &texts).unwrap();
                let found = with_f32(&found, <[f32]>::to_vec).unwrap();
                let expected = expected(&attention, &qkv, lengths);
                let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(difference < 1e-4, "{layer:?}, {kernels:?}: {difference}");
            }
        }
    }
}
