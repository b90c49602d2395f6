//! From the fields of a config.json to a [`ModelConfig`].

use std::path::Path;

use serde_json::Value;

use super::activation::activation;
use super::fields::Fields;
use super::form::Form;
use super::graph::{self, Graph};
use super::model::{Architecture, ModelConfig};
use super::parts::even_share;
use super::position::{Position, Rotary};
use super::{activation, encoder, encoder_names, layers, rope};
use crate::error::BundleError;

/// The tensors of every layer are listed by name; a malicious config.json must not make that list fill
/// memory.
const MAX_LAYERS: usize = 1 << 12;
/// Numbers in all weights: a thousand times the largest model so far. In bytes, they can still be counted in 64 bits.
const MAX_NUMBERS: u128 = 1 << 50;
/// The frequencies of a rotation are computed before any weights are read.
const MAX_HEAD_DIM: usize = 1 << 16;

impl ModelConfig {
    pub fn read(path: &Path) -> Result<ModelConfig, BundleError> {
        let text =
            untrusted::file::read_text(path, untrusted::file::CONFIG).map_err(BundleError::io(path))?;
        let value = serde_json::from_str(&text)
            .map_err(|e| BundleError::Config(format!("{} does not parse: {e}", path.display())))?;
        ModelConfig::from_json(&value)
    }

    pub fn from_json(value: &Value) -> Result<ModelConfig, BundleError> {
        let fields = Fields(value);
        if fields.text("model_type")? == graph::MODEL_TYPE {
            return onnx(value);
        }
        let architecture = Architecture::from_model_type(fields.text("model_type")?)?;
        if architecture == Architecture::Gpt2 || encoder_names::has(architecture) {
            let config = match architecture {
                Architecture::Gpt2 => gpt2(&fields)?,
                _ => encoder::read(architecture, &fields)?,
            };
            return config.check().map(|()| config);
        }
        // A multimodal model has an object for its text part.
        let text = if architecture == Architecture::Gemma3 { fields.object("text_config")? } else { None };
        let fields = text.unwrap_or(fields);
        let mut config = decoder(architecture, &fields)?;
        config.check()?;
        config.form = layers::form(&config, &fields)?;
        let sizes = (config.head_dim, config.max_positions);
        let rotations = rope::rotations(architecture, &fields, sizes)?;
        config.position = Position::Rotary(rotations.main);
        config.form.rotated = rotations.rotated;
        config.form.sliding_rotary = rotations.sliding.filter(|_| config.form.window.is_some());
        config.encoder = encoder::of_decoder(architecture, &fields)?;
        if let Some(encoder) = &config.encoder {
            // There is no head over the vocabulary.
            config.tied_embeddings = true;
            encoder::check(encoder, config.vocab_size)?;
        }
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), BundleError> {
        let positive = [
            ("hidden size", self.hidden_size),
            ("intermediate size", self.intermediate_size),
            ("number of layers", self.layers),
            ("number of attention heads", self.heads),
            ("number of key/value heads", self.kv_heads),
            ("head dimension", self.head_dim),
            ("vocabulary size", self.vocab_size),
            ("number of positions", self.max_positions),
        ];
        // The products below, and those of every engine, must not overflow on a malicious header.
        if let Some((what, value)) = positive.into_iter().find(|(_, value)| !(1..1 << 28).contains(value)) {
            return Err(BundleError::Config(format!("{what} is {value}, which no model has")));
        }
        if let Some(mask) = self.mask_token.filter(|&mask| mask as usize >= self.vocab_size) {
            let vocabulary = self.vocab_size;
            let reason = format!("mask_token_id {mask} is outside the vocabulary of {vocabulary} tokens");
            return Err(BundleError::Config(reason));
        }
        if self.layers > MAX_LAYERS {
            let reason = format!("number of layers is {}, which no model has", self.layers);
            return Err(BundleError::Config(reason));
        }
        if self.head_dim > MAX_HEAD_DIM {
            let reason = format!("head dimension is {}, which no model has", self.head_dim);
            return Err(BundleError::Config(reason));
        }
        let types = self.encoder.as_ref().map_or(0, |encoder| encoder.token_types);
        let numbers = self.numbers() + (types * self.hidden_size) as u128;
        if numbers > MAX_NUMBERS {
            let reason = format!("its sizes make {numbers} weights, which no disk holds");
            return Err(BundleError::Config(reason));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            let reason = format!("{heads} attention heads cannot share {kv_heads} key/value heads evenly");
            return Err(BundleError::Config(reason));
        }
        if !self.head_dim.is_multiple_of(2) && self.position != Position::Learned {
            let reason = format!("head dimension {} is odd and cannot be rotated", self.head_dim);
            return Err(BundleError::Config(reason));
        }
        Ok(())
    }
}

