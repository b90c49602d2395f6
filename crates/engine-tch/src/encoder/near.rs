//! Attention within a window over long texts. Rows are cut into blocks. Each attends only to the keys that
//! its queries may see, not to all keys of the text, most of which a mask would hide.

use tch::{Device, Kind, TchError, Tensor};

use super::rows::Group;
use crate::mask;

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
        let band = mask::hidden([queries, keys], before + ahead + 1, Some(-1), options)?;
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
