//! The properties of a model.

use serde::{Deserialize, Serialize};

use crate::error::BundleError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gpt2,
    /// Masked diffusion: a Qwen2 body that attends both ways (Ye and others 2025). DiffuCoder has this `model_type` too.
    Dream,
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
            "Dream" => Architecture::Dream,
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
    /// Each position attends to itself and those before it. Else all attend to all, and nothing can be kept from one
    /// pass to the next.
    #[serde(default = "causal")]
    pub causal: bool,
    /// The token that stands for what is still to be filled in, of a model that generates by masked diffusion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_token: Option<u32>,
}

/// What descriptions that do not say so mean.
fn causal() -> bool {
    true
}

impl ModelConfig {
    /// Rows of q, and of k (as many as of v).
    pub fn qkv_rows(&self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
    }

    /// The same body as a decoder that goes token by token: what a masked-diffusion model is held against.
    pub fn autoregressive(self) -> ModelConfig {
        ModelConfig { causal: true, mask_token: None, ..self }
    }
}
