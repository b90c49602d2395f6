//! Grouped-query attention over the cache, causal or bidirectional, as products of whole matrices. The query
//! heads that share keys and values are stacked into one matrix, so that keys and values are never repeated.

use bundle::{LayerAttention, ModelConfig};
use candle_core::{D, Result, Tensor};
use candle_nn::{ops, rotary_emb};
use engine::EngineError;

use super::sequences::{Cache, Step};
use super::upload::Upload;

/// Queries of a sequence per product, which bounds the memory of the scores.
const QUERY_BLOCK: usize = 1024;

#[derive(Debug)]
pub(super) struct Attention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Weights of the norms over each head of queries and of keys, or over all heads.
    norms: Option<[Tensor; 2]>,
    epsilon: f32,
    scale: f64,
    /// Soft bound of the scores.
    cap: Option<f64>,
    layer: LayerAttention,
}

impl Attention {
    pub(super) fn read(
        upload: &Upload<'_>,
        config: &ModelConfig,
        index: usize,
    ) -> std::result::Result<Attention, EngineError> {
        let (names, form) = (config.layer(index), &config.form);
        let norm = |name: &str| upload.offset_vector(name, form.norm_offset);
        let norms = match (&names.q_norm, &names.k_norm) {
            (Some(q), Some(k)) => Some([norm(q)?, norm(k)?]),
            _ => None,
        };
        Ok(Attention {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            norms,
            epsilon: config.norm_epsilon as f32,
            scale: form.attention_scale.unwrap_or((config.head_dim as f64).sqrt().recip()),
            cap: form.attention_cap,
            layer: config.layer_attention(index),
        })
    }

    /// `[rows, (heads + 2 · kv_heads) · head_dim]` → `[rows, heads · head_dim]`. Keys and values are added to
    /// `cache`. The rows of the steps follow one another.
    pub(super) fn forward(&self, qkv: &Tensor, cache: &Cache, steps: &[Step]) -> Result<Tensor> {
        if let [step] = steps {
            return self.of_step(qkv, cache, step);
        }
        let mut first = 0;
        let mut attended = Vec::with_capacity(steps.len());
        for step in steps {
            let rows = step.batch * step.positions;
            let cache = cache.of_sequence(step.sequence, self.kv_heads)?;
            attended.push(self.of_step(&qkv.narrow(0, first, rows)?, &cache, step)?);
            first += rows;
        }
        Tensor::cat(&attended, 0)
    }

    fn of_step(&self, qkv: &Tensor, cache: &Cache, step: &Step) -> Result<Tensor> {
        let (heads, kv_heads, d) = (self.heads, self.kv_heads, self.head_dim);
        let (batch, positions) = (step.batch, step.positions);
        let lanes = batch * kv_heads;
        // Rotating queries and keys together takes one kernel, and no copy for a single row.
        let queries_keys = qkv.narrow(1, 0, (heads + kv_heads) * d)?;
        let queries_keys = queries_keys.reshape((batch, positions, heads + kv_heads, d))?;
        let queries_keys = self.rotated(self.normed(queries_keys)?, step)?;
        let by_head =
            |x: Tensor, count: usize| x.reshape((batch, positions, count, d))?.transpose(1, 2)?.contiguous();
        let keys = by_head(queries_keys.narrow(2, heads, kv_heads)?, kv_heads)?;
        let values = by_head(qkv.narrow(1, (heads + kv_heads) * d, kv_heads * d)?, kv_heads)?;
        let shape = (lanes, positions, d);
        cache.append(&keys.reshape(shape)?, &values.reshape(shape)?, step.start + step.filled)?;

        let queries = (by_head(queries_keys.narrow(2, 0, heads)?, heads)? * self.scale)?;
        let attended = self.attend(&queries, cache, step, QUERY_BLOCK)?;
        attended.transpose(1, 2)?.reshape((batch * positions, heads * d))
    }

