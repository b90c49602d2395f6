//! Layers, without their attention.

use bundle::{Activation, LayerAttention, LinearNames, ModelConfig, NormNames, rotary};
use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{ops, rotary_emb};
use worker::engine::{self};

use super::{Linear, Upload};
use crate::experts::{self, Feed};
use crate::reader::framework;
pub(super) use crate::sequences::Cache;

/// RMSNorm, or LayerNorm if there is a bias. A LayerNorm without bias has one of zeros.
#[derive(Debug)]
pub(super) struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    epsilon: f32,
}

impl Norm {
    pub(super) fn read(upload: &Upload<'_>, config: &ModelConfig, names: &NormNames) -> engine::Result<Norm> {
        let offset = if config.rms_norm { config.form.norm_offset } else { 0.0 };
        let weight = upload.offset_vector(&names.weight, offset)?;
        let bias = names.bias.as_deref().map(|name| upload.named_vector(name)).transpose()?;
        Norm::new(weight, bias, (config.rms_norm, config.norm_epsilon as f32)).map_err(framework)
    }

    fn new(weight: Tensor, bias: Option<Tensor>, (rms_norm, epsilon): (bool, f32)) -> Result<Norm> {
        let bias = match bias {
            None if !rms_norm => Some(weight.zeros_like()?),
            bias => bias,
        };
        Ok(Norm { weight, bias, epsilon })
    }

    /// Over the last dimension of contiguous `x`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            None => ops::rms_norm(x, &self.weight, self.epsilon),
            Some(bias) => ops::layer_norm(x, &self.weight, bias, self.epsilon),
        }
    }
}

/// The residual stream x becomes x + multiplier · norm(block(norm(x))). Parts that the model lacks are left
/// out.
#[derive(Debug)]
struct SublayerNorms {
    before: Option<Norm>,
    behind: Option<Norm>,
    multiplier: Option<f64>,
}

impl SublayerNorms {
    fn read(
        upload: &Upload<'_>,
        config: &ModelConfig,
        norms: [&Option<NormNames>; 2],
    ) -> engine::Result<SublayerNorms> {
        let norm = |names: &Option<NormNames>| {
            names.as_ref().map(|names| Norm::read(upload, config, names)).transpose()
        };
        let [before, behind] = norms.map(norm);
        Ok(SublayerNorms { before: before?, behind: behind?, multiplier: config.form.residual_multiplier })
    }

    /// The block's input.
    fn enter(&self, x: &Tensor) -> Result<Tensor> {
        match &self.before {
            Some(norm) => norm.forward(x),
            None => Ok(x.clone()),
        }
    }

    /// The same of a block beside another one, which without a norm of its own shares the other's input.
    fn enter_or(&self, x: &Tensor, other: &Tensor) -> Result<Tensor> {
        match &self.before {
            Some(norm) => norm.forward(x),
            None => Ok(other.clone()),
        }
    }

    /// `x` plus the block's output.
    fn leave(&self, x: &Tensor, y: Tensor) -> Result<Tensor> {
        let y = match &self.behind {
            Some(norm) => norm.forward(&y)?,
            None => y,
        };
        match self.multiplier {
            Some(multiplier) => x + (y * multiplier)?,
            None => x + y,
        }
    }
}

#[derive(Debug)]
pub(super) struct Layer {
    attention_norms: SublayerNorms,
    qkv: Linear,
    attention: Attention,
    output: Linear,
    mlp_norms: SublayerNorms,
    feed: Feed<Mlp, Linear>,
    /// The input of the second block is that of the first.
    parallel: bool,
}

impl Layer {
    pub(super) fn read(upload: &Upload<'_>, config: &ModelConfig, index: usize) -> engine::Result<Layer> {
        let names = config.layer(index);
        let place = |norms| SublayerNorms::read(upload, config, norms);
        let mlp = |mlp, names: [&LinearNames; 2]| Mlp::read(upload, mlp, names);
        Ok(Layer {
            attention_norms: place([&names.attention_norm, &names.post_attention_norm])?,
            qkv: upload.linear(&names.qkv)?,
            attention: Attention::read(upload, config, index)?,
            output: upload.linear(&names.output)?,
            mlp_norms: place([&names.mlp_norm, &names.post_mlp_norm])?,
            feed: Feed::read(config, (index, &names), mlp, |names| upload.linear(names))?,
            parallel: config.form.parallel,
        })
    }

