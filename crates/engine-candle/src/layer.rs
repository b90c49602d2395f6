//! A layer: attention and the feed-forward block, with their norms.

use bundle::{Activation, LayerNames, ModelConfig, NormNames, NormPlacement};
use candle_core::{Device, Result, Tensor, bail};
use worker::engine::EngineError;

use crate::attention::Attention;
use crate::linear::{Linear, Weight, change_f32, with_f32};
use crate::math::{activate, add, add_times, layer_norm, rms_norm};
use crate::model::Reader;
use crate::parallel::for_each_chunk;

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
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        index: usize,
    ) -> std::result::Result<Layer, EngineError> {
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

// The norms and the residual addition around a block of a layer.

/// The residual stream x becomes norm(x + multiplier · norm(block(norm(x)))). Parts that the model lacks are
/// left out.
#[derive(Debug)]
pub(crate) struct SublayerNorms {
    before: Option<Norm>,
    behind: Option<Norm>,
    of_sum: Option<Norm>,
    multiplier: Option<f32>,
}

impl SublayerNorms {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        [before, behind]: [&Option<NormNames>; 2],
    ) -> std::result::Result<SublayerNorms, EngineError> {
        let behind = Norm::read_optional(reader, config, behind.as_ref())?;
        let (behind, of_sum) = match config.form.norms {
            NormPlacement::OfSum => (None, behind),
            _ => (behind, None),
        };
        Ok(SublayerNorms {
            before: Norm::read_optional(reader, config, before.as_ref())?,
            behind,
            of_sum,
            multiplier: config.form.residual_multiplier.map(|multiplier| multiplier as f32),
        })
    }

    /// The block's input, `[rows, width]`.
    pub(crate) fn enter(&self, x: &Tensor) -> Result<Tensor> {
        match &self.before {
            Some(norm) => norm.forward(x),
            None => Ok(x.clone()),
        }
    }

    /// Adds the block's output `y` to `x`, in place.
    pub(crate) fn leave(&self, x: &Tensor, y: Tensor) -> Result<()> {
        let (_, width) = x.dims2()?;
        if y.dims() != x.dims() {
            bail!("a sum of {:?} and {:?}", x.dims(), y.dims());
        }
        if let Some(norm) = &self.behind {
            norm.change(&y)?;
        }
        with_f32(&y, |y| {
            change_f32(x, |x| {
                for_each_chunk(x, width, |row, x| {
                    let y = &y[row * width..][..width];
                    match self.multiplier {
                        None => add(x, y),
                        Some(multiplier) => add_times(x, y, multiplier),
                    }
                    if let Some(norm) = &self.of_sum {
                        norm.norm_row(x);
                    }
                });
            })
        })?
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
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        names: &LayerNames,
    ) -> std::result::Result<Mlp, EngineError> {
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

// The norms between the blocks. candle-nn's norms return a new tensor; these can also change one in place.

/// RMSNorm, or LayerNorm if there is a bias. A LayerNorm without bias has one of zeros.
#[derive(Debug)]
pub(crate) struct Norm {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    epsilon: f32,
}

impl Norm {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        names: &NormNames,
    ) -> std::result::Result<Norm, EngineError> {
        let mut weight = reader.vector(&names.weight)?;
        if config.rms_norm && config.form.norm_offset != 0.0 {
            weight.iter_mut().for_each(|weight| *weight += config.form.norm_offset);
        }
        let bias = match &names.bias {
            Some(name) => Some(reader.vector(name)?),
            None => (!config.rms_norm).then(|| vec![0.0; weight.len()]),
        };
        Ok(Norm { weight, bias, epsilon: config.norm_epsilon as f32 })
    }

    /// `None` if the model has no norm there.
    pub(crate) fn read_optional(
        reader: &Reader<'_>,
        config: &ModelConfig,
        names: Option<&NormNames>,
    ) -> std::result::Result<Option<Norm>, EngineError> {
        names.map(|names| Norm::read(reader, config, names)).transpose()
    }

    /// Norms each row of `[rows, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let mut normed = vec![0.0; rows * width];
        with_f32(x, |x| {
            for_each_chunk(&mut normed, width, |row, out| {
                out.copy_from_slice(&x[row * width..][..width]);
                self.norm_row(out);
            });
        })?;
        Tensor::from_vec(normed, (rows, width), &Device::Cpu)
    }

    /// The same in place.
    pub(crate) fn change(&self, x: &Tensor) -> Result<()> {
        change_f32(x, |x| for_each_chunk(x, self.weight.len(), |_, row| self.norm_row(row)))
    }

    /// Norms one row in place.
    pub(crate) fn norm_row(&self, row: &mut [f32]) {
        match &self.bias {
            None => rms_norm(row, &self.weight, self.epsilon),
            Some(bias) => layer_norm(row, &self.weight, bias, self.epsilon),
        }
    }
}

// The norms of queries and keys before they are rotated.

/// RMSNorms over each head of queries and of keys, or over all heads together.
#[derive(Debug)]
pub(crate) struct HeadNorms {
    query: Vec<f32>,
    key: Vec<f32>,
    epsilon: f32,
    over_all: bool,
}

impl HeadNorms {
    /// `None` if the model has no such norms.
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        layer: usize,
    ) -> std::result::Result<Option<HeadNorms>, EngineError> {
        let names = config.layer(layer);
        let (Some(query), Some(key)) = (&names.q_norm, &names.k_norm) else { return Ok(None) };
        let weight = |name: &str| {
            let mut weight = reader.vector(name)?;
            if config.form.norm_offset != 0.0 {
                weight.iter_mut().for_each(|weight| *weight += config.form.norm_offset);
            }
            Ok::<_, EngineError>(weight)
        };
        Ok(Some(HeadNorms {
            query: weight(query)?,
            key: weight(key)?,
            epsilon: config.norm_epsilon as f32,
            over_all: config.form.whole_qk_norm,
        }))
    }

    /// Norms the queries and keys of `[rows, queries, keys and values]` in place, if the norm goes over all
    /// heads.
    pub(crate) fn over_all_heads(&self, qkv: &Tensor) -> Result<()> {
        if !self.over_all {
            return Ok(());
        }
        let (_, width) = qkv.dims2()?;
        change_f32(qkv, |qkv| {
            for_each_chunk(qkv, width, |_, row| {
                let (query, rest) = row.split_at_mut(self.query.len());
                rms_norm(query, &self.query, self.epsilon);
                rms_norm(&mut rest[..self.key.len()], &self.key, self.epsilon);
            });
        })
    }

    /// Norms one head, if each head is normed separately.
    pub(crate) fn norm_query(&self, head: &mut [f32]) {
        if !self.over_all {
            rms_norm(head, &self.query, self.epsilon);
        }
    }

    pub(crate) fn norm_key(&self, head: &mut [f32]) {
        if !self.over_all {
            rms_norm(head, &self.key, self.epsilon);
        }
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
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
    ) -> std::result::Result<Embedding, EngineError> {
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
