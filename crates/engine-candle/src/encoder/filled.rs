//! Texts that are filled up to the longest.

use candle_core::{Device, Result, Tensor};
use engine::Texts;

use crate::weight::with_f32;

/// Texts of one length, whose last tokens are padding.
pub(super) struct Filled {
    tokens: Vec<u32>,
    types: Vec<u32>,
    lengths: Vec<usize>,
}

impl Filled {
    pub(super) fn new(texts: Texts<'_>, pad_token: u32) -> Filled {
        let longest = texts.lengths.iter().copied().max().unwrap_or(0);
        let filled = |numbers: &[u32], with: u32| {
            let (mut rest, mut filled) = (numbers, Vec::with_capacity(longest * texts.lengths.len()));
            for &length in texts.lengths {
                let own;
                (own, rest) = rest.split_at(length.min(rest.len()));
                filled.extend_from_slice(own);
                filled.resize(filled.len() + longest - own.len(), with);
            }
            filled
        };
        Filled {
            tokens: filled(texts.tokens, pad_token),
            types: if texts.types.is_empty() { Vec::new() } else { filled(texts.types, 0) },
            lengths: vec![longest; texts.lengths.len()],
        }
    }

    pub(super) fn texts(&self) -> Texts<'_> {
        Texts { tokens: &self.tokens, types: &self.types, lengths: &self.lengths }
    }

    /// The rows of `x` that are no padding: `[texts · longest, width]` → `[tokens, width]`.
    pub(super) fn tokens_of(&self, x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        let (longest, width) = (self.lengths.first().copied().unwrap_or(0), x.dim(1)?);
        let rows = with_f32(x, |x| {
            let texts = x.chunks_exact((longest * width).max(1)).zip(lengths);
            texts.flat_map(|(text, &length)| &text[..length * width]).copied().collect::<Vec<f32>>()
        })?;
        Tensor::from_vec(rows, (lengths.iter().sum::<usize>(), width), &Device::Cpu)
    }
}
