//! Attention of few queries: each thread takes an equal share of the keys that a query sees, for all query
//! heads that read them, and the partial results are combined. The threads are equally busy for any number of
//! heads, and each key and value is read once.
//!
//! Combining softmax from parts is Milakov and Gimelshein's online softmax (2018). Flash-Decoding (Dao and
//! others 2023) uses it in this way.

use std::ops::Range;

use candle_core::{DType, Result, WithDType, bail};
use half::{bf16, f16};

use super::grouped::{self, Kept};
use super::{Attention, Step};
use crate::math::{add_times, cap, exp, exponentials};
use crate::parallel::for_each;
use crate::sequences::Cache;
use crate::share::{KEY_BLOCK, Share};
use crate::weight::with_elements;

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
    pub(super) fn attend_in_shares(
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
        put_together(shares, self.head_dim, attended);
        Ok(())
    }

    fn find_in_shares<T: Kept + WithDType>(
        &self,
        cache: &Cache,
        step: &Step<'_>,
        shares: &mut [Share],
    ) -> Result<()> {
        let mut queries = vec![0.0; step.batch * step.positions * self.heads * self.head_dim];
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
        let rows = self.step.batch * self.step.positions;
        share.clear(rows * heads, head_dim);
        for row in 0..rows {
            let seen = part(&self.attention.seen(self.step, row), index, count);
            for kv_head in (0..kv_heads).filter(|_| !seen.is_empty()) {
                let lane = row / self.step.positions * kv_heads + kv_head;
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
fn put_together(shares: &[Share], head_dim: usize, attended: &mut [f32]) {
    for (head, out) in attended.chunks_exact_mut(head_dim).enumerate() {
        let highest = shares.iter().map(|share| share.sums[head].0).fold(f32::NEG_INFINITY, f32::max);
        let total: f32 =
            shares.iter().map(|share| share.sums[head].1 * exp(share.sums[head].0 - highest)).sum();
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
        put_together(&shares, 1, &mut attended);
        assert!((attended[0] - 17.5).abs() < 1e-5, "{attended:?}");
    }
}
