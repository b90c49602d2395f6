//! A decoder-only transformer, built from the properties in its configuration.

use bundle::{Bundle, ModelConfig, Precision};
use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;
use worker::engine::{self, Want};

use crate::decoder::Answer;
use crate::layer::{Embedding, Layer};
use crate::linear::Linear;
use crate::math::cap;
use crate::norm::Norm;
use crate::parallel::for_each_chunk;
use crate::reader::{Form, Reader};
use crate::sequences::Sequences;
use crate::weight::{Held, Weight, with_f32};

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
}

impl Model {
    /// Reads the weights at `precision`, for products in `form`.
    pub(crate) fn read(bundle: &Bundle, precision: Precision, form: Form) -> engine::Result<Model> {
        let weights = bundle.weights(precision)?;
        let config = bundle.config().clone();
        let reader = Reader::new(&weights, form);
        let embedding = Embedding::read(&reader, &config)?;
        let head = match config.tied_embeddings {
            true => embedding.tokens().clone(),
            false => reader.matrix(&config.lm_head())?,
        };
        let layers = (0..config.layers).into_par_iter().map(|index| Layer::read(&reader, &config, index));
        Ok(Model {
            layers: layers.collect::<std::result::Result<_, _>>()?,
            final_norm: Norm::read(&reader, &config, &config.final_norm())?,
            head: Linear::new(head, None),
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

    pub(crate) fn held(&self) -> Held {
        let layers = self.layers.iter().flat_map(Layer::linears);
        let weights: Vec<&Weight> = [&self.head].into_iter().chain(layers).map(Linear::weight).collect();
        Held::new(&weights)
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
        let places: Vec<usize> = match lengths {
            Some(lengths) => lengths.iter().flat_map(|&length| 0..length).collect(),
            None => (0..batch)
                .flat_map(|sequence| {
                    let first = filled - sequences.padding.get(sequence).copied().unwrap_or(0);
                    first..first + positions
                })
                .collect(),
        };
        let mut x = self.embedding.forward(tokens, places.into_iter(), &[])?;
        if let Some(hidden) = &mut answer.hidden {
            hidden.clear();
            hidden.push(with_f32(&x, <[f32]>::to_vec)?);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(&x, |attention, qkv| attention.forward(qkv, sequences, (index, lengths)))?;
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
        answer.logits.resize(normed.dim(0)? * self.config.vocab_size, 0.0);
        self.head.forward_into(&normed, &mut answer.logits)?;
        self.finish(&mut answer.logits);
        Ok(())
    }

    /// Scales and caps the logits, in models that do so.
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
}