impl ModelConfig {
    /// Number of all numbers in the weights of matrices.
    fn numbers(&self) -> u128 {
        let wide = |count: usize| count as u128;
        let (hidden, heads) = (wide(self.hidden_size), wide(self.heads) + wide(self.kv_heads));
        let attention = 2 * heads * wide(self.head_dim) * hidden;
        let mlp = 3 * wide(self.intermediate_size) * hidden;
        let positions = if self.position == Position::Learned { wide(self.max_positions) } else { 0 };
        wide(self.layers) * (attention + mlp) + (2 * wide(self.vocab_size) + positions) * hidden
    }
}

/// The configuration of an ONNX file. Sizes, which only transformers have, are 0.
fn onnx(value: &Value) -> Result<ModelConfig, BundleError> {
    let graph = value.get("graph").cloned().unwrap_or_default();
    let graph: Graph = serde_json::from_value(graph)
        .map_err(|error| BundleError::Config(format!("its graph does not parse: {error}")))?;
    Ok(ModelConfig {
        architecture: Architecture::Onnx,
        hidden_size: 0,
        intermediate_size: 0,
        layers: 0,
        heads: 0,
        kv_heads: 0,
        head_dim: 0,
        vocab_size: 0,
        max_positions: 0,
        rms_norm: false,
        norm_epsilon: 0.0,
        activation: activation::Activation::Relu,
        gated_mlp: false,
        position: Position::Learned,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        qk_norm: false,
        tied_embeddings: false,
        causal: false,
        mask_token: None,
        form: Form::default(),
        encoder: None,
        graph: Some(graph),
    })
}

fn gpt2(fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    let hidden_size = fields.count("n_embd")?;
    let heads = fields.count("n_head")?;
    if fields.flag("scale_attn_by_inverse_layer_idx", false)? || !fields.flag("scale_attn_weights", true)? {
        let reason = "gpt2 variants of attention scaling (scale_attn_by_inverse_layer_idx, scale_attn_weights=false) are not supported";
        return Err(BundleError::Config(reason.into()));
    }
    Ok(ModelConfig {
        architecture: Architecture::Gpt2,
        hidden_size,
        intermediate_size: fields.optional_count("n_inner")?.unwrap_or(hidden_size.saturating_mul(4)),
        layers: fields.count("n_layer")?,
        heads,
        kv_heads: heads,
        head_dim: even_share(hidden_size, heads)?,
        vocab_size: fields.count("vocab_size")?,
        max_positions: fields.count("n_positions")?,
        rms_norm: false,
        norm_epsilon: fields.epsilon("layer_norm_epsilon", 1e-5)?,
        activation: activation(fields.optional_text("activation_function")?.unwrap_or("gelu_new"))?,
        gated_mlp: false,
        position: Position::Learned,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        qk_norm: false,
        tied_embeddings: fields.flag("tie_word_embeddings", true)?,
        causal: true,
        mask_token: None,
        form: Form::default(),
        encoder: None,
        graph: None,
    })
}

