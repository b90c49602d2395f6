//! `config.json` in Hugging Face's field names, resolved into what an engine needs to know.
//!
//! An engine never asks which architecture it runs: it reads the properties here and the tensor
//! names of [`ModelConfig::layer`].

mod fields;
mod names;
mod read;
mod stored;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::BundleError;
use fields::Fields;

pub use names::{LayerNames, LinearNames, NormNames, TensorSpec};
pub use stored::StoredTensor;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gpt2,
}

impl Architecture {
    /// From `model_type` of a config.json, or `general.architecture` of a GGUF.
    pub fn from_model_type(text: &str) -> Result<Architecture, BundleError> {
        Ok(match text {
            "llama" => Architecture::Llama,
            "mistral" => Architecture::Mistral,
            "qwen2" => Architecture::Qwen2,
            "qwen3" => Architecture::Qwen3,
            "gpt2" => Architecture::Gpt2,
            other => return Err(BundleError::UnsupportedArchitecture(other.to_owned())),
        })
    }
}

/// Between the two linear layers of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x · σ(x)
    Silu,
    /// tanh approximation of GELU (`gelu_new`, `gelu_pytorch_tanh`)
    GeluTanh,
    /// exact GELU, by the error function
    GeluErf,
    Relu,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// A learned embedding is added to the token's.
    Learned,
    /// Queries and keys are rotated, rotate-half convention.
    Rotary(Rotary),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rotary {
    pub theta: f64,
    /// Frequencies are divided by this (`rope_type` "linear"); 1 where there is no such scaling.
    pub linear_factor: f64,
    pub llama3: Option<Llama3Scaling>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Llama3Scaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_positions: usize,
}

/// The tensors of every layer are listed by name; a lying config.json must not make that list fill memory.
const MAX_LAYERS: usize = 1 << 16;

/// A decoder-only transformer, as far as an engine must know it.
///
/// Serde writes these resolved fields and reads them back. A `config.json`, whose fields have Hugging Face's names,
/// is read by [`ModelConfig::from_json`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    /// Longest context in tokens. Where the model slides a window over its keys, this is the
    /// window: within it, sliding and full attention are the same.
    pub max_positions: usize,
    /// RMSNorm without biases, or LayerNorm with them.
    pub rms_norm: bool,
    pub norm_epsilon: f64,
    pub activation: Activation,
    /// down(act(gate(x)) · up(x)) rather than down(act(up(x))).
    pub gated_mlp: bool,
    pub position: Position,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub mlp_bias: bool,
    /// RMSNorm over each head of q and k, before the rotation.
    pub qk_norm: bool,
    /// The output head shares the embedding's weight.
    pub tied_embeddings: bool,
}

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
            Architecture::Gpt2 => read::gpt2(&fields)?,
            _ => read::llama_like(architecture, &fields)?,
        };
        config.check()?;
        Ok(config)
    }

    /// Rows of q, and of k (as many as of v).
    pub fn qkv_rows(&self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
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
        if self.layers > MAX_LAYERS {
            let reason = format!("number of layers is {}, which no model has", self.layers);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn llama() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
            "max_position_embeddings": 256, "tie_word_embeddings": true
        })
    }

    fn with(name: &str, value: Value) -> Value {
        let mut config = llama();
        config[name] = value;
        config
    }

    fn error(config: Value) -> String {
        ModelConfig::from_json(&config).unwrap_err().to_string()
    }

    #[test]
    fn fused_tensors_lie_side_by_side() {
        let names: Vec<_> =
            ModelConfig::from_json(&llama()).unwrap().tensors().into_iter().map(|t| t.name).collect();
        let at = |part: &str| names.iter().position(|n| n.ends_with(part)).unwrap();
        assert_eq!(at("k_proj.weight"), at("q_proj.weight") + 1);
        assert_eq!(at("v_proj.weight"), at("q_proj.weight") + 2);
        assert_eq!(at("up_proj.weight"), at("gate_proj.weight") + 1);
    }

    #[test]
    fn an_unknown_architecture_is_named_with_those_supported() {
        let text = error(with("model_type", json!("mamba")));
        assert!(text.contains("mamba") && text.contains("qwen3"), "{text}");
    }

    #[test]
    fn errors_name_the_field() {
        assert!(error(with("hidden_size", json!("big"))).contains("hidden_size"));
        assert!(error(with("vocab_size", Value::Null)).contains("vocab_size"));
        assert!(error(with("hidden_act", json!("mish"))).contains("mish"));
        assert!(error(with("num_key_value_heads", json!(3))).contains('3'));
        assert!(error(with("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}))).contains("yarn"));
        assert!(error(with("num_hidden_layers", json!(1u64 << 40))).contains("layers"));
    }

    #[test]
    fn rope_is_read_in_the_old_and_the_new_spelling() {
        let old = with("rope_theta", json!(5e5));
        let new = with("rope_parameters", json!({"rope_type": "default", "rope_theta": 5e5}));
        assert_eq!(ModelConfig::from_json(&old).unwrap(), ModelConfig::from_json(&new).unwrap());
    }

    #[test]
    fn a_resolved_configuration_is_read_back_as_it_was() {
        let gpt2 = json!({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256,
            "vocab_size": 320});
        let llama3 = with(
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}),
        );
        let others = ["mistral", "qwen2", "qwen3"].map(|name| with("model_type", json!(name)));
        for config in [llama(), llama3, gpt2].into_iter().chain(others) {
            let resolved = ModelConfig::from_json(&config).unwrap();
            let written = serde_json::to_string(&resolved).unwrap();
            assert_eq!(serde_json::from_str::<ModelConfig>(&written).unwrap(), resolved, "{written}");
        }
    }

    #[test]
    fn a_sliding_window_limits_the_context() {
        let mut mistral = with("sliding_window", json!(128));
        mistral["model_type"] = json!("mistral");
        assert_eq!(ModelConfig::from_json(&mistral).unwrap().max_positions, 128);
    }
}
