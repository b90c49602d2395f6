//! The properties of a model.

use serde::{Deserialize, Serialize};

use super::activation::Activation;
use super::form::{Encoder, Form, Head};
use super::graph::Graph;
use super::position::Position;
use crate::error::BundleError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// Also for models that are llama's in all but their name.
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gpt2,
    Gemma2,
    Gemma3,
    Phi3,
    Olmo2,
    Smollm3,
    Granite,
    /// Masked diffusion: a Qwen2 body that attends both ways (Ye and others 2025). DiffuCoder has this `model_type` too.
    Dream,
    /// An encoder (Devlin and others 2018).
    Bert,
    /// An encoder; XLM-RoBERTa, too.
    Roberta,
    DistilBert,
    Mpnet,
    ModernBert,
    NomicBert,
    /// An ONNX file: its parts are not known.
    Onnx,
}

/// Every supported `model_type`. Those after `llama` are llama's in all but their name.
const MODEL_TYPES: [(&str, Architecture); 24] = [
    ("llama", Architecture::Llama),
    ("aquila", Architecture::Llama),
    ("falcon3", Architecture::Llama),
    ("skywork", Architecture::Llama),
    ("xverse", Architecture::Llama),
    ("mistral", Architecture::Mistral),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("gpt2", Architecture::Gpt2),
    ("gemma2", Architecture::Gemma2),
    ("gemma3", Architecture::Gemma3),
    ("gemma3_text", Architecture::Gemma3),
    ("phi3", Architecture::Phi3),
    ("olmo2", Architecture::Olmo2),
    ("smollm3", Architecture::Smollm3),
    ("granite", Architecture::Granite),
    ("Dream", Architecture::Dream),
    ("bert", Architecture::Bert),
    ("roberta", Architecture::Roberta),
    ("xlm-roberta", Architecture::Roberta),
    ("distilbert", Architecture::DistilBert),
    ("mpnet", Architecture::Mpnet),
    ("modernbert", Architecture::ModernBert),
    ("nomic_bert", Architecture::NomicBert),
];

impl Architecture {
    /// From `model_type` of a config.json.
    pub fn from_model_type(text: &str) -> Result<Architecture, BundleError> {
        let known = MODEL_TYPES.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, architecture)| *architecture)
            .ok_or_else(|| BundleError::unknown_architecture(text, &MODEL_TYPES.map(|(name, _)| name)))
    }
}

/// The properties that an engine needs: of a transformer that decodes or encodes, or of an ONNX file.
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
    /// Longest context in tokens.
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
    /// RMSNorm over each head of q and k, before the rotation, or over all heads ([`Form::whole_qk_norm`]).
    pub qk_norm: bool,
    /// The output head shares the embedding's weight.
    pub tied_embeddings: bool,
    /// Each position attends to itself and earlier ones. Otherwise all attend to all, and nothing can be kept
    /// from one pass to the next.
    #[serde(default = "causal")]
    pub causal: bool,
    /// The token for positions still to be filled in, if the model generates by masked diffusion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_token: Option<u32>,
    /// Differences from llama.
    #[serde(default, skip_serializing_if = "Form::is_plain")]
    pub form: Form,
    /// Present if the model encodes texts and does not continue them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<Encoder>,
    /// Present if the model is an ONNX file; nothing else is set then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<Graph>,
}

/// The default for descriptions without this field.
fn causal() -> bool {
    true
}

impl ModelConfig {
    /// Rows of q, and of k (as many as of v).
    pub fn qkv_rows(&self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
    }

    /// The head that turns the vectors of an encoder's tokens into scores, if it has one.
    pub fn scoring(&self) -> Option<&Head> {
        self.encoder.as_ref()?.head.as_ref()
    }

    /// The same body as a token-by-token decoder, with which a masked-diffusion model is compared.
    pub fn autoregressive(self) -> ModelConfig {
        ModelConfig { causal: true, mask_token: None, ..self }
    }
}
