//! From the fields of a config.json to a [`ModelConfig`].

use std::path::Path;

use serde_json::Value;

use super::fields::Fields;
use super::model::{Activation, Architecture, Llama3Scaling, ModelConfig, Position, Rotary};
use crate::error::BundleError;

/// The tensors of every layer are listed by name; a lying config.json must not make that list fill memory.
const MAX_LAYERS: usize = 1 << 12;
/// Numbers in all weights: a thousand times the largest model so far. In bytes, they can still be counted in 64 bits.
const MAX_NUMBERS: u128 = 1 << 50;
/// The frequencies of a rotation are computed before any weights are seen.
const MAX_HEAD_DIM: usize = 1 << 16;

impl ModelConfig {
    pub fn read(path: &Path) -> Result<ModelConfig, BundleError> {
        let text = std::fs::read_to_string(path).map_err(BundleError::io(path))?;
        let value = serde_json::from_str(&text)
            .map_err(|e| BundleError::Config(format!("{} does not parse: {e}", path.display())))?;
        ModelConfig::from_json(&value)
    }

    pub fn from_json(value: &Value) -> Result<ModelConfig, BundleError> {
        let fields = Fields(value);
        let architecture = Architecture::from_model_type(fields.text("model_type")?)?;
        let config = match architecture {
            Architecture::Gpt2 => gpt2(&fields)?,
            _ => llama_like(architecture, &fields)?,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), BundleError> {
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
        // The products below, and those of every engine, must not overflow on a lying header.
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
        let numbers = self.numbers();
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
    /// How many numbers the weights of all matrices are.
    fn numbers(&self) -> u128 {
        let wide = |count: usize| count as u128;
        let (hidden, heads) = (wide(self.hidden_size), wide(self.heads) + wide(self.kv_heads));
        let attention = 2 * heads * wide(self.head_dim) * hidden;
        let mlp = 3 * wide(self.intermediate_size) * hidden;
        let positions = if self.position == Position::Learned { wide(self.max_positions) } else { 0 };
        wide(self.layers) * (attention + mlp) + (2 * wide(self.vocab_size) + positions) * hidden
    }
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
        norm_epsilon: fields.number("layer_norm_epsilon", 1e-5)?,
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
    })
}

fn llama_like(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    let hidden_size = fields.count("hidden_size")?;
    let heads = fields.count("num_attention_heads")?;
    let head_dim = match (fields.optional_count("head_dim")?, architecture) {
        (Some(given), _) => given,
        (None, Architecture::Qwen3) => 128, // transformers' default for Qwen3Config
        (None, _) => even_share(hidden_size, heads)?,
    };
    let attention_bias = match architecture {
        Architecture::Qwen2 | Architecture::Dream => true,
        Architecture::Mistral => false,
        _ => fields.flag("attention_bias", false)?,
    };
    let window = match architecture {
        Architecture::Mistral => fields.optional_count("sliding_window")?,
        Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Dream
            if fields.flag("use_sliding_window", false)? =>
        {
            fields.optional_count("sliding_window")?
        }
        _ => None,
    };
    let max_positions = fields.count("max_position_embeddings")?;
    let mask_token = match architecture {
        Architecture::Dream => Some(mask_token(fields)?),
        _ => None,
    };
    Ok(ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: fields.count("intermediate_size")?,
        layers: fields.count("num_hidden_layers")?,
        heads,
        kv_heads: fields.optional_count("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        vocab_size: fields.count("vocab_size")?,
        max_positions: window.map_or(max_positions, |window| window.min(max_positions)),
        rms_norm: true,
        norm_epsilon: fields.number("rms_norm_eps", 1e-6)?,
        activation: activation(fields.optional_text("hidden_act")?.unwrap_or("silu"))?,
        gated_mlp: true,
        position: Position::Rotary(rotary(fields)?),
        qkv_bias: attention_bias,
        output_bias: attention_bias && !matches!(architecture, Architecture::Qwen2 | Architecture::Dream),
        mlp_bias: architecture == Architecture::Llama && fields.flag("mlp_bias", false)?,
        qk_norm: architecture == Architecture::Qwen3,
        tied_embeddings: fields.flag("tie_word_embeddings", false)?,
        causal: architecture != Architecture::Dream,
        mask_token,
    })
}

fn mask_token(fields: &Fields<'_>) -> Result<u32, BundleError> {
    let id = fields.count("mask_token_id")?;
    // Whether the vocabulary has it is checked with the other sizes.
    Ok(u32::try_from(id).unwrap_or(u32::MAX))
}

/// transformers 5 writes `rope_parameters`; before it, `rope_theta` and `rope_scaling`.
fn rotary(fields: &Fields<'_>) -> Result<Rotary, BundleError> {
    let parameters = fields.object("rope_parameters")?;
    let scaling = parameters.or(fields.object("rope_scaling")?);
    let theta = match parameters.map(|p| p.optional_number("rope_theta")).transpose()?.flatten() {
        Some(theta) => theta,
        None => fields.number("rope_theta", 10_000.0)?,
    };
    if theta <= 1.0 {
        return Err(BundleError::Config(format!("rope_theta is {theta}; it must be above 1")));
    }
    for place in [Some(Fields(fields.0)), parameters].into_iter().flatten() {
        if place.number("partial_rotary_factor", 1.0)? != 1.0 {
            return Err(BundleError::Config("partial_rotary_factor other than 1 is not supported".into()));
        }
    }
    let mut rotary = Rotary { theta, linear_factor: 1.0, llama3: None };
    let Some(scaling) = scaling else { return Ok(rotary) };
    let kind = match scaling.optional_text("rope_type")? {
        Some(kind) => kind,
        None => scaling.optional_text("type")?.unwrap_or("default"),
    };
    match kind {
        "default" => {}
        "linear" => rotary.linear_factor = positive(&scaling, "factor")?,
        "llama3" => {
            rotary.llama3 = Some(Llama3Scaling {
                factor: positive(&scaling, "factor")?,
                low_freq_factor: positive(&scaling, "low_freq_factor")?,
                high_freq_factor: positive(&scaling, "high_freq_factor")?,
                original_max_positions: scaling.count("original_max_position_embeddings")?,
            });
        }
        other => {
            let reason =
                format!("rope scaling {other:?} is not supported; supported are default, linear and llama3");
            return Err(BundleError::Config(reason));
        }
    }
    Ok(rotary)
}

/// A number that frequencies are divided by, or compared with.
fn positive(scaling: &Fields<'_>, name: &str) -> Result<f64, BundleError> {
    let number = scaling.required_number(name)?;
    // Frequencies are f32: beyond its range they would be zero or infinite.
    if !(1e-6..=1e6).contains(&number) {
        return Err(BundleError::Config(format!(
            "field {name:?} is {number}; it must lie between 1e-6 and 1e6"
        )));
    }
    Ok(number)
}

fn activation(name: &str) -> Result<Activation, BundleError> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::GeluErf,
        "relu" => Activation::Relu,
        other => {
            let reason =
                format!("activation {other:?} is not supported; supported are silu, gelu, gelu_new and relu");
            return Err(BundleError::Config(reason));
        }
    })
}

fn even_share(hidden_size: usize, heads: usize) -> Result<usize, BundleError> {
    if heads == 0 || !hidden_size.is_multiple_of(heads) {
        return Err(BundleError::Config(format!(
            "hidden size {hidden_size} does not divide into {heads} heads"
        )));
    }
    Ok(hidden_size / heads)
}
