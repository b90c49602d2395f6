//! Attention of each text's tokens to one another. The tokens of all texts are the rows of one matrix, and queries go
//! block by block, whichever text they are of: so long texts are shared by threads as many short ones are.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::relative::Relative;
use super::{Attention, softmax_of_seen};
use crate::math::{add, cap};
use crate::parallel::for_each_chunk;
use crate::sequences::RotaryTable;
use crate::weight::{change_f32, with_f32};

/// Queries whose scores are computed together: few enough for their scores to stay in cache, and for little to be
/// computed that masks throw away.
const QUERY_BLOCK: usize = 128;

/// What the layers' attention takes of a batch of texts.
#[derive(Debug)]
pub(crate) struct TextRows<'a> {
    /// Rows of each text.
    pub(crate) lengths: &'a [usize],
    /// Of each row, in its text.
    pub(crate) positions: &'a [usize],
    /// One for each of the model's rotations.
    pub(crate) rotary: &'a [RotaryTable],
    pub(crate) relative: Option<&'a Relative>,
}

impl Attention {
    /// `[rows, (heads + 2 · kv_heads) · head_dim]` → `[rows, heads · head_dim]`. Queries and keys are normed and rotated in
    /// their place.
    pub(crate) fn of_texts(&self, qkv: &Tensor, texts: &TextRows<'_>) -> Result<Tensor> {
        self.norm_and_rotate(qkv, texts)?;
        let rows = qkv.dim(0)?;
        let qkv = qkv.reshape((rows, self.heads + 2 * self.kv_heads, self.head_dim))?;
        let width = self.heads * self.head_dim;
        let mut attended = vec![0.0; rows * width];
        let mut blocks = Vec::new();
        let (mut first, mut rest) = (0, &mut attended[..]);
        for &length in texts.lengths {
            for start in (0..length).step_by(QUERY_BLOCK) {
                let queries = start..length.min(start + QUERY_BLOCK);
                let out;
                (out, rest) = rest.split_at_mut(queries.len() * width);
                blocks.push((first..first + length, queries, out));
            }
            first += length;
        }
        blocks.into_par_iter().try_for_each(|(text, queries, out)| {
            let text = qkv.narrow(0, text.start, text.len())?;
            self.attend_in_text(&text, queries, texts.relative, out)
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

    /// Two products for the queries of the heads, on views of `[length, heads + 2 · kv_heads, head_dim]`: nothing
    /// is copied before them, and keys and values are never repeated. `out`: `[queries, heads · head_dim]`.
    fn attend_in_text(
        &self,
        text: &Tensor,
        queries: Range<usize>,
        relative: Option<&Relative>,
        out: &mut [f32],
    ) -> Result<()> {
        let (heads, d, count) = (self.heads, self.head_dim, queries.len());
        let group = heads / self.kv_heads;
        let length = text.dim(0)?;
        let seen: Vec<_> = queries.clone().map(|position| self.layer.keys(position, length)).collect();
        // All that any query of the block sees.
        let all = seen[0].start..seen[count - 1].end;
        let seen: Vec<_> = seen.into_iter().map(|own| own.start - all.start..own.end - all.start).collect();
        // Heads that are one product: all where each has keys of its own. Others do not share keys by a stride of 0, for
        // candle takes such a batch for one matrix whose rows lie side by side.
        let at_once = if group == 1 { heads } else { 1 };
        for first in (0..heads).step_by(at_once) {
            let view = |rows: &Range<usize>, head: usize| {
                text.narrow(0, rows.start, rows.len())?.narrow(1, head, at_once)?.transpose(0, 1)
            };
            let [keys, values] = [heads, heads + self.kv_heads].map(|head| view(&all, head + first / group));
            let scores = view(&queries, first)?.matmul(&keys?.transpose(1, 2)?)?;
            softmax_of_seen(&scores, &seen, |row, scores| {
                scores.iter_mut().for_each(|score| *score *= self.scale);
                let query = row % count;
                if let Some(relative) = relative {
                    let first_key = all.start + seen[query].start;
                    add(
                        scores,
                        relative.of(first + row / count, queries.start + query, first_key, scores.len()),
                    );
                }
                if let Some(bound) = self.cap {
                    cap(scores, bound);
                }
            })?;
            let product = scores.matmul(&values?)?;
            with_f32(&product, |product| {
                for (row, from) in product.chunks_exact(d).enumerate() {
                    let (head, query) = (first + row / count, row % count);
                    out[(query * heads + head) * d..][..d].copy_from_slice(from);
                }
            })?;
        }
        Ok(())
    }
}