    /// The residual stream `x`, `[rows, hidden]`, plus the outputs of both blocks.
    pub(super) fn forward(&self, x: &Tensor, cache: &Cache, steps: &[Step]) -> Result<Tensor> {
        let entered = self.attention_norms.enter(x)?;
        let attended = self.attention.forward(&self.qkv.forward(&entered)?, cache, steps)?;
        let sum = self.attention_norms.leave(x, self.output.forward(&attended)?)?;
        let entered =
            if self.parallel { self.mlp_norms.enter_or(x, &entered)? } else { self.mlp_norms.enter(&sum)? };
        self.mlp_norms.leave(&sum, self.feed.forward(&entered)?)
    }
}

#[derive(Debug)]
struct Mlp {
    gate_up: Linear,
    down: Linear,
    activation: Activation,
    /// Outputs of the gate, if there is one.
    gate: Option<usize>,
}

impl Mlp {
    fn read(upload: &Upload<'_>, mlp: bundle::Mlp, names: [&LinearNames; 2]) -> engine::Result<Mlp> {
        Ok(Mlp {
            gate_up: upload.linear(names[0])?,
            down: upload.linear(names[1])?,
            activation: mlp.activation,
            gate: mlp.gated.then_some(mlp.width),
        })
    }

    fn activate(&self, x: &Tensor) -> Result<Tensor> {
        match self.activation {
            Activation::Silu => x.silu(),
            Activation::GeluTanh => x.gelu(),
            Activation::GeluErf => x.gelu_erf(),
            Activation::Relu => x.relu(),
        }
    }
}

impl experts::Mlp for Mlp {
    fn forward(&self, x: &Tensor, clamped: bool) -> Result<Tensor> {
        let gate_up = self.gate_up.forward(x)?;
        let activated = match self.gate {
            None => self.activate(&gate_up)?,
            Some(width) if clamped => {
                experts::clamped(&gate_up.narrow(1, 0, width)?, &gate_up.narrow(1, width, width)?)?
            }
            Some(width) => {
                let gate = self.activate(&gate_up.narrow(1, 0, width)?)?;
                (gate * gate_up.narrow(1, width, width)?)?
            }
        };
        self.down.forward(&activated)
    }
}

// Grouped-query attention over the cache, causal or bidirectional, as products of whole matrices. The query
// heads that share keys and values are stacked into one matrix, so that keys and values are never repeated.

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
    /// A number beside the scores of each head, `[heads]`.
    sinks: Option<Tensor>,
}

