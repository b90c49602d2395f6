//! The properties of a model.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::audio::Audio;
use super::earlier::upgraded;
use super::encoder::Encoder;
use super::form::Form;
use super::{Block, Rotary};
use crate::{BlockKind, BundleError};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    Phi,
    GptNeox,
    Stablelm,
    Starcoder2,
    Cohere,
    Glm,
    Glm4,
    /// A mixture of experts, as are the next three.
    Qwen2Moe,
    Qwen3Moe,
    Mixtral,
    GptOss,
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
    /// A decoder that continues what it hears (Radford and others 2022).
    Whisper,
    /// The encoder of its audio, as [`ModelConfig::audio_encoder`] describes it.
    WhisperEncoder,
    /// An ONNX file: its parts are not known.
    #[default]
    Onnx,
}

/// Every supported `model_type`, and the beginning of the names of its classes. Those after `llama` are llama's in all but
/// their name.
const MODEL_TYPES: [(&str, Architecture, &[&str]); 38] = [
    ("llama", Architecture::Llama, &["Llama", "LLaMA"]),
    ("aquila", Architecture::Llama, &["Aquila", "Llama"]),
    ("falcon3", Architecture::Llama, &["Falcon3", "Llama"]),
    ("skywork", Architecture::Llama, &["Skywork", "Llama"]),
    ("xverse", Architecture::Llama, &["Xverse", "Llama"]),
    ("mistral", Architecture::Mistral, &["Mistral"]),
    ("mistral3", Architecture::Mistral, &["Mistral3"]),
    ("qwen2", Architecture::Qwen2, &["Qwen2"]),
    ("qwen3", Architecture::Qwen3, &["Qwen3"]),
    ("gpt2", Architecture::Gpt2, &["GPT2"]),
    ("gemma2", Architecture::Gemma2, &["Gemma2"]),
    ("gemma3", Architecture::Gemma3, &["Gemma3"]),
    ("gemma3_text", Architecture::Gemma3, &["Gemma3", "Gemma3Text"]),
    ("phi3", Architecture::Phi3, &["Phi3"]),
    ("olmo2", Architecture::Olmo2, &["Olmo2"]),
    ("smollm3", Architecture::Smollm3, &["SmolLM3"]),
    ("granite", Architecture::Granite, &["Granite"]),
    ("phi", Architecture::Phi, &["Phi"]),
    ("gpt_neox", Architecture::GptNeox, &["GPTNeoX"]),
    ("stablelm", Architecture::Stablelm, &["StableLm"]),
    ("starcoder2", Architecture::Starcoder2, &["Starcoder2"]),
    ("cohere", Architecture::Cohere, &["Cohere"]),
    ("glm", Architecture::Glm, &["Glm"]),
    ("glm4", Architecture::Glm4, &["Glm4"]),
    ("qwen2_moe", Architecture::Qwen2Moe, &["Qwen2Moe"]),
    ("qwen3_moe", Architecture::Qwen3Moe, &["Qwen3Moe"]),
    ("mixtral", Architecture::Mixtral, &["Mixtral"]),
    ("gpt_oss", Architecture::GptOss, &["GptOss"]),
    ("Dream", Architecture::Dream, &["Dream"]),
    ("bert", Architecture::Bert, &["Bert"]),
    ("roberta", Architecture::Roberta, &["Roberta", "XLMRoberta", "Camembert"]),
    ("xlm-roberta", Architecture::Roberta, &["XLMRoberta", "Roberta"]),
    ("camembert", Architecture::Roberta, &["Camembert", "Roberta"]),
    ("distilbert", Architecture::DistilBert, &["DistilBert"]),
    ("mpnet", Architecture::Mpnet, &["MPNet"]),
    ("modernbert", Architecture::ModernBert, &["ModernBert"]),
    ("nomic_bert", Architecture::NomicBert, &["NomicBert"]),
    ("whisper", Architecture::Whisper, &["Whisper"]),
];

impl Architecture {
    /// From `model_type` of a config.json.
    pub fn from_model_type(text: &str) -> Result<Architecture, BundleError> {
        let known = MODEL_TYPES.iter().find(|(name, ..)| *name == text);
        known
            .map(|(_, architecture, _)| *architecture)
            .ok_or_else(|| BundleError::unknown_architecture(text, &MODEL_TYPES.map(|(name, ..)| name)))
    }

    /// The beginning of the names of the classes of a `model_type`.
    pub(super) fn classes_of(text: &str) -> &'static [&'static str] {
        MODEL_TYPES.iter().find(|(name, ..)| *name == text).map_or(&[], |(_, _, classes)| classes)
    }
}

/// The properties that an engine needs: of a transformer that decodes or encodes, or of an ONNX file.
///
/// Serde writes these resolved fields and reads them back. A `config.json`, whose fields have Hugging Face's names,
/// is read by [`ModelConfig::from_json`]. The default has no sizes and no properties.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub hidden_size: usize,
    pub layers: Vec<Block>,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    pub max_positions: usize,
    /// RMSNorm without biases, or LayerNorm with them.
    pub rms_norm: bool,
    pub norm_epsilon: f64,
    /// Those of queries and keys. Without any, a learned embedding of the position is added to each token's.
    pub rotations: Vec<Rotary>,
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// Whether the head over the vocabulary adds a bias.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub head_bias: bool,
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
    /// Present if the model hears: each layer attends to vectors of audio, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<Audio>,
    /// Present if the model is an ONNX file; nothing else is set then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<Graph>,
    /// The types of the linear layers' weights by tensor, where the source is a GGUF that has them in blocks; those that
    /// it has in floats are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blocks: BTreeMap<String, BlockKind>,
}

