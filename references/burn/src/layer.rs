//! One layer of the decoder.

use bundle::{Activation, LayerNames, LinearNames, ModelConfig, NormNames};
use burn_backend::DType;
use burn_backend::ops::{AttentionModuleOptions, ModuleOps};
use burn_flex::Flex;
use worker::engine::EngineError;

use crate::linear::Linear;
use crate::norm::Norm;
use crate::reader::Reader;
use crate::sequences::{Cache, Rotation};
use crate::tensor::{
    Tensor, add, cat, dims, gelu, gelu_tanh, matmul, multiply, narrow, relu, reshape, rms_norm, scale, silu,
    softmax, swap, transpose,
};

#[derive(Debug)]
pub(crate) struct Layer {
    attention_norm: Norm,
    qkv: Linear,
    /// Weights of the norms over each head of q and k, `[1, 1, heads + kv_heads, head_dim]`.
    qk_norm: Option<Tensor>,
    output: Linear,
    mlp_norm: Norm,
    /// The gate of a gated MLP. It is not fused with `up`: of a fused product, each half is a view with gaps.
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
}

impl Layer {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        names: &LayerNames,
    ) -> Result<Layer, EngineError> {
        let norm = |names: &Option<NormNames>| match names {
            Some(names) => Norm::read(reader, names, config.norm_epsilon),
            None => Err(EngineError::Unsupported("a block without a norm before it".into())),
        };
        let qk_norm = match (&names.q_norm, &names.k_norm) {
            (Some(q), Some(k)) => {
                let (q, k) = (reader.one(q)?, reader.one(k)?);
                let repeated = [vec![q; config.heads], vec![k; config.kv_heads]].concat();
                Some(reshape(cat(repeated, 0), [1, 1, config.heads + config.kv_heads, config.head_dim]))
            }
            _ => None,
        };
        let linear = |names: &LinearNames| Linear::read(reader, &names.weights, &names.biases);
        let part = |index: usize| {
            let of = |names: &[String]| names.get(index).cloned().into_iter().collect::<Vec<_>>();
            Linear::read(reader, &of(&names.gate_up.weights), &of(&names.gate_up.biases))
        };
        Ok(Layer {
            attention_norm: norm(&names.attention_norm)?,
            qkv: linear(&names.qkv)?,
            qk_norm,
            output: linear(&names.output)?,
            mlp_norm: norm(&names.mlp_norm)?,
            gate: if config.mlp(0).gated { Some(part(0)?) } else { None },
            up: part(names.gate_up.weights.len() - 1)?,
            down: linear(&names.down)?,
        })
    }

    pub(crate) fn products(&self) -> impl Iterator<Item = &Linear> {
        [&self.qkv, &self.output, &self.up, &self.down].into_iter().chain(&self.gate)
    }

    /// `x` is `[batch · n, hidden]`.
    pub(crate) fn forward(
        &self,
        config: &ModelConfig,
        x: Tensor,
        batch: usize,
        filled: usize,
        cache: &mut Cache,
        rotation: Option<&Rotation>,
    ) -> Tensor {
        let normed = self.attention_norm.forward(x.clone());
        let attended = self.attention(config, normed, batch, filled, cache, rotation);
        let x = add(x, self.output.forward(attended));
        let normed = self.mlp_norm.forward(x.clone());
        add(x, self.mlp(config, normed))
    }

    fn attention(
        &self,
        config: &ModelConfig,
        x: Tensor,
        batch: usize,
        filled: usize,
        cache: &mut Cache,
        rotation: Option<&Rotation>,
    ) -> Tensor {
        let [rows, _] = dims(&x);
        let (count, heads, kv_heads, width) = (rows / batch, config.heads, config.kv_heads, config.head_dim);
        let qkv = reshape(self.qkv.forward(x), [batch, count, heads + 2 * kv_heads, width]);
        let values = narrow(&qkv, 2, heads + kv_heads, kv_heads);
        let mut turned = narrow(&qkv, 2, 0, heads + kv_heads);
        if let Some(weight) = &self.qk_norm {
            turned = multiply(rms_norm(turned, config.norm_epsilon), weight.clone());
        }
        if let Some(rotation) = rotation {
            turned = rotation.apply(turned, filled);
        }
        let queries = swap(narrow(&turned, 2, 0, heads), 1, 2);
        let keys = swap(narrow(&turned, 2, heads, kv_heads), 1, 2);
        let (keys, values) = cache.append(keys, swap(values, 1, 2), filled);
        let attended = if count == 1 && queries.dtype() == DType::F32 {
            decode(queries, keys, values)
        } else {
            let options = AttentionModuleOptions { scale: None, softcap: None, is_causal: true };
            Flex::attention(queries, keys, values, None, None, options)
        };
        reshape(swap(attended, 1, 2), [rows, heads * width])
    }

    fn mlp(&self, config: &ModelConfig, x: Tensor) -> Tensor {
        let inner = match &self.gate {
            Some(gate) => {
                multiply(activate(config.mlp(0).activation, gate.forward(x.clone())), self.up.forward(x))
            }
            None => activate(config.mlp(0).activation, self.up.forward(x)),
        };
        self.down.forward(inner)
    }
}

/// Attention of one query a sequence in f32: `[batch, heads, 1, head_dim]` over keys and values `[batch, kv_heads,
/// positions, head_dim]`. flex's own attention would copy keys and values out of the cache for every token; its
/// batched product reads them where they are. In f16 that would round each partial sum to f16.
fn decode(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor {
    let [batch, heads, _, width] = dims(&queries);
    let [_, kv_heads, _, _] = dims(&keys);
    let shared = |x: Tensor| {
        let [_, _, positions, _] = dims(&x);
        reshape(x, [batch, kv_heads, 1, positions, width])
    };
    let queries = scale(queries, 1.0 / (width as f64).sqrt());
    let queries = reshape(queries, [batch, kv_heads, heads / kv_heads, 1, width]);
    let scores = matmul(queries, transpose(shared(keys)));
    reshape(matmul(softmax(scores), shared(values)), [batch, heads, 1, width])
}

fn activate(activation: Activation, x: Tensor) -> Tensor {
    match activation {
        Activation::Silu => silu(x),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::GeluErf => gelu(x),
        Activation::Relu => relu(x),
    }
}
