//! The encoders of candle-transformers, driven as its examples drive them: texts padded to the longest of their batch, with
//! a mask of what is no padding.

mod described;
mod held;

use std::collections::HashMap;
use std::path::Path;

use bundle::{Bundle, ModelConfig, Pooling};
use candle_core::{DType, Device, IndexOp, Result, Tensor, bail};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, modernbert, nomic_bert, xlm_roberta};
use described::{Described, Refusable, unsupported};
use held::{published, tensors};
use worker::engine::{Encode, EncodeTask, Precision, Texts};

use crate::error::framework;

pub(crate) struct Encoder {
    config: ModelConfig,
    model: Model,
    pad_token: u32,
    vectors: Vec<f32>,
    positions: usize,
}

enum Model {
    Bert(bert::BertModel),
    XlmRoberta {
        body: xlm_roberta::XLMRobertaModel,
        /// The same weights and the head, in the only form in which it is public.
        ranker: Option<xlm_roberta::XLMRobertaForSequenceClassification>,
    },
    ModernBert(modernbert::ModernBert),
    NomicBert(nomic_bert::NomicBertModel),
}

/// Texts as the models take them, `[texts, longest]` each.
struct Padded {
    tokens: Tensor,
    types: Tensor,
    /// 1 where a token is, 0 where padding is.
    mask: Tensor,
}

impl Encoder {
    pub(crate) fn load(bundle: &Bundle, file: &Path, precision: Precision) -> Refusable<Encoder> {
        let config = bundle.config().clone();
        let described = Described::new(&config)?;
        if precision != Precision::F32 {
            // At 16 bits, BERT's mask is not a number, and others add one in f32.
            return unsupported("candle-transformers encodes in f32 alone here");
        }
        let pad_token = config.encoder.as_ref().map_or(0, |encoder| encoder.pad_token);
        let model = tensors(file).and_then(|held| Model::new(described, &config, held)).map_err(framework)?;
        Ok(Encoder { config, model, pad_token, vectors: Vec::new(), positions: 0 })
    }

