//! A decoder-only transformer, built from the properties in its configuration.

use bundle::{Bundle, ModelConfig, Precision};
use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;
use worker::engine::{self, Want};

use crate::audio::Ears;
use crate::decoder::Answer;
use crate::elements::with_f32;
use crate::kernels::Kernels;
use crate::layer::{Embedding, Layer};
use crate::linear::Linear;
use crate::norm::Norm;
use crate::parallel::{compute_here, reading};
use crate::reader::{Form, Reader, framework};
use crate::sequences::{Cache, Sequences};
use crate::weight::{Held, Weight};

/// Indices of the last row of each sequence; the rows of the sequences follow one another.
pub(crate) fn last_rows(lengths: &[usize]) -> Result<Tensor> {
    let ends = lengths.iter().scan(0, |end, &length| {
        *end += length as u32;
        Some(*end - 1)
    });
    Tensor::new(ends.collect::<Vec<u32>>(), &Device::Cpu)
}

#[derive(Debug)]
pub(crate) struct Model {
    config: ModelConfig,
    /// The precision of the file that was read.
    precision: Precision,
    embedding: Embedding,
    layers: Vec<Layer>,
    final_norm: Norm,
    head: Linear,
    ears: Option<Ears>,
    kernels: Kernels,
}

impl Model {
    /// Reads the weights at `precision`, for products in `form`.
    pub(crate) fn read(
        bundle: &Bundle,
        precision: Precision,
        (form, kernels): (Form, Kernels),
    ) -> engine::Result<Model> {
        reading(|| Model::read_here(bundle, precision, (form, kernels)))
    }

    fn read_here(
        bundle: &Bundle,
        precision: Precision,
        (form, kernels): (Form, Kernels),
    ) -> engine::Result<Model> {
        let weights = bundle.weights(precision)?;
        let config = bundle.config().clone();
        let reader = Reader::new(&weights, form, kernels);
        let embedding = Embedding::read(&reader, &config)?;
        let head = match config.tied_embeddings {
            true => embedding.tokens().clone(),
            false => reader.matrix(&config.lm_head())?,
        };
        let head_bias = config.lm_head_bias().map(|name| reader.vector(&name)).transpose()?;
        let head_bias =
            head_bias.map(|bias| Tensor::new(bias, &Device::Cpu)).transpose().map_err(framework)?;
        let layers =
            (0..config.layers.len()).into_par_iter().map(|index| Layer::read(&reader, &config, index));
        Ok(Model {
            layers: layers.collect::<std::result::Result<_, _>>()?,
            final_norm: Norm::read(&reader, &config, &config.final_norm())?,
            head: Linear::new(head, head_bias, kernels),
            ears: Ears::read(&reader, &config)?,
            precision: weights.precision(),
            embedding,
            config,
            kernels,
        })
    }

    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The precision of the weights file.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    pub(crate) fn held(&self) -> Held {
        let layers = self.layers.iter().flat_map(Layer::linears);
        let ears = self.ears.iter().flat_map(Ears::linears);
        let linears = [&self.head].into_iter().chain(layers).chain(ears);
        let weights: Vec<&Weight> = linears.map(Linear::weight).collect();
        Held::new(&weights)
    }

    /// Keys and values of the audio for each layer.
    pub(crate) fn listen(&self, frames: &[f32]) -> Result<Vec<Cache>> {
        let Some(ears) = &self.ears else { return Ok(Vec::new()) };
        compute_here();
        let vectors = ears.forward(frames)?;
        self.layers.iter().filter_map(Layer::cross).map(|cross| cross.heard(&vectors)).collect()
    }

    /// Appends `tokens` after the filled positions of `sequences`: `[batch, positions]`, or `lengths` tokens
    /// of each sequence.
    pub(crate) fn forward(
        &self,
        sequences: &mut Sequences,
        (tokens, lengths): (&[u32], Option<&[usize]>),
        want: Want,
        answer: &mut Answer,
    ) -> Result<()> {
        let (batch, filled) = (sequences.batch, sequences.filled);
        let positions = tokens.len() / batch;
        compute_here();
        let places: Vec<usize> = match lengths {
            Some(lengths) => lengths.iter().flat_map(|&length| 0..length).collect(),
            None => (0..batch)
                .flat_map(|sequence| {
                    let first = filled - sequences.padding.get(sequence).copied().unwrap_or(0);
                    first..first + positions
                })
                .collect(),
        };
        if self.kernels == Kernels::Candle {
            sequences.turn(&places)?;
        }
        let mut x = self.embedding.forward(tokens, places.into_iter(), &[])?;
        if let Some(hidden) = &mut answer.hidden {
            hidden.clear();
            hidden.push(with_f32(&x, <[f32]>::to_vec)?);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, |attention, qkv| attention.forward(qkv, sequences, (index, lengths)))?;
            if let Some(hidden) = &mut answer.hidden
                && index + 1 < self.layers.len()
            {
                hidden.push(with_f32(&x, <[f32]>::to_vec)?);
            }
        }
        if let Some(hidden) = &mut answer.hidden {
            hidden.push(with_f32(&self.final_norm.forward(&x)?, <[f32]>::to_vec)?);
        }
        if let Some(lengths) = lengths {
            x = x.index_select(&last_rows(lengths)?, 0)?;
        } else if want == Want::Last {
            let width = self.config.hidden_size;
            let last = x.reshape((batch, positions, width))?.narrow(1, positions - 1, 1)?;
            x = last.contiguous()?.reshape((batch, width))?;
        }
        let normed = self.final_norm.forward(&x)?;
        let form = &self.config.form;
        if form.logits_multiplier.is_none() && form.logits_cap.is_none() && !self.config.head_bias {
            answer.logits.resize(normed.dim(0)? * self.config.vocab_size, 0.0);
            return self.head.multiply(&normed, &mut answer.logits);
        }
        let logits = self.kernels.times(self.head.forward(&normed)?, form.logits_multiplier)?;
        answer.logits = with_f32(&self.kernels.capped(logits, form.logits_cap)?, <[f32]>::to_vec)?;
        Ok(())
    }

    /// Whose code computes between the products.
    pub(crate) fn kernels(&self) -> Kernels {
        self.kernels
    }
}
