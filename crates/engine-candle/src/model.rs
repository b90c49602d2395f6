//! A decoder-only transformer, by the properties that its configuration states.

use bundle::{Bundle, ModelConfig, Precision};
use candle_core::Result;
use engine::{EngineError, Want};
use rayon::prelude::*;

use crate::attention::Attention;
use crate::block::Place;
use crate::error::framework;
use crate::linear::Linear;
use crate::math::{add, cap};
use crate::mlp::Mlp;
use crate::norm::Norm;
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::sequences::Sequences;
use crate::weight::{Weight, with_f32};

/// Rows whose logits are computed together where those of every position are wanted.
const HEAD_ROWS: usize = 128;

/// Rows that go through a feed-forward block together: enough for the products to run at full speed, few
/// enough for what is between them to stay in cache and be allocated from memory already mapped.
pub(crate) const MLP_ROWS: usize = 256;

#[derive(Debug)]
pub(crate) struct Model {
    config: ModelConfig,
    /// The precision of the file that was read.
    precision: Precision,
    /// `[vocabulary, hidden]`
    embedding: Weight,
    /// `[positions, hidden]`, of a model with learned positions.
    positions: Option<Weight>,
    layers: Vec<Layer>,
    final_norm: Norm,
    head: Linear,
}

#[derive(Debug)]
struct Layer {
    attention_place: Place,
    qkv: Linear,
    attention: Attention,
    output: Linear,
    mlp_place: Place,
    mlp: Mlp,
}

/// What the linear layers compute with, observed from what they hold.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) precision: Precision,
    pub(crate) weights: usize,
    /// How many of those are held a second time, in the form that candle's kernel wants.
    pub(crate) repacked: usize,
    /// For people.
    pub(crate) kernels: Vec<String>,
}

impl Held {
    /// What is observed of the weights of linear layers, of which there is one at least.
    pub(crate) fn new(weights: &[&Weight]) -> Held {
        let mut kernels: Vec<String> = weights.iter().flat_map(|weight| weight.kernels()).collect();
        kernels.sort();
        kernels.dedup();
        Held {
            precision: weights.first().map_or(Precision::F32, |weight| weight.precision()),
            weights: weights.len(),
            repacked: weights.iter().filter(|weight| weight.is_repacked()).count(),
            kernels,
        }
    }
}

impl Model {
    /// Reads the weights at `precision`; quantised ones as f32 if `dequantise` says so.
    pub(crate) fn read(
        bundle: &Bundle,
        precision: Precision,
        dequantise: bool,
    ) -> std::result::Result<Model, EngineError> {
        let weights = bundle.weights(precision)?;
        let config = bundle.config().clone();
        let reader = Reader::new(&weights, dequantise);
        let embedding = reader.matrix(&config.embedding())?;
        let head =
            if config.tied_embeddings { embedding.clone() } else { reader.matrix(&config.lm_head())? };
        let layers = (0..config.layers).into_par_iter().map(|index| Layer::read(&reader, &config, index));
        Ok(Model {
            positions: config.position_embedding().map(|name| reader.matrix(&name)).transpose()?,
            layers: layers.collect::<std::result::Result<_, _>>()?,
            final_norm: Norm::read(&reader, &config, &config.final_norm())?,
            head: Linear::new(head, None).map_err(framework)?,
            precision: weights.precision(),
            embedding,
            config,
        })
    }

    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The precision of the weights file.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// How the weights of the linear layers are held.
    pub(crate) fn held(&self) -> Held {
        let layers = self.layers.iter().flat_map(|layer| {
            let [gate_up, down] = layer.mlp.linears();
            [&layer.qkv, &layer.output, gate_up, down]
        });
        let weights: Vec<&Weight> = [&self.head].into_iter().chain(layers).map(Linear::weight).collect();
        Held::new(&weights)
    }