    /// The module of candle-transformers that is driven.
    pub(crate) fn module(&self) -> &'static str {
        match &self.model {
            Model::Bert(_) => "models::bert",
            Model::XlmRoberta { .. } => "models::xlm_roberta",
            Model::ModernBert(_) => "models::modernbert",
            Model::NomicBert(_) => "models::nomic_bert",
        }
    }

    fn forward(&self, padded: &Padded, lengths: &[usize], task: EncodeTask) -> Result<Tensor> {
        match task {
            EncodeTask::Embed { pooling: Pooling::Each, .. } => {
                let states = self.model.forward(padded)?;
                let texts = lengths.iter().enumerate();
                let tokens =
                    texts.map(|(text, &length)| states.i((text, ..length))).collect::<Result<Vec<_>>>()?;
                Tensor::cat(&tokens, 0)
            }
            EncodeTask::Embed { pooling, normalise } => {
                let vectors = pool(&self.model.forward(padded)?, &padded.mask, lengths, pooling)?;
                if !normalise {
                    return Ok(vectors);
                }
                vectors.broadcast_div(&vectors.sqr()?.sum_keepdim(1)?.sqrt()?)
            }
            EncodeTask::Score => match &self.model {
                Model::XlmRoberta { ranker: Some(ranker), .. } => {
                    ranker.forward(&padded.tokens, &padded.mask, &padded.types)
                }
                _ => bail!("the model was loaded without a head"),
            },
        }
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Refusable<&[f32]> {
        texts.check(&self.config, task)?;
        if matches!(self.model, Model::XlmRoberta { .. }) && texts.tokens.contains(&self.pad_token) {
            return unsupported(&format!(
                "candle-transformers' XLM-RoBERTa counts positions without token {}, the padding, which a text holds",
                self.pad_token
            ));
        }
        let vectors = Padded::new(texts, self.pad_token)
            .and_then(|padded| self.forward(&padded, texts.lengths, task)?.flatten_all()?.to_vec1());
        self.vectors = vectors.map_err(framework)?;
        self.positions = texts.lengths.len() * texts.longest();
        Ok(&self.vectors)
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn positions(&self) -> usize {
        self.positions
    }
}

impl Padded {
    fn new(texts: Texts<'_>, pad_token: u32) -> Result<Padded> {
        let shape = (texts.lengths.len(), texts.longest());
        let padded = |numbers: &[u32], fill| {
            Tensor::from_vec(texts.padded(numbers.iter().copied(), fill), shape, &Device::Cpu)
        };
        Ok(Padded {
            tokens: padded(texts.tokens, pad_token)?,
            types: padded(texts.types, 0)?,
            mask: padded(&vec![1; texts.tokens.len()], 0)?,
        })
    }
}

impl Model {
    fn new(described: Described, config: &ModelConfig, held: HashMap<String, Tensor>) -> Result<Model> {
        let weights = |held| VarBuilder::from_tensors(held, DType::F32, &Device::Cpu);
        Ok(match described {
            Described::Bert(own) => Model::Bert(bert::BertModel::load(weights(held), &own)?),
            Described::XlmRoberta(own, None) => Model::XlmRoberta {
                body: xlm_roberta::XLMRobertaModel::new(&own, weights(held))?,
                ranker: None,
            },
            Described::XlmRoberta(own, Some(labels)) => {
                let weights = weights(held);
                Model::XlmRoberta {
                    body: xlm_roberta::XLMRobertaModel::new(&own, weights.pp("roberta"))?,
                    ranker: Some(xlm_roberta::XLMRobertaForSequenceClassification::new(
                        labels, &own, weights,
                    )?),
                }
            }
            Described::ModernBert(own) => {
                let held = held.into_iter().map(|(name, tensor)| (format!("model.{name}"), tensor)).collect();
                Model::ModernBert(modernbert::ModernBert::load(weights(held), &own)?)
            }
            Described::NomicBert(own) => {
                Model::NomicBert(nomic_bert::NomicBertModel::load(weights(published(config, &held)?), &own)?)
            }
        })
    }

    /// The vectors of all tokens, `[texts, longest, hidden]`.
    fn forward(&self, Padded { tokens, types, mask }: &Padded) -> Result<Tensor> {
        match self {
            Model::Bert(model) => model.forward(tokens, types, Some(mask)),
            Model::XlmRoberta { body, .. } => body.forward(tokens, mask, types, None, None, None),
            Model::ModernBert(model) => model.forward(tokens, mask),
            Model::NomicBert(model) => model.forward(tokens, Some(types), Some(mask)),
        }
    }
}

/// The vector of each text, `[texts, hidden]`, from those of its tokens.
fn pool(states: &Tensor, mask: &Tensor, lengths: &[usize], pooling: Pooling) -> Result<Tensor> {
    let mask = mask.unsqueeze(2)?;
    match pooling {
        Pooling::Cls => states.i((.., 0)),
        Pooling::Last => {
            let last = lengths.iter().enumerate().map(|(text, &length)| states.i((text, length - 1)));
            Tensor::stack(&last.collect::<Result<Vec<_>>>()?, 0)
        }
        Pooling::Mean => {
            let mask = mask.to_dtype(states.dtype())?;
            states.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&mask.sum(1)?)
        }
        Pooling::Each => states.flatten(0, 1),
        Pooling::Max => {
            let lowest = Tensor::new(f32::MIN, states.device())?.broadcast_as(states.shape())?;
            mask.broadcast_as(states.shape())?.where_cond(states, &lowest)?.max(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_no_part_of_a_vector() {
        let states = Tensor::new(&[[[-1f32], [-3.0]], [[-2.0], [7.0]]], &Device::Cpu).unwrap();
        let mask = Tensor::new(&[[1u32, 1], [1, 0]], &Device::Cpu).unwrap();
        let expected = [
            (Pooling::Cls, [-1.0, -2.0]),
            (Pooling::Mean, [-2.0, -2.0]),
            (Pooling::Max, [-1.0, -2.0]),
            (Pooling::Last, [-3.0, -2.0]),
        ];
        for (pooling, vectors) in expected {
            let pooled = pool(&states, &mask, &[2, 1], pooling).unwrap();
            assert_eq!(pooled.dims(), [2, 1]);
            assert_eq!(pooled.flatten_all().unwrap().to_vec1::<f32>().unwrap(), vectors, "{pooling:?}");
        }
    }
}
