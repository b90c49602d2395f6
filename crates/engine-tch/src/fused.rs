//! A layer in as few operations as libtorch has kernels for.

use bundle::{Activation, LayerNames, ModelConfig};
use engine::EngineError;
use tch::{Kind, TchError, Tensor};

use crate::error::framework;
use crate::layer::{self, Heads};
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{Norm, Residual, RmsNorm, unit_rms};
use crate::reader::Reader;
use crate::sequences::{Rotation, Step};

pub(crate) struct Layer {
    pub(crate) attention_norm: Norm,
    pub(crate) attention: Attention,
    pub(crate) mlp_norm: Norm,
    pub(crate) mlp: Mlp,
}

impl Layer {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        names: &LayerNames,
        layout: Layout,
    ) -> Result<Layer, EngineError> {
        Ok(Layer {
            attention_norm: Norm::read(reader, config, &names.attention_norm, RmsNorm::Fused)?,
            attention: Attention::read(reader, config, names, layout)?,
            mlp_norm: Norm::read(reader, config, &names.mlp_norm, RmsNorm::Fused)?,
            mlp: Mlp {
                gate_up: Linear::fused(reader, &names.gate_up, layout)?,
                down: Linear::fused(reader, &names.down, layout)?,
                activation: config.activation,
                gated: config.gated_mlp,
            },
        })
    }
}

impl layer::Layer for Layer {
    fn forward(&self, residual: &mut Residual, step: &mut Step, index: usize) -> Result<(), TchError> {
        let attended = self.attention.forward(&self.attention_norm.forward(residual)?, step, index)?;
        residual.add(&attended)?;
        residual.add(&self.mlp.forward(&self.mlp_norm.forward(residual)?)?)
    }
}

pub(crate) struct Attention {
    pub(crate) qkv: Linear,
    /// `[query heads + key heads, dimension]`: the weights of the norms over each head, where there are any.
    pub(crate) qk_norm: Option<Tensor>,
    pub(crate) output: Linear,
    pub(crate) heads: Heads,
    pub(crate) epsilon: f64,
}

impl Attention {
    fn read(
        reader: &Reader,
        config: &ModelConfig,
        names: &LayerNames,
        layout: Layout,
    ) -> Result<Attention, EngineError> {
        let heads = Heads::from_config(config);
        let qk_norm = match (&names.q_norm, &names.k_norm) {
            (Some(q), Some(k)) => {
                let (q, k) = (reader.vector(q)?, reader.vector(k)?);
                let repeated = |weight: Tensor, heads| weight.f_expand([heads, -1], false);
                let both =
                    repeated(q, heads.query).and_then(|q| Tensor::f_cat(&[q, repeated(k, heads.kv)?], 0));
                Some(both.map_err(framework)?)
            }
            _ => None,
        };
        Ok(Attention {
            qkv: Linear::fused(reader, &names.qkv, layout)?,
            qk_norm,
            output: Linear::fused(reader, &names.output, layout)?,
            heads,
            epsilon: config.norm_epsilon,
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step, index: usize) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.heads;
        let qkv = self.qkv.forward(x)?.f_view([step.batch, step.positions, query + 2 * kv, dim])?;
        // Queries and keys lie side by side, and are normed and rotated together and in place.
        let mut qk = qkv.f_narrow(2, 0, query + kv)?;
        if let Some(weights) = &self.qk_norm {
            let _ = unit_rms(&qk, self.epsilon)?.f_multiply_out(&qk, weights)?;
        }
        if let Some(rotation) = &step.rotation {
            rotate(&mut qk, rotation, dim)?;
        }
        // So do keys and values, in the layer's output as in the cache.
        step.slots[index].f_copy_(&qkv.f_narrow(2, query, 2 * kv)?.f_transpose(1, 2)?)?;
        let queries = qkv.f_narrow(2, 0, query)?.f_to_kind(step.keys[index].kind())?;
        let attended = self.attend(&queries, step, index)?.f_to_kind(x.kind())?;
        self.output.forward(&attended.f_reshape([step.batch * step.positions, query * dim])?)
    }

    /// `[batch, positions, heads, dimension]` in and out, the last two dimensions folded or not.
    fn attend(&self, queries: &Tensor, step: &Step, index: usize) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.heads;
        let (keys, values) = (&step.keys[index], &step.values[index]);
        let none = None::<&Tensor>;
        // The kernel for half precisions packs the keys once for every query head. The heads that share
        // keys and values can pass for successive queries as long as no mask tells them apart.
        if step.positions == 1 && query != kv && queries.kind() != Kind::Float {
            let grouped = queries.f_view([step.batch, kv, query / kv, dim])?;
            return Tensor::f_scaled_dot_product_attention(
                &grouped, keys, values, none, 0.0, false, None, false,
            );
        }
        let causal = step.causal && step.positions > 1 && step.past == 0;
        let queries = queries.f_transpose(1, 2)?;
        let mask = step.mask.as_ref();
        let shared = query != kv;
        let attended =
            Tensor::f_scaled_dot_product_attention(&queries, keys, values, mask, 0.0, causal, None, shared)?;
        attended.f_transpose(1, 2)
    }
}

fn rotate(x: &mut Tensor, rotation: &Rotation, dim: i64) -> Result<(), TchError> {
    let swapped = x.f_roll(dim / 2, -1)?;
    x.f_multiply_(&rotation.cos)?.f_addcmul_(&swapped, &rotation.sin).map(drop)
}

pub(crate) struct Mlp {
    pub(crate) gate_up: Linear,
    pub(crate) down: Linear,
    pub(crate) activation: Activation,
    pub(crate) gated: bool,
}

impl Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let projected = self.gate_up.forward(x)?;
        let activated = if self.gated {
            let width = projected.size2()?.1 / 2;
            let mut gate = layer::activate(&projected.f_narrow(1, 0, width)?, self.activation)?;
            gate.f_multiply_(&projected.f_narrow(1, width, width)?)?
        } else {
            layer::activate(&projected, self.activation)?
        };
        self.down.forward(&activated)
    }
}