    /// Appends `tokens`, `[batch, positions]`, behind the filled positions of `sequences`. Logits go to `logits`, and
    /// the hidden states to `hidden` where there is one.
    pub(crate) fn forward(
        &self,
        sequences: &mut Sequences,
        tokens: &[u32],
        want: Want,
        logits: &mut Vec<f32>,
        mut hidden: Option<&mut Vec<Vec<f32>>>,
    ) -> Result<()> {
        let positions = tokens.len() / sequences.batch;
        let mut x = self.embed(tokens, positions, sequences.filled)?;
        if let Some(hidden) = hidden.as_deref_mut() {
            hidden.clear();
            hidden.push(x.clone());
        }
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(&mut x, sequences, index)?;
            if let Some(hidden) = hidden.as_deref_mut().filter(|_| index + 1 < self.layers.len()) {
                hidden.push(x.clone());
            }
        }
        if let Some(hidden) = hidden {
            hidden.push(with_f32(&self.final_norm.forward(&x)?, <[f32]>::to_vec)?);
        }
        if want == Want::Last {
            let width = self.config.hidden_size;
            x = x
                .chunks_exact(positions * width)
                .flat_map(|rows| &rows[rows.len() - width..])
                .copied()
                .collect();
        }
        let normed = self.final_norm.forward(&x)?;
        logits.resize(normed.dim(0)? * self.config.vocab_size, 0.0);
        self.head.forward_into(&normed, HEAD_ROWS, logits)?;
        self.finish(logits);
        Ok(())
    }

    /// What some models do to their logits.
    fn finish(&self, logits: &mut [f32]) {
        let form = &self.config.form;
        if form.logits_multiplier.is_none() && form.logits_cap.is_none() {
            return;
        }
        for_each_chunk(logits, self.config.vocab_size, |_, logits| {
            if let Some(multiplier) = form.logits_multiplier {
                logits.iter_mut().for_each(|logit| *logit *= multiplier as f32);
            }
            if let Some(bound) = form.logits_cap {
                cap(logits, bound as f32);
            }
        });
    }

    fn embed(&self, tokens: &[u32], positions: usize, filled: usize) -> Result<Vec<f32>> {
        let width = self.config.hidden_size;
        let mut x = vec![0.0; tokens.len() * width];
        let mut learned = vec![0.0; width];
        for (index, (out, &token)) in x.chunks_exact_mut(width).zip(tokens).enumerate() {
            self.embedding.copy_row(token as usize, out)?;
            if let Some(multiplier) = self.config.form.embedding_multiplier {
                out.iter_mut().for_each(|x| *x *= multiplier as f32);
            }
            if let Some(table) = &self.positions {
                table.copy_row(filled + index % positions, &mut learned)?;
                add(out, &learned);
            }
        }
        Ok(x)
    }
}

impl Layer {
    fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        index: usize,
    ) -> std::result::Result<Layer, EngineError> {
        let names = config.layer(index);
        let place = |norms| Place::read(reader, config, norms);
        Ok(Layer {
            attention_place: place([&names.attention_norm, &names.attention_norm_behind])?,
            qkv: Linear::read(reader, &names.qkv)?,
            attention: Attention::read(reader, config, index)?,
            output: Linear::read(reader, &names.output)?,
            mlp_place: place([&names.mlp_norm, &names.mlp_norm_behind])?,
            mlp: Mlp::read(reader, config, &names)?,
        })
    }

    /// Adds both blocks to the residual stream `x`, `[rows, hidden]`.
    fn forward(&self, x: &mut [f32], sequences: &mut Sequences, index: usize) -> Result<()> {
        let (_, width) = self.qkv.weight().dims()?;
        let qkv = self.qkv.forward(&self.attention_place.enter(x, width)?)?;
        let attended = self.attention.forward(&qkv, sequences, index)?;
        self.attention_place.leave(x, &self.output.forward(&attended)?)?;
        for x in x.chunks_mut(MLP_ROWS * width) {
            self.mlp_place.leave(x, &self.mlp.forward(&self.mlp_place.enter(x, width)?)?)?;
        }
        Ok(())
    }
}
