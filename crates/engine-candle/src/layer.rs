//! A layer: attention and the feed-forward block, with their norms.

use bundle::{Activation, HeadActivation, LinearNames, ModelConfig};
use candle_core::{Device, Result, Tensor};
use worker::engine::{self};

use crate::attention::Attention;
use crate::cross::Cross;
use crate::experts::{self, Feed};
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
    cross: Option<Cross>,
    mlp_norms: SublayerNorms,
    feed: Feed<Mlp, Linear>,
    /// The input of the second block is that of the first.
    parallel: bool,
    /// The second block takes all rows at once: weights are converted once, and each expert's are read once.
    whole: bool,
    kernels: Kernels,
}

impl Layer {
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig, index: usize) -> engine::Result<Layer> {
        let names = config.layer(index);
        let place = |norms| SublayerNorms::read(reader, config, norms);
        let mlp = |mlp, names: [&LinearNames; 2]| Mlp::read(reader, mlp, names);
        let feed = Feed::read(config, (index, &names), mlp, |names| Linear::read(reader, names))?;
        let is_converted = feed.mlps().flat_map(Mlp::linears).any(|linear| linear.weight().is_converted());
        Ok(Layer {
            attention_norms: place([&names.attention_norm, &names.post_attention_norm])?,
            qkv: Linear::read(reader, &names.qkv)?,
            attention: Attention::read(reader, config, index)?,
            output: Linear::read(reader, &names.output)?,
            cross: names.cross.map(|names| Cross::read(reader, config, &names)).transpose()?,
            mlp_norms: place([&names.mlp_norm, &names.post_mlp_norm])?,
            whole: is_converted || matches!(feed, Feed::Experts { .. }),
            feed,
            parallel: config.form.parallel,
            kernels: reader.kernels(),
        })
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        let cross = self.cross.iter().flat_map(Cross::linears);
        let own = [&self.qkv, &self.output].into_iter().chain(cross);
        own.chain(self.feed.mlps().flat_map(Mlp::linears)).collect()
    }

    pub(crate) fn cross(&self) -> Option<&Cross> {
        self.cross.as_ref()
    }

    /// The residual stream `x`, `[rows, hidden]`, after both blocks. The own loops change `x` itself. `attend` computes
    /// attention from rows of queries, keys and values, or to audio from those of queries.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        mut attend: impl FnMut(&Attention, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let entered = self.attention_norms.enter(x)?;
        // Before `x` changes.
        let beside = match self.parallel {
            true => Some(self.mlp_norms.enter_or(x, &entered)?),
            false => None,
        };
        let qkv = self.qkv.forward(&entered)?;
        let attended = attend(&self.attention, &qkv)?;
        drop((qkv, entered));
        let mut x = self.attention_norms.leave(x, self.output.forward(&attended)?)?;
        if let Some(cross) = &self.cross {
            x = cross.forward(x, &mut attend)?;
        }
        let rows = x.dim(0)?;
        // `part`: rows of `x` from `start` on.
        let second = |part: &Tensor, start: usize| {
            let entered = match &beside {
                Some(beside) => beside.narrow(0, start, part.dim(0)?)?,
                None => self.mlp_norms.enter(part)?,
            };
            self.mlp_norms.leave(part, self.feed.forward(&entered)?)
        };
        if self.whole || rows <= MLP_ROWS {
            return second(&x, 0);
        }
        for start in (0..rows).step_by(MLP_ROWS) {
            let sum = second(&x.narrow(0, start, MLP_ROWS.min(rows - start))?, start)?;
            if self.kernels == Kernels::Candle {
                x.slice_set(&sum, 0, start)?;
            }
        }
        Ok(x)
    }
}

// The feed-forward block's MLPs.

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
    pub(crate) fn read(
        reader: &Reader<'_>,
        mlp: bundle::Mlp,
        names: [&LinearNames; 2],
    ) -> engine::Result<Mlp> {
        Ok(Mlp {
            gate_up: Linear::read(reader, names[0])?,
            down: Linear::read(reader, names[1])?,
            activation: mlp.activation,
            gated: mlp.gated,
            kernels: reader.kernels(),
        })
    }

    pub(crate) fn linears(&self) -> [&Linear; 2] {
        [&self.gate_up, &self.down]
    }
}

impl experts::Mlp for Mlp {
    fn forward(&self, x: &Tensor, clamped: bool) -> Result<Tensor> {
        let (kernels, activation) = (self.kernels, self.activation);
        let activated = match self.gated {
            true if clamped => self.gate_up.combined(x, experts::clamped)?,
            true => self.gate_up.combined(x, |gate, up| kernels.gated(gate, up, activation))?,
            false => kernels.activate(&self.gate_up.forward(x)?, HeadActivation::Of(activation))?,
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