    /// `[batch, heads, positions, head_dim]`, `block` queries at a time.
    fn attend(&self, queries: &Tensor, cache: &Cache, step: &Step, block: usize) -> Result<Tensor> {
        let (batch, heads, positions, d) = queries.dims4()?;
        let mut blocks = Vec::with_capacity(positions.div_ceil(block));
        for start in (0..positions).step_by(block) {
            let count = block.min(positions - start);
            // Without a mask every query sees all keys.
            let visible =
                if step.mask.is_some() { step.filled + start + count } else { step.filled + positions };
            // A single query needs no mask for its window: the range of keys is enough.
            let first = if positions == 1 { self.layer.first_key(step.filled) } else { 0 };
            let cached = |all: &Tensor| all.narrow(1, step.start + first, visible - first);
            let stacked = (batch * self.kv_heads, heads / self.kv_heads * count, d);
            let queries = queries.narrow(2, start, count)?.reshape(stacked)?;
            let mut scores = queries.matmul(&cached(&cache.keys)?.transpose(1, 2)?)?;
            if let Some(cap) = self.cap {
                scores = ((scores / cap)?.tanh()? * cap)?;
            }
            if let Some(mask) = self.mask(step) {
                let shape = scores.dims3()?;
                let mask = mask.narrow(D::Minus2, start, count)?.narrow(D::Minus1, first, visible - first)?;
                // A mask has a batch dimension if the sequences differ.
                let rows = if mask.rank() > 2 { vec![batch, heads] } else { vec![batch * heads] };
                let by_query = [rows, vec![count, visible - first]].concat();
                scores = scores.reshape(by_query)?.broadcast_add(&mask)?.reshape(shape)?;
            }
            let attended = ops::softmax_last_dim(&scores)?.matmul(&cached(&cache.values)?)?;
            blocks.push(attended.reshape((batch, heads, count, d))?);
        }
        match blocks.as_slice() {
            [block] => Ok(block.clone()),
            blocks => Tensor::cat(blocks, 2),
        }
    }

    fn mask<'a>(&self, step: &'a Step) -> Option<&'a Tensor> {
        let sliding = step.sliding_mask.as_ref().filter(|_| self.layer.window.is_some());
        sliding.or(step.mask.as_ref())
    }

    /// `[batch, positions, heads + kv_heads, head_dim]`, normed if the model needs it, over each head or over
    /// all heads: the length of the weights decides.
    fn normed(&self, queries_keys: Tensor) -> Result<Tensor> {
        let Some([of_queries, of_keys]) = &self.norms else { return Ok(queries_keys) };
        let queries = queries_keys.narrow(2, 0, self.heads)?.contiguous()?;
        let keys = queries_keys.narrow(2, self.heads, self.kv_heads)?.contiguous()?;
        let norm = |x: &Tensor, weight: &Tensor| {
            let (shape, width) = (x.shape().clone(), weight.dim(0)?);
            if width == self.head_dim {
                return ops::rms_norm(x, weight, self.epsilon);
            }
            let rows = x.elem_count() / width;
            ops::rms_norm(&x.reshape((rows, width))?, weight, self.epsilon)?.reshape(shape)
        };
        Tensor::cat(&[norm(&queries, of_queries)?, norm(&keys, of_keys)?], 2)
    }

    fn rotated(&self, queries_keys: Tensor, step: &Step) -> Result<Tensor> {
        let Some(rotation) = self.layer.rotation else { return Ok(queries_keys) };
        let [cos, sin] = &step.rotary[rotation];
        let (rotated, width) = (2 * cos.dim(D::Minus1)?, self.head_dim);
        if rotated == width {
            return rotary_emb::rope_thd(&queries_keys, cos, sin);
        }
        let turned = rotary_emb::rope_thd(&queries_keys.narrow(3, 0, rotated)?.contiguous()?, cos, sin)?;
        Tensor::cat(&[turned, queries_keys.narrow(3, rotated, width - rotated)?], 3)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::tensors::sequences::Sequences;

    /// Unsorted numbers between −1 and 1.
    fn numbers(shape: &[usize]) -> Tensor {
        let count = shape.iter().product::<usize>();
        let numbers = (0..count).map(|i| (i * 7919 % 2003) as f32 / 1001.5 - 1.0);
        Tensor::from_iter(numbers, &Device::Cpu).unwrap().reshape(shape).unwrap()
    }

    #[test]
    fn blocks_of_queries_give_what_all_at_once_give() {
        let layer = LayerAttention { window: Some(4), causal: true, rotation: None };
        let (heads, kv_heads, head_dim) = (4, 2, 8);
        let (norms, epsilon, scale, cap) = (None, 0.0, 1.0, None);
        let attention = Attention { heads, kv_heads, head_dim, norms, epsilon, scale, cap, layer };
        let (batch, filled, positions) = (2, 3, 7);
        let cached = || numbers(&[batch * 2, filled + positions, 8]);
        let cache = Cache { keys: cached(), values: cached() };
        let (device, dtype) = (Device::Cpu, DType::F32);
        let sequences = Sequences {
            batch,
            padding: Vec::new(),
            caches: Vec::new(),
            rotary: Vec::new(),
            window: Some(4),
            causal: true,
            dtype,
            device,
        };
        let step = sequences.step(filled, positions).unwrap();
        let queries = numbers(&[batch, 4, positions, 8]);
        let attend = |block: usize| {
            let attended = attention.attend(&queries, &cache, &step, block).unwrap();
            attended.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let (in_blocks, at_once) = (attend(3), attend(positions));
        assert!(in_blocks.iter().zip(&at_once).all(|(a, b)| (a - b).abs() < 1e-6));
    }
}
