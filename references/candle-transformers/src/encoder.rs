//! The encoders of candle-transformers, driven as its examples drive them: texts padded to the longest of their batch, with
//! a mask of what is no padding.

use std::collections::HashMap;
use std::path::Path;

use bundle::{Activation, Architecture, Bundle, Head, ModelConfig, Pooling, Position, Rotary, Scored};
use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device, IndexOp, Result, Tensor, bail};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, modernbert, nomic_bert, xlm_roberta};
use engine::{Encode, EncodeTask, EngineError, Precision, Texts};

use crate::error::framework;

type Refusable<T> = std::result::Result<T, EngineError>;

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

/// What a model of candle-transformers is made of, but for the weights.
enum Described {
    Bert(bert::Config),
    XlmRoberta(xlm_roberta::Config, Option<usize>),
    ModernBert(modernbert::Config),
    NomicBert(nomic_bert::Config),
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

impl Described {
    /// From what the bundle's configuration resolves to; refused where candle-transformers has no such model, or computes
    /// it otherwise.
    fn new(config: &ModelConfig) -> Refusable<Described> {
        let head = config.scoring();
        match config.architecture {
            Architecture::Bert => {
                headless("BERT", head)?;
                bert_config(config).map(Described::Bert)
            }
            Architecture::Roberta => match head {
                Some(Head { of: Scored::Texts(_), labels, .. }) => {
                    Ok(Described::XlmRoberta(xlm_roberta_config(config), Some(*labels)))
                }
                _ => {
                    headless("XLM-RoBERTa", head)?;
                    Ok(Described::XlmRoberta(xlm_roberta_config(config), None))
                }
            },
            Architecture::ModernBert => {
                if let Some(Head { of: Scored::Texts(_), .. }) = head {
                    return unsupported(
                        "candle-transformers' head of ModernBERT gives probabilities in place of scores",
                    );
                }
                headless("ModernBERT", head)?;
                modernbert_config(config).map(Described::ModernBert)
            }
            Architecture::NomicBert => {
                headless("NomicBERT", head)?;
                nomic_bert_config(config).map(Described::NomicBert)
            }
            Architecture::DistilBert => {
                unsupported("candle-transformers' DistilBERT computes gelu by its approximation with tanh")
            }
            Architecture::Mpnet => unsupported("candle-transformers has no MPNet"),
            _ => unsupported("candle-transformers' decoders give logits, and no vectors of texts"),
        }
    }
}

fn unsupported<T>(reason: &str) -> Refusable<T> {
    Err(EngineError::Unsupported(reason.into()))
}

fn headless(model: &str, head: Option<&Head>) -> Refusable<()> {
    match head {
        None => Ok(()),
        Some(head) => {
            let what = if head.of == Scored::Tokens { "tokens" } else { "texts" };
            unsupported(&format!("candle-transformers has no head of {model} that scores {what}"))
        }
    }
}

fn bert_config(config: &ModelConfig) -> Refusable<bert::Config> {
    let hidden_act = match config.activation {
        Activation::GeluErf => bert::HiddenAct::Gelu,
        Activation::GeluTanh => bert::HiddenAct::GeluApproximate,
        Activation::Relu => bert::HiddenAct::Relu,
        Activation::Silu => return unsupported("candle-transformers' BERT has no silu"),
    };
    Ok(bert::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        num_hidden_layers: config.layers,
        num_attention_heads: config.heads,
        intermediate_size: config.intermediate_size,
        hidden_act,
        max_position_embeddings: config.max_positions,
        type_vocab_size: token_types(config),
        layer_norm_eps: config.norm_epsilon,
        ..bert::Config::default()
    })
}

fn xlm_roberta_config(config: &ModelConfig) -> xlm_roberta::Config {
    let (first_position, pad_token) =
        config.encoder.as_ref().map_or((0, 0), |encoder| (encoder.first_position, encoder.pad_token));
    xlm_roberta::Config {
        hidden_size: config.hidden_size,
        layer_norm_eps: config.norm_epsilon,
        attention_probs_dropout_prob: 0.0,
        hidden_dropout_prob: 0.0,
        num_attention_heads: config.heads,
        position_embedding_type: "absolute".into(),
        intermediate_size: config.intermediate_size,
        hidden_act: match config.activation {
            Activation::GeluErf => candle_nn::Activation::Gelu,
            Activation::GeluTanh => candle_nn::Activation::GeluPytorchTanh,
            Activation::Relu => candle_nn::Activation::Relu,
            Activation::Silu => candle_nn::Activation::Silu,
        },
        num_hidden_layers: config.layers,
        vocab_size: config.vocab_size,
        max_position_embeddings: first_position + config.max_positions,
        type_vocab_size: token_types(config),
        pad_token_id: pad_token,
    }
}