/// Transformers' defaults of an architecture, for missing fields.
struct Defaults {
    heads: Option<usize>,
    /// `None`: as many as heads of queries.
    kv_heads: Option<usize>,
    /// `None`: an even share of the hidden size.
    head_dim: Option<usize>,
    vocab_size: Option<usize>,
    max_positions: Option<usize>,
    norm_epsilon: f64,
    tied_embeddings: bool,
}

impl Defaults {
    fn new(architecture: Architecture) -> Defaults {
        use Architecture::{Gemma2, Gemma3, Olmo2, Phi3, Qwen3, Smollm3};
        let gemma3 = architecture == Gemma3;
        Defaults {
            heads: Some(8).filter(|_| gemma3),
            kv_heads: Some(4).filter(|_| matches!(architecture, Gemma2 | Gemma3)),
            head_dim: match architecture {
                Gemma2 | Gemma3 => Some(256),
                Qwen3 => Some(128),
                _ => None,
            },
            vocab_size: Some(262_208).filter(|_| gemma3),
            max_positions: Some(131_072).filter(|_| gemma3),
            norm_epsilon: if matches!(architecture, Olmo2 | Phi3) { 1e-5 } else { 1e-6 },
            tied_embeddings: matches!(architecture, Gemma2 | Gemma3 | Smollm3),
        }
    }
}

/// Any decoder but gpt2's, still without its form.
fn decoder(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    use Architecture::{Dream, Gemma2, Gemma3, Granite, Llama, Mistral, Olmo2, Phi3, Qwen2, Qwen3, Smollm3};
    let defaults = Defaults::new(architecture);
    let count = |name: &str, default: Option<usize>| match (fields.optional_count(name)?, default) {
        (None, Some(default)) => Ok(default),
        (Some(given), _) => Ok(given),
        (None, None) => fields.count(name),
    };
    let hidden_size = fields.count("hidden_size")?;
    let heads = count("num_attention_heads", defaults.heads)?;
    let head_dim = match fields.optional_count("head_dim")?.or(defaults.head_dim) {
        Some(given) => given,
        None => even_share(hidden_size, heads)?,
    };
    let attention_bias = match architecture {
        Qwen2 | Dream => true,
        Mistral | Phi3 => false,
        _ => fields.flag("attention_bias", false)?,
    };
    let activation = match architecture {
        Gemma2 | Gemma3 => fields.optional_text("hidden_activation")?.unwrap_or("gelu_pytorch_tanh"),
        _ => fields.optional_text("hidden_act")?.unwrap_or("silu"),
    };
    Ok(ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: fields.count("intermediate_size")?,
        layers: fields.count("num_hidden_layers")?,
        heads,
        kv_heads: count("num_key_value_heads", defaults.kv_heads.or(Some(heads)))?,
        head_dim,
        vocab_size: count("vocab_size", defaults.vocab_size)?,
        max_positions: count("max_position_embeddings", defaults.max_positions)?,
        rms_norm: true,
        norm_epsilon: fields.epsilon("rms_norm_eps", defaults.norm_epsilon)?,
        activation: activation::activation(activation)?,
        gated_mlp: true,
        position: Position::Rotary(Rotary::plain(10_000.0)),
        qkv_bias: attention_bias,
        output_bias: attention_bias && !matches!(architecture, Qwen2 | Dream),
        mlp_bias: matches!(architecture, Llama | Smollm3 | Granite) && fields.flag("mlp_bias", false)?,
        qk_norm: matches!(architecture, Qwen3 | Gemma3 | Olmo2),
        tied_embeddings: fields.flag("tie_word_embeddings", defaults.tied_embeddings)?,
        causal: architecture != Dream,
        mask_token: if architecture == Dream { Some(mask_token(fields)?) } else { None },
        form: Form::default(),
        encoder: None,
        graph: None,
    })
}

fn mask_token(fields: &Fields<'_>) -> Result<u32, BundleError> {
    let id = fields.count("mask_token_id")?;
    // Whether it is within the vocabulary is checked with the other sizes.
    Ok(u32::try_from(id).unwrap_or(u32::MAX))
}
