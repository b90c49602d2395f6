//! A layer: attention and the feed-forward block, with their norms.

use bundle::{Activation, LayerNames, ModelConfig};
use candle_core::{Device, Result, Tensor};
use worker::engine::{self};

use crate::attention::Attention;
use crate::linear::Linear;
use crate::math::{activate, add};
use crate::norm::{Norm, SublayerNorms};
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::{Weight, change_f32};

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
            mlp: Mlp::read(reader, config, &names)?,
        })
    }

    pub(crate) fn linears(&self) -> [&Linear; 4] {
        let [gate_up, down] = self.mlp.linears();
        [&self.qkv, &self.output, gate_up, down]
    }

    /// Runs both blocks on the residual stream `x`, `[rows, hidden]`, in place. `attend` computes attention
    /// from rows of queries, keys and values.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        attend: impl FnOnce(&Attention, &Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        let qkv = self.qkv.forward(&self.attention_norms.enter(x)?)?;
        let attended = attend(&self.attention, &qkv)?;
        drop(qkv);
        self.attention_norms.leave(x, self.output.forward(&attended)?)?;
        let rows = x.dim(0)?;
        // All rows at once, so that the weights are converted once.
        let converted = self.mlp.linears().iter().any(|linear| linear.weight().is_converted());
        let piece = if converted { rows } else { MLP_ROWS };
        for start in (0..rows).step_by(piece) {
            let x = x.narrow(0, start, piece.min(rows - start))?;
            self.mlp_norms.leave(&x, self.mlp.forward(&self.mlp_norms.enter(&x)?)?)?;
        }
        Ok(())
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
    intermediate: usize,
}

impl Mlp {
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig, names: &LayerNames) -> engine::Result<Mlp> {
        Ok(Mlp {
            gate_up: Linear::read(reader, &names.gate_up)?,
            down: Linear::read(reader, &names.down)?,
            activation: config.activation,
            gated: config.gated_mlp,
            intermediate: config.intermediate_size,
        })
    }

    pub(crate) fn linears(&self) -> [&Linear; 2] {
        [&self.gate_up, &self.down]
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let activated = if self.gated {
            self.gate_up.combined(x, |gate, up| {
                activate(gate, self.activation);
                gate.iter_mut().zip(up).for_each(|(gate, up)| *gate *= up);
            })?
        } else {
            let up = self.gate_up.forward(x)?;
            change_f32(&up, |x| {
                for_each_chunk(x, self.intermediate, |_, row| activate(row, self.activation))
            })?;
            up
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
    multiplier: Option<f32>,
    /// `[positions, hidden]`
    positions: Option<Weight>,
    /// Row of `positions` for the first token.
    first_position: usize,
    /// `[types, hidden]`
    types: Option<Weight>,
    norm: Option<Norm>,
    width: usize,
}

impl Embedding {
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig) -> engine::Result<Embedding> {
        let optional = |name: Option<String>| name.map(|name| reader.matrix(&name)).transpose();
        Ok(Embedding {
            tokens: reader.matrix(&config.embedding())?,
            multiplier: config.form.embedding_multiplier.map(|multiplier| multiplier as f32),
            positions: optional(config.position_embedding())?,
            first_position: config.encoder.as_ref().map_or(0, |encoder| encoder.first_position),
            types: optional(config.token_type_embedding())?,
            norm: Norm::read_optional(reader, config, config.embedding_norm().as_ref())?,
            width: config.hidden_size,
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
        let width = self.width;
        let mut x = vec![0.0; tokens.len() * width];
        let mut other = vec![0.0; width];
        for (row, (out, position)) in x.chunks_exact_mut(width).zip(positions).enumerate() {
            self.tokens.copy_rows(tokens[row] as usize, out)?;
            if let Some(multiplier) = self.multiplier {
                out.iter_mut().for_each(|x| *x *= multiplier);
            }
            if let Some(table) = &self.positions {
                table.copy_rows(self.first_position + position, &mut other)?;
                add(out, &other);
            }
            if let Some(table) = &self.types {
                table.copy_rows(types.get(row).map_or(0, |&kind| kind as usize), &mut other)?;
                add(out, &other);
            }
        }
        if let Some(norm) = &self.norm {
            for_each_chunk(&mut x, width, |_, row| norm.norm_row(row));
        }
        Tensor::from_vec(x, (tokens.len(), width), &Device::Cpu)
    }
}
