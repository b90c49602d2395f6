//! A layer in as few operations as libtorch has kernels for.

use bundle::{Activation, ModelConfig};
use engine::EngineError;
use tch::{TchError, Tensor};

use crate::attend::Attend;
use crate::error::framework;
use crate::layer::{self, Heads, Manner};
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{Residual, RmsNorm, rms_weight, unit_rms};
use crate::place::Place;
use crate::reader::Reader;
use crate::sequences::{Kinds, Rotation, Step};

pub(crate) struct Layer {
    pub(crate) attention_place: Place,
    pub(crate) attention: Attention,
    pub(crate) mlp_place: Place,
    pub(crate) mlp: Mlp,
}

impl Layer {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        index: usize,
        (layout, kinds): (Layout, Kinds),
    ) -> Result<Layer, EngineError> {
        let names = config.layer(index);
        let place = |norms| Place::read(reader, config, norms, RmsNorm::Fused);
        Ok(Layer {
            attention_place: place([&names.attention_norm, &names.attention_norm_behind])?,
            attention: Attention::read(reader, config, index, (layout, kinds))?,
            mlp_place: place([&names.mlp_norm, &names.mlp_norm_behind])?,
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
        let attended = self.attention.forward(&self.attention_place.enter(residual)?, step, index)?;
        self.attention_place.leave(residual, &attended)?;
        let fed = self.mlp.forward(&self.mlp_place.enter(residual)?)?;
        self.mlp_place.leave(residual, &fed)
    }
}

pub(crate) struct Attention {
    pub(crate) qkv: Linear,
    /// `[query heads + key heads, dimension]`: the weights of the norms over each head, where there are any.
    pub(crate) qk_norm: Option<Tensor>,
    /// Those of the norms over all heads of queries and over all heads of keys.
    whole_norms: Option<[Tensor; 2]>,
    pub(crate) output: Linear,
    pub(crate) heads: Heads,
    manner: Manner,
    kinds: Kinds,
    pub(crate) epsilon: f64,
}

impl Attention {
    fn read(
        reader: &Reader,
        config: &ModelConfig,
        index: usize,
        (layout, kinds): (Layout, Kinds),
    ) -> Result<Attention, EngineError> {
        let (names, heads) = (config.layer(index), Heads::from_config(config));
        let mut whole_norms = None;
        let qk_norm = match (&names.q_norm, &names.k_norm) {
            (Some(q), Some(k)) if config.form.whole_qk_norm => {
                whole_norms = Some([rms_weight(reader, config, q)?, rms_weight(reader, config, k)?]);
                None
            }
            (Some(q), Some(k)) => {
                let (q, k) = (rms_weight(reader, config, q)?, rms_weight(reader, config, k)?);
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
            whole_norms,
            output: Linear::fused(reader, &names.output, layout)?,
            heads,
            manner: Manner::from_config(config, index),
            kinds,
            epsilon: config.norm_epsilon,
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step, index: usize) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.heads;
        let qkv = self.qkv.forward(x)?.f_view([step.batch, step.positions, query + 2 * kv, dim])?;
        // Queries and keys are side by side, and are normed and rotated together and in place.
        let mut qk = qkv.f_narrow(2, 0, query + kv)?;
        if let Some(weights) = &self.qk_norm {
            let _ = unit_rms(&qk, self.epsilon)?.f_multiply_out(&qk, weights)?;
        }
        if let Some(weights) = &self.whole_norms {
            self.norm_whole(&qkv, weights)?;
        }
        match step.rotation(self.manner.layer) {
            Some(rotation) if rotation.width < dim => {
                rotate(&mut qk.f_narrow(-1, 0, rotation.width)?, rotation, rotation.width)?;
            }
            Some(rotation) => rotate(&mut qk, rotation, dim)?,
            None => {}
        }
        // So do keys and values, in the layer's output as in the cache.
        step.slots[index].f_copy_(&qkv.f_narrow(2, query, 2 * kv)?.f_transpose(1, 2)?)?;
        let attend = Attend { heads: self.heads, manner: self.manner, kinds: self.kinds };
        let attended = attend.forward(&qkv.f_narrow(2, 0, query)?, step, index)?.f_to_kind(x.kind())?;
        self.output.forward(&attended.f_reshape([step.batch * step.positions, query * dim])?)
    }

    /// Norms queries and keys over all of their heads, in place.
    fn norm_whole(&self, qkv: &Tensor, weights: &[Tensor; 2]) -> Result<(), TchError> {
        let Heads { query, kv, dim } = self.heads;
        let rows = qkv.f_view([-1, (query + 2 * kv) * dim])?;
        for (weight, (start, heads)) in weights.iter().zip([(0, query), (query, kv)]) {
            let part = rows.f_narrow(1, start * dim, heads * dim)?;
            let _ = unit_rms(&part, self.epsilon)?.f_multiply_out(&part, weight)?;
        }
        Ok(())
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
