//! A layer: attention and the feed-forward block, with their norms.

use bundle::{Activation, HeadActivation, LayerNames, ModelConfig};
use candle_core::{Device, Result, Tensor};
use worker::engine::{self};

use crate::attention::Attention;
use crate::kernels::Kernels;
use crate::linear::Linear;
use crate::norm::{Norm, SublayerNorms};
use crate::reader::Reader;
use crate::weight::Weight;

/// Rows that go through a feed-forward block together: enough for products at full speed, and few enough that
/// intermediate results stay in cache and use memory that is already mapped.
const MLP_ROWS: usize = 256;

#[derive(Debug)]
pub(crate) struct Layer {
    attention_norms: SublayerNorms,
    qkv: Linear,
    attention: Attention,
    output: Linear,
    mlp_norms: SublayerNorms,
    mlp: Mlp,
    kernels: Kernels,
}

impl Layer {
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig, index: usize) -> engine::Result<Layer> {
        let names = config.layer(index);
        let place = |norms| SublayerNorms::read(reader, config, norms);
        Ok(Layer {
            attention_norms: place([&names.attention_norm, &names.post_attention_norm])?,
            qkv: Linear::read(reader, &names.qkv)?,
            attention: Attention::read(reader, config, index)?,
            output: Linear::read(reader, &names.output)?,
            mlp_norms: place([&names.mlp_norm, &names.post_mlp_norm])?,
            mlp: Mlp::read(reader, config.mlp(index), &names)?,
            kernels: reader.kernels(),
        })
    }

    pub(crate) fn linears(&self) -> [&Linear; 4] {
        let [gate_up, down] = self.mlp.linears();
        [&self.qkv, &self.output, gate_up, down]
    }

    /// The residual stream `x`, `[rows, hidden]`, after both blocks. The own loops change `x` itself. `attend` computes
    /// attention from rows of queries, keys and values.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        attend: impl FnOnce(&Attention, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let qkv = self.qkv.forward(&self.attention_norms.enter(x)?)?;
        let attended = attend(&self.attention, &qkv)?;
        drop(qkv);
        let x = self.attention_norms.leave(x, self.output.forward(&attended)?)?;
        let rows = x.dim(0)?;
        // All rows at once, so that the weights are converted once.
        let converted = self.mlp.linears().iter().any(|linear| linear.weight().is_converted());
        let piece = if converted { rows } else { MLP_ROWS };
        if rows <= piece {
            return self.mlp_norms.leave(&x, self.mlp.forward(&self.mlp_norms.enter(&x)?)?);
        }
        for start in (0..rows).step_by(piece) {
            let part = x.narrow(0, start, piece.min(rows - start))?;
            let sum = self.mlp_norms.leave(&part, self.mlp.forward(&self.mlp_norms.enter(&part)?)?)?;
            if self.kernels == Kernels::Candle {
                x.slice_set(&sum, 0, start)?;
            }
        }
        Ok(x)
    }
}

// The feed-forward block.

/// down(act(gate(x)) · up(x)), or down(act(up(x))) without a gate.
#[derive(Debug)]
pub(crate) struct Mlp {
    gate_up: Linear,
    down: Linear,
    activation: Activation,
    gated: bool,
    kernels: Kernels,
}

impl Mlp {
    pub(crate) fn read(reader: &Reader<'_>, mlp: bundle::Mlp, names: &LayerNames) -> engine::Result<Mlp> {
        Ok(Mlp {
            gate_up: Linear::read(reader, &names.gate_up)?,
            down: Linear::read(reader, &names.down)?,
            activation: mlp.activation,
            gated: mlp.gated,
            kernels: reader.kernels(),
        })
    }

    pub(crate) fn linears(&self) -> [&Linear; 2] {
        [&self.gate_up, &self.down]
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (kernels, activation) = (self.kernels, self.activation);
        let activated = if self.gated {
            self.gate_up.combined(x, |gate, up| kernels.gated(gate, up, activation))?
        } else {
            kernels.activate(&self.gate_up.forward(x)?, HeadActivation::Of(activation))?
        };
        self.down.forward(&activated)
    }
}

// Embeddings: the input of the first layer.

/// The normed sum of the embeddings of tokens, positions and types. Parts that the model lacks are left out.
#[derive(Debug)]
pub(crate) struct Embedding {
    /// `[vocabulary, hidden]`
    tokens: Weight,
    multiplier: Option<f64>,
    /// `[positions, hidden]`
    positions: Option<Weight>,
    /// Row of `positions` for the first token.
    first_position: usize,
    /// `[types, hidden]`
    types: Option<Weight>,
    norm: Option<Norm>,
    width: usize,
    kernels: Kernels,
}

impl Embedding {
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig) -> engine::Result<Embedding> {
        let optional = |name: Option<String>| name.map(|name| reader.matrix(&name)).transpose();
        Ok(Embedding {
            tokens: reader.matrix(&config.embedding())?,
            multiplier: config.form.embedding_multiplier,
            positions: optional(config.position_embedding())?,
            first_position: config.encoder.as_ref().map_or(0, |encoder| encoder.first_position),
            types: optional(config.token_type_embedding())?,
            norm: Norm::read_optional(reader, config, config.embedding_norm().as_ref())?,
            width: config.hidden_size,
            kernels: reader.kernels(),
        })
    }

    pub(crate) fn tokens(&self) -> &Weight {
        &self.tokens
    }

    /// `[tokens, hidden]`, for tokens at these positions. If `types` is empty, all have the first type.
    pub(crate) fn forward(
        &self,
        tokens: &[u32],
        positions: impl Iterator<Item = usize>,
        types: &[u32],
    ) -> Result<Tensor> {
        let mut x =
            self.kernels.times(self.rows(&self.tokens, tokens, |&token| token as usize)?, self.multiplier)?;
        if let Some(table) = &self.positions {
            let places: Vec<usize> = positions.map(|position| self.first_position + position).collect();
            x = self.kernels.sum(x, &self.rows(table, &places, |&place| place)?)?;
        }
        if let Some(table) = &self.types {
            let types = (0..tokens.len()).map(|row| types.get(row).map_or(0, |&kind| kind as usize));
            x = self.kernels.sum(x, &self.rows(table, &types.collect::<Vec<_>>(), |&kind| kind)?)?;
        }
        match &self.norm {
            Some(norm) => norm.change(x),
            None => Ok(x),
        }
    }

    /// Rows of a table, in f32.
    fn rows<T>(&self, table: &Weight, of: &[T], row: impl Fn(&T) -> usize) -> Result<Tensor> {
        let mut rows = vec![0.0; of.len() * self.width];
        for (out, of) in rows.chunks_exact_mut(self.width).zip(of) {
            table.copy_rows(row(of), out)?;
        }
        Tensor::from_vec(rows, (of.len(), self.width), &Device::Cpu)
    }
}