impl Attention {
    pub(super) fn read(upload: &Upload<'_>, config: &ModelConfig, index: usize) -> engine::Result<Attention> {
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
            sinks: names.sinks.as_deref().map(|name| upload.named_vector(name)).transpose()?,
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
            let shares = match &self.sinks {
                None => ops::softmax_last_dim(&scores)?,
                Some(sinks) => {
                    let (lanes, rows, keys) = scores.dims3()?;
                    let column = sinks.reshape((1, heads, 1, 1))?.broadcast_as((batch, heads, count, 1))?;
                    let column = column.contiguous()?.reshape((lanes, rows, 1))?;
                    ops::softmax_last_dim(&Tensor::cat(&[&scores, &column], 2)?)?.narrow(2, 0, keys)?
                }
            };
            let attended = shares.contiguous()?.matmul(&cached(&cache.values)?)?;
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

// Caches, rotation tables and masks of a batch of sequences.

#[derive(Debug)]
pub(super) struct Sequences {
    pub(super) batch: usize,
    /// Padding positions before each sequence; empty if all have the same length.
    pub(super) padding: Vec<u32>,
    /// One for each layer.
    pub(super) caches: Vec<Cache>,
    /// Cosines and sines, each `[capacity, rotated dimensions / 2]`, for each of the model's rotations.
    pub(super) rotary: Vec<[Tensor; 2]>,
    pub(super) window: Option<usize>,
    pub(super) causal: bool,
    pub(super) dtype: DType,
    pub(super) device: Device,
}

/// The positions that one call appends, as many to each sequence of the step.
pub(super) struct Step {
    /// The first of its sequences.
    pub(super) sequence: usize,
    pub(super) batch: usize,
    /// First cache position of these sequences.
    pub(super) start: usize,
    /// Positions in use from `start` on.
    pub(super) filled: usize,
    pub(super) positions: usize,
    /// Positions of the new tokens, `[batch · positions]`, if sequences differ in them.
    pub(super) places: Option<Tensor>,
    /// Cosines and sines of these positions, by rotation: each `[positions, rotated dimensions / 2]`, or with
    /// `places` `[batch, positions, …]`.
    pub(super) rotary: Vec<[Tensor; 2]>,
    /// `[positions, filled + positions]`, or `[batch, 1, …]` if sequences differ: 0 if a query sees a key, −∞
    /// if the key is later or padding. `None` if every query sees all keys.
    pub(super) mask: Option<Tensor>,
    pub(super) sliding_mask: Option<Tensor>,
}

impl Sequences {
    pub(super) fn new(
        config: &ModelConfig,
        batch: usize,
        capacity: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Sequences> {
        let caches = Cache::of_layers(config, batch, capacity, dtype, device)?;
        let table = |values: Vec<f32>| {
            Tensor::from_vec(values, (capacity, config.rotary_dim() / 2), &Device::Cpu)?
                .to_dtype(dtype)?
                .to_device(device)
        };
        let tables = rotary::tables(config, capacity).into_iter();
        let rotary = tables.map(|(cos, sin)| Ok([table(cos)?, table(sin)?])).collect::<Result<_>>()?;
        let window = config.window();
        let padding = Vec::new();
        Ok(Sequences {
            batch,
            padding,
            caches,
            rotary,
            window,
            causal: config.causal,
            dtype,
            device: device.clone(),
        })
    }

    pub(super) fn step(&self, filled: usize, positions: usize) -> Result<Step> {
        let part = |[cos, sin]: &[Tensor; 2]| {
            Ok([cos.narrow(0, filled, positions)?, sin.narrow(0, filled, positions)?])
        };
        let rotary = self.rotary.iter().map(part).collect::<Result<_>>()?;
        let masked = positions > 1 && self.causal;
        let mask = masked.then(|| self.mask(filled, positions, None)).transpose()?;
        let window = self.window.filter(|&window| masked && filled + positions > window);
        let sliding_mask = window.map(|window| self.mask(filled, positions, Some(window))).transpose()?;
        Ok(Step {
            sequence: 0,
            batch: self.batch,
            start: 0,
            filled,
            positions,
            places: None,
            rotary,
            mask,
            sliding_mask,
        })
    }

    /// The steps that append prompts of these lengths, one for each.
    pub(super) fn prompts(&self, lengths: &[usize]) -> Result<Vec<Step>> {
        let steps = lengths.iter().zip(&self.padding).enumerate();
        let step = |(sequence, (&length, &padding)): (usize, (&usize, &u32))| {
            Ok(Step { sequence, batch: 1, start: padding as usize, ..self.step(0, length)? })
        };
        steps.map(step).collect()
    }

    /// The step that appends `positions` after `filled`, if there is padding before sequences.
    pub(super) fn padded_step(&self, filled: usize, positions: usize) -> Result<Step> {
        let first = filled as u32..(filled + positions) as u32;
        let places = self.padding.iter().flat_map(|&padding| first.clone().map(move |place| place - padding));
        let places = Tensor::from_vec(places.collect::<Vec<u32>>(), self.batch * positions, &self.device)?;
        let part = |[cos, sin]: &[Tensor; 2]| {
            let part = |table: &Tensor| {
                let shape = (self.batch, positions, table.dim(1)?);
                table.index_select(&places, 0)?.reshape(shape)
            };
            Ok([part(cos)?, part(sin)?])
        };
        let hidden_padding = self.padding_mask(filled + positions)?;
        let mask = self.mask(filled, positions, None)?.broadcast_add(&hidden_padding)?;
        let window = self.window.filter(|&window| filled + positions > window);
        let sliding = |window| self.mask(filled, positions, Some(window))?.broadcast_add(&hidden_padding);
        Ok(Step {
            sequence: 0,
            batch: self.batch,
            start: 0,
            filled,
            positions,
            rotary: self.rotary.iter().map(part).collect::<Result<_>>()?,
            places: Some(places),
            mask: Some(mask),
            sliding_mask: window.map(sliding).transpose()?,
        })
    }

    /// `[batch, 1, 1, keys]`: −∞ for padding, else 0.
    fn padding_mask(&self, keys: usize) -> Result<Tensor> {
        let padding = Tensor::from_slice(&self.padding, (self.batch, 1, 1, 1), &self.device)?;
        let key = Tensor::arange(0, keys as u32, &self.device)?.reshape((1, 1, 1, keys))?;
        let shape = (self.batch, 1, 1, keys);
        let hidden = Tensor::full(f32::NEG_INFINITY, shape, &self.device)?.to_dtype(self.dtype)?;
        key.broadcast_lt(&padding)?.where_cond(&hidden, &hidden.zeros_like()?)
    }

    fn mask(&self, filled: usize, positions: usize, window: Option<usize>) -> Result<Tensor> {
        let keys = filled + positions;
        let key = Tensor::arange(0, keys as u32, &self.device)?.unsqueeze(0)?;
        let query = Tensor::arange(filled as u32, keys as u32, &self.device)?.unsqueeze(1)?;
        let shape = (positions, keys);
        let hidden = Tensor::full(f32::NEG_INFINITY, shape, &self.device)?.to_dtype(self.dtype)?;
        let seen = hidden.zeros_like()?;
        let mask = key.broadcast_gt(&query)?.where_cond(&hidden, &seen)?;
        match window {
            None => Ok(mask),
            // A key is outside the window of all queries from `window` positions after it.
            Some(window) => {
                let last = (key + window as f64)?;
                last.broadcast_le(&query)?.where_cond(&hidden, &mask)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tensors::layers::Sequences;
    use candle_core::{DType, Device};

    use super::*;

    /// Unsorted numbers between −1 and 1.
    fn numbers(shape: &[usize]) -> Tensor {
        let count = shape.iter().product::<usize>();
        let numbers = (0..count).map(|i| (i * 7919 % 2003) as f32 / 1001.5 - 1.0);
        Tensor::from_iter(numbers, &Device::Cpu).unwrap().reshape(shape).unwrap()
    }

    #[test]
    fn a_layer_norm_without_bias_is_no_rms_norm() {
        let x = Tensor::new(&[[1f32, 3.0]], &Device::Cpu).unwrap();
        let weight = Tensor::new(&[2f32, 4.0], &Device::Cpu).unwrap();
        let normed = |rms_norm| {
            let norm = Norm::new(weight.clone(), None, (rms_norm, 0.0)).unwrap();
            norm.forward(&x).unwrap().to_vec2::<f32>().unwrap().concat()
        };
        assert_eq!(normed(false), [-2.0, 4.0]);
        let root = 5f32.sqrt();
        assert!(normed(true).iter().zip([2.0 / root, 12.0 / root]).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    #[test]
    fn blocks_of_queries_give_what_all_at_once_give() {
        let layer = LayerAttention { window: Some(4), causal: true, rotation: None };
        let (heads, kv_heads, head_dim) = (4, 2, 8);
        let (norms, epsilon, scale, cap) = (None, 0.0, 1.0, None);
        let attention =
            Attention { heads, kv_heads, head_dim, norms, epsilon, scale, cap, layer, sinks: None };
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
