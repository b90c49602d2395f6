//! A layer in elementary operations, without fusion: the baseline for the fused layer.

use bundle::{Activation, LinearNames, ModelConfig};
use tch::{TchError, Tensor};
use worker::engine::Result;

use crate::attend::{Heads, Manner};
use crate::cross::Cross;
use crate::experts::{self, Feed};
use crate::layer;
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{Residual, RmsNorm, SublayerNorms, elementary_rms_norm, rms_weight};
use crate::reader::Reader;
use crate::rotation::Rotation;
use crate::sequences::Step;

pub(crate) struct Layer {
    attention_norms: SublayerNorms,
    attention: Attention,
    cross: Option<Cross>,
    mlp_norms: SublayerNorms,
    feed: Feed<Mlp>,
    parallel: bool,
}

impl Layer {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        (index, heard): (usize, Option<&Tensor>),
    ) -> Result<Layer> {
        let names = config.layer(index);
        let place = |norms| SublayerNorms::read(reader, config, norms, RmsNorm::Elementary);
        let head_norm =
            |name: &Option<String>| name.as_ref().map(|name| rms_weight(reader, config, name)).transpose();
        let (q_rows, kv_rows) = config.qkv_rows();
        let part = |names: &LinearNames, rows: &[usize]| Linear::separate(reader, names, rows);
        let hidden = config.hidden_size;
        let read_mlp = |mlp: bundle::Mlp, [gate_up, down]: [&LinearNames; 2]| {
            let rows = vec![mlp.width; if mlp.gated { 2 } else { 1 }];
            Ok(Mlp {
                gate_up: part(gate_up, &rows)?,
                down: part(down, &[hidden])?.remove(0),
                activation: mlp.activation,
            })
        };
        Ok(Layer {
            attention_norms: place([&names.attention_norm, &names.post_attention_norm])?,
            attention: Attention {
                qkv: part(&names.qkv, &[q_rows, kv_rows, kv_rows])?,
                q_norm: head_norm(&names.q_norm)?,
                k_norm: head_norm(&names.k_norm)?,
                sinks: names.sinks.as_ref().map(|name| reader.vector(name)).transpose()?,
                whole_norms: config.form.whole_qk_norm,
                output: part(&names.output, &[hidden])?.remove(0),
                heads: Heads::from_config(config),
                manner: Manner::from_config(config, index),
                epsilon: config.norm_epsilon,
            },
            cross: Cross::read(reader, config, (index, heard), Layout::Plain)?,
            mlp_norms: place([&names.mlp_norm, &names.post_mlp_norm])?,
            feed: Feed::read(reader, config, (index, &names, Layout::Plain), read_mlp)?,
            parallel: config.form.parallel,
        })
    }
}

impl layer::Layer for Layer {
    fn forward(&self, residual: &mut Residual, step: &mut Step, index: usize) -> Result<(), TchError> {
        let norms = [&self.attention_norms, &self.mlp_norms];
        let attention = |x: &Tensor| self.attention.forward(x, step, index);
        layer::blocks(residual, norms, self.parallel, attention, self.cross.as_ref(), |x| {
            self.feed.forward(x)
        })
    }
}

struct Attention {
    qkv: Vec<Linear>,
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    /// Whether the norms go over all heads together.
    whole_norms: bool,
    /// A number beside the scores of each head, `[heads]`.
    sinks: Option<Tensor>,
    output: Linear,
    heads: Heads,
    manner: Manner,
    epsilon: f64,
}

impl Attention {
    fn forward(&self, x: &Tensor, step: &mut Step, index: usize) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.heads;
        let [q, k, v] = self.qkv.as_slice() else { unreachable!("read as three layers") };
        let rotation = step.rotation(self.manner.layer);
        let queries = self.project(q, query, self.q_norm.as_ref(), rotation, x, step)?;
        let keys = self.project(k, kv, self.k_norm.as_ref(), rotation, x, step)?;
        let values = self.project(v, kv, None, None, x, step)?;
        let slot = &step.slots[index];
        slot.f_narrow(1, 0, kv)?.f_copy_(&keys)?;
        slot.f_narrow(1, kv, kv)?.f_copy_(&values)?;

        let within = step.within_window(index, self.manner.layer)?;
        let (keys, values) = match &within {
            Some([keys, values]) => (keys, values),
            None => (&step.keys[index], &step.values[index]),
        };
        let (keys, values) = (self.repeated(keys)?, self.repeated(values)?);
        let scores = queries.f_matmul(&keys.f_transpose(2, 3)?)?;
        let shares = self.manner.shares(
            &scores,
            dim,
            (step.mask(self.manner.layer), self.sinks.as_ref()),
            x.kind(),
        )?;
        let attended = shares.f_matmul(&values)?.f_transpose(1, 2)?;
        self.output.forward(&attended.f_reshape([step.batch * step.positions, query * dim])?)
    }

    /// `[batch, head, position, dimension]`
    fn project(
        &self,
        linear: &Linear,
        heads: i64,
        norm: Option<&Tensor>,
        rotation: Option<&Rotation>,
        x: &Tensor,
        step: &Step,
    ) -> Result<Tensor, TchError> {
        let shape = [step.batch, step.positions, heads, self.heads.dim];
        let mut projected = linear.forward(x)?;
        if !self.whole_norms {
            projected = projected.f_view(shape)?;
        }
        if let Some(weight) = norm {
            projected = elementary_rms_norm(&projected, weight, self.epsilon)?;
        }
        if self.whole_norms {
            projected = projected.f_view(shape)?;
        }
        if let Some(rotation) = rotation {
            projected = rotated(&projected, rotation, self.heads.dim)?;
        }
        projected.f_transpose(1, 2)
    }

    /// Keys or values, repeated for every query head.
    fn repeated(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.heads;
        let (batch, _, positions, _) = x.size4()?;
        let each = x.f_unsqueeze(2)?.f_expand([batch, kv, query / kv, positions, dim], false)?;
        each.f_reshape([batch, query, positions, dim])
    }
}

fn rotated(x: &Tensor, rotation: &Rotation, dim: i64) -> Result<Tensor, TchError> {
    let width = rotation.width;
    if width < dim {
        let turned = rotated(&x.f_narrow(-1, 0, width)?, rotation, width)?;
        return Tensor::f_cat(&[turned, x.f_narrow(-1, width, dim - width)?], -1);
    }
    let half = dim / 2;
    let swapped = Tensor::f_cat(&[x.f_narrow(-1, half, half)?, x.f_narrow(-1, 0, half)?], -1)?;
    x.f_mul(&rotation.cos)?.f_add(&swapped.f_mul(&rotation.sin)?)
}

struct Mlp {
    /// `[gate, up]`, or `[up]` without a gate.
    gate_up: Vec<Linear>,
    down: Linear,
    activation: Activation,
}

impl experts::Mlp for Mlp {
    fn forward(&self, x: &Tensor, clamped: bool) -> Result<Tensor, TchError> {
        if let ([gate, up], true) = (self.gate_up.as_slice(), clamped) {
            return self.down.forward(&experts::clamped(&gate.forward(x)?, &up.forward(x)?)?);
        }
        let mut hidden = layer::activate(&self.gate_up[0].forward(x)?, self.activation)?;
        if let Some(up) = self.gate_up.get(1) {
            hidden = hidden.f_mul(&up.forward(x)?)?;
        }
        self.down.forward(&hidden)
    }
}
