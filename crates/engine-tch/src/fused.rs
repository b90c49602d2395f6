//! A layer in as few operations as libtorch's kernels allow.

use bundle::{Activation, LinearNames, ModelConfig};
use tch::{TchError, Tensor};
use worker::engine::Result;

use crate::attend::{Attend, Heads, Manner, Qkv};
use crate::cross::Cross;
use crate::experts::{self, Feed};
use crate::layer;
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{Residual, RmsNorm, SublayerNorms};
use crate::reader::Reader;
use crate::sequences::{Kinds, Step};

pub(crate) struct Layer {
    pub(crate) attention_norms: SublayerNorms,
    pub(crate) attention: Attention,
    pub(crate) cross: Option<Cross>,
    pub(crate) mlp_norms: SublayerNorms,
    pub(crate) feed: Feed<Mlp>,
    parallel: bool,
}

impl Layer {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        (index, heard): (usize, Option<&Tensor>),
        (layout, kinds): (Layout, Kinds),
    ) -> Result<Layer> {
        let names = config.layer(index);
        let place = |norms| SublayerNorms::read(reader, config, norms, RmsNorm::Fused);
        Ok(Layer {
            attention_norms: place([&names.attention_norm, &names.post_attention_norm])?,
            attention: Attention {
                qkv: Qkv::read(reader, config, index, layout)?,
                output: Linear::fused(reader, &names.output, layout)?,
                manner: Manner::from_config(config, index),
                sinks: names.sinks.as_ref().map(|name| reader.vector(name)).transpose()?,
                kinds,
            },
            cross: Cross::read(reader, config, (index, heard), layout)?,
            mlp_norms: place([&names.mlp_norm, &names.post_mlp_norm])?,
            feed: Feed::read(reader, config, (index, &names, layout), |mlp, names| {
                Mlp::read(reader, mlp, names, (layout, false))
            })?,
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

pub(crate) struct Attention {
    pub(crate) qkv: Qkv,
    pub(crate) output: Linear,
    manner: Manner,
    /// A number beside the scores of each head, `[heads]`.
    sinks: Option<Tensor>,
    kinds: Kinds,
}

impl Attention {
    fn forward(&self, x: &Tensor, step: &mut Step, index: usize) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.qkv.heads;
        let (batch, positions) = (step.batch, step.positions);
        let qkv = self.qkv.forward(x, (batch, positions), step.rotation(self.manner.layer))?;
        let (manner, sinks, kinds) = (self.manner, self.sinks.as_ref(), self.kinds);
        let attend = Attend { heads: self.qkv.heads, manner, sinks, kinds };
        let attended = |qkv: &Tensor, step: &mut Step| {
            // Keys and values are adjacent, both in the layer's output and in the cache.
            step.store(index, &qkv.f_narrow(2, query, 2 * kv)?.f_transpose(1, 2)?)?;
            let attended = attend.forward(&qkv.f_narrow(2, 0, query)?, step, index)?.f_to_kind(x.kind())?;
            attended.f_reshape([step.batch * step.positions, query * dim])
        };
        if step.prompts.is_empty() {
            return self.output.forward(&attended(&qkv, step)?);
        }
        let mut first = 0;
        let mut each = Vec::with_capacity(step.prompts.len());
        for prompt in &mut step.prompts {
            each.push(attended(&qkv.f_narrow(1, first, prompt.positions)?, prompt)?);
            first += prompt.positions;
        }
        self.output.forward(&Tensor::f_cat(&each, 0)?)
    }
}

pub(crate) struct Mlp {
    pub(crate) gate_up: Linear,
    pub(crate) down: Linear,
    pub(crate) activation: Activation,
    pub(crate) gated: bool,
    /// Whether `gate_up` activates its outputs itself.
    activated: bool,
}

impl Mlp {
    /// `in_product`: whether the product is to activate its outputs, if one operator does both.
    pub(crate) fn read(
        reader: &Reader,
        mlp: bundle::Mlp,
        [gate_up, down]: [&LinearNames; 2],
        (layout, in_product): (Layout, bool),
    ) -> Result<Mlp> {
        let activated = in_product && !mlp.gated && layout == Layout::Onednn;
        let activation = activated.then_some(mlp.activation);
        Ok(Mlp {
            gate_up: Linear::read(reader, gate_up, layout, activation)?,
            down: Linear::fused(reader, down, layout)?,
            activation: mlp.activation,
            gated: mlp.gated,
            activated,
        })
    }
}

impl experts::Mlp for Mlp {
    fn forward(&self, x: &Tensor, clamped: bool) -> Result<Tensor, TchError> {
        let projected = self.gate_up.forward(x)?;
        let activated = if self.gated {
            let width = projected.size2()?.1 / 2;
            if clamped {
                let [gate, up] = [0, width].map(|first| projected.f_narrow(1, first, width));
                return self.down.forward(&experts::clamped(&gate?, &up?)?);
            }
            let mut gate = layer::activate(&projected.f_narrow(1, 0, width)?, self.activation)?;
            gate.f_multiply_(&projected.f_narrow(1, width, width)?)?
        } else if self.activated {
            projected
        } else {
            layer::activate(&projected, self.activation)?
        };
        self.down.forward(&activated)
    }
}
