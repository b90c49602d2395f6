//! Attention of a decoder's queries to the vectors of audio, whose keys and values are computed once.

use bundle::{LayerAttention, ModelConfig};
use candle_core::{Device, Result, Tensor, bail};

use super::{Attention, Place, Step};
use crate::elements::with_f32;
use crate::kernels::Kernels;
use crate::sequences::{Cache, Sequences};

impl Attention {
    pub(crate) fn of_audio(config: &ModelConfig, kernels: Kernels) -> Attention {
        Attention {
            heads: config.heads,
            kv_heads: config.heads,
            head_dim: config.head_dim,
            norms: None,
            scale: (config.head_dim as f32).sqrt().recip(),
            cap: None,
            layer: LayerAttention { window: None, causal: false, rotation: None },
            hears: true,
            sinks: None,
            kernels,
        }
    }

    /// Keys beside values, `[positions, 2 · heads · head_dim]`, as attention reads them.
    pub(crate) fn heard(&self, kv: &Tensor) -> Result<Cache> {
        let by_head = |part: usize| {
            let width = self.heads * self.head_dim;
            let part = kv.narrow(1, part * width, width)?;
            part.reshape((kv.dim(0)?, self.heads, self.head_dim))?.transpose(0, 1)?.contiguous()
        };
        Ok(Cache { keys: by_head(0)?, values: by_head(1)? })
    }

    /// `[rows, heads · head_dim]` → the same.
    pub(super) fn to_audio(
        &self,
        queries: &Tensor,
        sequences: &mut Sequences,
        layer: usize,
    ) -> Result<Tensor> {
        let Sequences { heard, shares, .. } = sequences;
        let Some(cache) = heard.get(layer) else { bail!("append before listen") };
        let ((rows, width), keys) = (queries.dims2()?, cache.keys.dim(1)?);
        let at = Place { batch: 1, positions: rows, filled: keys, padding: &[], audio: Some(keys) };
        let mut attended = vec![0.0; rows * width];
        if self.kernels == Kernels::Candle {
            let queries = (queries * f64::from(self.scale))?;
            self.attend_to_cache(&queries, [&cache.keys, &cache.values], &at, &mut attended)?;
        } else {
            with_f32(queries, |qkv| {
                self.attend_to(cache, &Step { qkv, at, rotary: None }, shares, &mut attended)
            })??;
        }
        Tensor::from_vec(attended, (rows, width), &Device::Cpu)
    }
}