fn modernbert_config(config: &ModelConfig) -> Refusable<modernbert::Config> {
    let biases = config.qkv_bias || config.output_bias || config.mlp_bias || !config.form.norm_without_bias;
    if biases || config.activation != Activation::GeluErf {
        return unsupported("candle-transformers' ModernBERT has no biases, and no activation but gelu");
    }
    let sees_all = |layer: usize| config.layer_attention(layer).window.is_none();
    let every =
        (1..=config.layers).find(|every| (0..config.layers).all(|at| sees_all(at) == (at % every == 0)));
    let Some(every) = every else {
        return unsupported(
            "candle-transformers' ModernBERT has layers that see all at equal distances alone",
        );
    };
    let main = theta(config, None)?;
    Ok(modernbert::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        num_hidden_layers: config.layers,
        num_attention_heads: config.heads,
        intermediate_size: config.intermediate_size,
        max_position_embeddings: config.max_positions,
        layer_norm_eps: config.norm_epsilon,
        pad_token_id: config.encoder.as_ref().map_or(0, |encoder| encoder.pad_token),
        global_attn_every_n_layers: every,
        global_rope_theta: main,
        // A token sees half of it on each side; the window counts the token itself.
        local_attention: config.form.window.map_or(0, |window| 2 * window.saturating_sub(1)),
        local_rope_theta: config
            .form
            .sliding_rotary
            .as_ref()
            .map_or(Ok(main), |own| theta(config, Some(own)))?,
        classifier_config: None,
    })
}

fn nomic_bert_config(config: &ModelConfig) -> Refusable<nomic_bert::Config> {
    if config.activation != Activation::Silu || config.head_dim * config.heads != config.hidden_size {
        return unsupported(
            "candle-transformers' NomicBERT has no activation but silu, and heads of one size",
        );
    }
    Ok(nomic_bert::Config {
        vocab_size: config.vocab_size,
        n_embd: config.hidden_size,
        n_head: config.heads,
        n_layer: config.layers,
        n_inner: config.intermediate_size,
        n_positions: config.max_positions,
        type_vocab_size: token_types(config),
        layer_norm_epsilon: config.norm_epsilon,
        rotary_emb_base: theta(config, None)?,
        ..nomic_bert::Config::default()
    })
}

/// The base of the model's rotations, or of these.
fn theta(config: &ModelConfig, own: Option<&Rotary>) -> Refusable<f64> {
    let main = if let Position::Rotary(main) = &config.position { Some(main) } else { None };
    match own.or(main) {
        Some(rotary) if *rotary == Rotary::plain(rotary.theta) => Ok(rotary.theta),
        _ => unsupported("candle-transformers' encoders rotate by frequencies that nothing scales"),
    }
}

fn token_types(config: &ModelConfig) -> usize {
    config.encoder.as_ref().map_or(0, |encoder| encoder.token_types)
}

/// All tensors of a file, by name.
fn tensors(file: &Path) -> Result<HashMap<String, Tensor>> {
    // SAFETY: bundles are immutable by contract, and what candle makes of the mapping are copies.
    #[allow(unsafe_code)]
    let mapped = unsafe { MmapedSafetensors::new(file)? };
    let names = mapped.tensors().into_iter().map(|(name, _)| name);
    names.map(|name| Ok((name.clone(), mapped.load(&name, &Device::Cpu)?))).collect()
}

/// The tensors of a nomic_bert under the names that it was published with, queries, keys and values in one.
fn published(config: &ModelConfig, held: &HashMap<String, Tensor>) -> Result<HashMap<String, Tensor>> {
    let mut named: Vec<(String, Vec<String>)> = vec![
        ("embeddings.word_embeddings.weight".into(), vec![config.embedding()]),
        (
            "embeddings.token_type_embeddings.weight".into(),
            config.token_type_embedding().into_iter().collect(),
        ),
    ];
    let norm = |named: &mut Vec<(String, Vec<String>)>, part: &str, norm: Option<bundle::NormNames>| {
        if let Some(norm) = norm {
            named.push((format!("{part}.weight"), vec![norm.weight]));
            named.push((format!("{part}.bias"), norm.bias.into_iter().collect()));
        }
    };
    norm(&mut named, "emb_ln", config.embedding_norm());
    for index in 0..config.layers {
        let layer = config.layer(index);
        let at = |part: &str| format!("encoder.layers.{index}.{part}");
        let gate_up = layer.gate_up.weights;
        named.push((at("attn.Wqkv.weight"), layer.qkv.weights));
        named.push((at("attn.out_proj.weight"), layer.output.weights));
        named.push((at("mlp.fc12.weight"), gate_up.iter().take(1).cloned().collect()));
        named.push((at("mlp.fc11.weight"), gate_up.iter().skip(1).cloned().collect()));
        named.push((at("mlp.fc2.weight"), layer.down.weights));
        norm(&mut named, &at("norm1"), layer.attention_norm_behind);
        norm(&mut named, &at("norm2"), layer.mlp_norm_behind);
    }
    let mut tensors = HashMap::new();
    for (name, parts) in named {
        let parts: Vec<&Tensor> = parts.iter().filter_map(|part| held.get(part)).collect();
        match parts[..] {
            [] => {}
            [whole] => drop(tensors.insert(name, whole.clone())),
            _ => drop(tensors.insert(name, Tensor::cat(&parts, 0)?)),
        }
    }
    Ok(tensors)
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