impl Serialize for ModelConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ModelConfig::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for ModelConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ModelConfig, D::Error> {
        let described = upgraded(Value::deserialize(deserializer)?);
        let config = ModelConfig::deserialize(described).map_err(serde::de::Error::custom)?;
        // A report may be somebody else's.
        if config.graph.is_none() {
            config.check().map_err(serde::de::Error::custom)?;
        }
        Ok(config)
    }
}

/// The field of a bundle's `config.json` for [`ModelConfig::blocks`].
pub const BLOCKS: &str = "gguf_blocks";

/// The default for descriptions without this field.
fn causal() -> bool {
    true
}

impl ModelConfig {
    /// Rows of q, and of k (as many as of v).
    pub fn qkv_rows(&self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
    }

    /// The types of blocks in its linear layers, those of most tensors first: `Q4_K and Q6_K`.
    pub fn block_words(&self) -> String {
        let mut counted: BTreeMap<BlockKind, usize> = BTreeMap::new();
        self.blocks.values().for_each(|kind| *counted.entry(*kind).or_default() += 1);
        let mut kinds: Vec<_> = counted.into_iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        match kinds.iter().map(|(kind, _)| kind.name()).collect::<Vec<_>>().as_slice() {
            [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
            names => names.concat(),
        }
    }

    /// The same body as a token-by-token decoder, with which a masked-diffusion model is compared.
    pub fn autoregressive(self) -> ModelConfig {
        ModelConfig { causal: true, mask_token: None, ..self }
    }
}

// A model that is an ONNX file: its inputs and outputs.

/// `model_type` in the config.json of a bundle that holds an ONNX file.
pub(super) const MODEL_TYPE: &str = "onnx";

pub const GRAPH_FILE: &str = "graph.onnx";

/// Properties of an ONNX file that a run needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    /// Version of the operators of the standard's own domain.
    pub opset: i64,
    /// In the file's order, without those that have a value in the file.
    pub inputs: Vec<GraphInput>,
    pub outputs: Vec<GraphOutput>,
    /// Bytes of the file and of its external weights files.
    pub bytes: u64,
    /// The type of most weights, such as `f32` or `int8`; `None` without weights.
    pub stored: Option<String>,
    /// Nodes by operator, those of nested graphs included, such as `Conv` or `com.microsoft::QLinearAdd`.
    pub operators: std::collections::BTreeMap<String, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphInput {
    pub name: String,
    pub dtype: Dtype,
    /// `None` if the file does not say how many dimensions it has.
    pub shape: Option<Vec<Size>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphOutput {
    pub name: String,
    pub dtype: Dtype,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    Fixed(usize),
    /// Any, but the same wherever the name occurs.
    Free(String),
}

/// The type of a tensor's numbers, by NumPy's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Bool,
}

impl Dtype {
    pub const ALL: [Dtype; 12] = [
        Dtype::Float16,
        Dtype::Float32,
        Dtype::Float64,
        Dtype::Int8,
        Dtype::Int16,
        Dtype::Int32,
        Dtype::Int64,
        Dtype::Uint8,
        Dtype::Uint16,
        Dtype::Uint32,
        Dtype::Uint64,
        Dtype::Bool,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Dtype::Float16 => "float16",
            Dtype::Float32 => "float32",
            Dtype::Float64 => "float64",
            Dtype::Int8 => "int8",
            Dtype::Int16 => "int16",
            Dtype::Int32 => "int32",
            Dtype::Int64 => "int64",
            Dtype::Uint8 => "uint8",
            Dtype::Uint16 => "uint16",
            Dtype::Uint32 => "uint32",
            Dtype::Uint64 => "uint64",
            Dtype::Bool => "bool",
        }
    }

    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    pub fn bytes(self) -> usize {
        match self {
            Dtype::Int8 | Dtype::Uint8 | Dtype::Bool => 1,
            Dtype::Float16 | Dtype::Int16 | Dtype::Uint16 => 2,
            Dtype::Float32 | Dtype::Int32 | Dtype::Uint32 => 4,
            Dtype::Float64 | Dtype::Int64 | Dtype::Uint64 => 8,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Dtype::Float16 | Dtype::Float32 | Dtype::Float64)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl Graph {
    /// Names of free dimensions of inputs, each once, in the inputs' order.
    pub fn free(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for size in self.inputs.iter().flat_map(|input| input.shape.iter().flatten()) {
            if let Size::Free(name) = size
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names
    }

    pub fn config_json(&self) -> Value {
        serde_json::json!({ "model_type": MODEL_TYPE, "graph": self })
    }
}

#[cfg(test)]
mod tests {
    use crate::ModelConfig;

    use super::*;

    #[test]
    fn a_configuration_is_read_as_it_was_written() {
        let input = |name: &str, shape| GraphInput { name: name.into(), dtype: Dtype::Float32, shape };
        let free = || Size::Free("batch".into());
        let graph = Graph {
            opset: 17,
            inputs: vec![
                input("a", Some(vec![free(), Size::Fixed(3), Size::Free("width".into())])),
                input("b", Some(vec![free()])),
                input("c", None),
            ],
            outputs: vec![GraphOutput { name: "d".into(), dtype: Dtype::Int64 }],
            bytes: 7,
            stored: Some("f16".into()),
            operators: [("Conv".to_owned(), 2)].into(),
        };
        assert_eq!(graph.free(), ["batch", "width"]);
        let config = ModelConfig::from_json(&graph.config_json()).unwrap();
        assert_eq!(config.graph, Some(graph));
        assert!(config.tensors().is_empty() && config.quantised().is_empty());
        let written = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ModelConfig>(&written).unwrap(), config);
        assert!(Dtype::ALL.iter().all(|dtype| Dtype::from_name(dtype.name()) == Some(*dtype)));
    }
}
