//! Seeds of GGUF files: each architecture, each family of quantised types, both kinds of tokenizers.

use std::io::Cursor;

use anyhow::Result;
use bundle::{ModelConfig, Precision};
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use fuzz::models::{Model, prepared};
use serde_json::json;

/// A model, whose matrices are stored as one type where their rows allow it.
struct Shape {
    name: &'static str,
    architecture: &'static str,
    hidden: usize,
    stored: GgmlDType,
    tokenizer: Option<&'static str>,
}

const SHAPES: [Shape; 7] = [
    Shape {
        name: "llama-f32",
        architecture: "llama",
        hidden: 8,
        stored: GgmlDType::F32,
        tokenizer: Some("llama"),
    },
    Shape {
        name: "llama-q4_0",
        architecture: "llama",
        hidden: 32,
        stored: GgmlDType::Q4_0,
        tokenizer: Some("gpt2"),
    },
    Shape { name: "llama-q6_k", architecture: "llama", hidden: 256, stored: GgmlDType::Q6K, tokenizer: None },
    Shape { name: "llama-q2_k", architecture: "llama", hidden: 256, stored: GgmlDType::Q2K, tokenizer: None },
    Shape { name: "qwen2-q8_0", architecture: "qwen2", hidden: 32, stored: GgmlDType::Q8_0, tokenizer: None },
    Shape { name: "qwen3-bf16", architecture: "qwen3", hidden: 8, stored: GgmlDType::BF16, tokenizer: None },
    Shape {
        name: "gpt2-f16",
        architecture: "gpt2",
        hidden: 8,
        stored: GgmlDType::F16,
        tokenizer: Some("gpt2"),
    },
];

const VOCABULARY: usize = 12;

pub(crate) fn seeds() -> Result<Vec<(String, Vec<u8>)>> {
    SHAPES.iter().map(|shape| Ok((shape.name.to_owned(), shape.file()?))).collect()
}

/// The tokenizers that are built from the seeds which have one.
pub(crate) fn tokenizers() -> Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for shape in SHAPES.iter().filter(|shape| shape.tokenizer.is_some()) {
        let scratch = tempfile::tempdir()?;
        let bundle = prepared(&Model::Gguf(shape.file()?), Precision::F32, scratch.path())?;
        let bundle = bundle.map_err(|refusal| anyhow::anyhow!("{}: {refusal}", shape.name))?;
        found.push((shape.name.to_owned(), std::fs::read(bundle.join("tokenizer.json"))?));
    }
    Ok(found)
}

impl Shape {
    fn file(&self) -> Result<Vec<u8>> {
        let mut tensors = Vec::new();
        for spec in self.config()?.tensors() {
            let elements: usize = spec.shape.iter().product();
            let values: Vec<f32> = (0..elements).map(|at| ((at * 37 % 64) as f32 - 32.0) / 64.0).collect();
            let tensor = Tensor::from_slice(&values, spec.shape.as_slice(), &Device::Cpu)?;
            let fits = spec.shape.len() == 2 && spec.shape[1].is_multiple_of(self.stored.block_size());
            let stored = if fits { self.stored } else { GgmlDType::F32 };
            tensors.push((self.renamed(&spec.name), QTensor::quantize(&tensor, stored)?));
        }
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let metadata = self.metadata();
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &metadata, &tensors)?;
        Ok(file.into_inner())
    }

    fn config(&self) -> Result<ModelConfig> {
        let config = match self.architecture {
            "gpt2" => json!({
                "model_type": "gpt2", "n_embd": self.hidden, "n_head": 2, "n_layer": 1, "n_positions": 16,
                "n_inner": 8, "vocab_size": VOCABULARY
            }),
            _ => json!({
                "model_type": self.architecture, "hidden_size": self.hidden, "intermediate_size": 4,
                "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
                "vocab_size": VOCABULARY, "max_position_embeddings": 16, "tie_word_embeddings": true
            }),
        };
        Ok(ModelConfig::from_json(&config)?)
    }

    fn metadata(&self) -> Vec<(String, Value)> {
        let whole = |n: usize| Value::U32(n as u32);
        let mut metadata = vec![
            ("general.architecture".to_owned(), Value::String(self.architecture.into())),
            (self.key("block_count"), whole(1)),
            (self.key("context_length"), whole(16)),
            (self.key("embedding_length"), whole(self.hidden)),
            (self.key("attention.head_count"), whole(2)),
        ];
        if self.architecture == "gpt2" {
            metadata.push((self.key("feed_forward_length"), whole(8)));
            metadata.push((self.key("attention.layer_norm_epsilon"), Value::F32(1e-5)));
        } else {
            metadata.push((self.key("feed_forward_length"), whole(4)));
            metadata.push((self.key("attention.head_count_kv"), whole(1)));
            metadata.push((self.key("attention.key_length"), whole(2)));
            metadata.push((self.key("attention.value_length"), whole(2)));
            metadata.push((self.key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5)));
            metadata.push((self.key("rope.freq_base"), Value::F32(10_000.0)));
        }
        metadata.extend(self.tokenizer.into_iter().flat_map(tokenizer));
        metadata
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// GGUF's name of a tensor.
    fn renamed(&self, name: &str) -> String {
        const NAMES: [(&str, &str); 22] = [
            ("model.embed_tokens.", "token_embd."),
            ("model.norm.", "output_norm."),
            ("model.layers.", "blk."),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("transformer.wte.", "token_embd."),
            ("transformer.wpe.", "position_embd."),
            ("transformer.ln_f.", "output_norm."),
            ("transformer.h.", "blk."),
            (".ln_1.", ".attn_norm."),
            (".ln_2.", ".ffn_norm."),
            ("attn.c_attn", "attn_qkv"),
            ("attn.c_proj", "attn_output"),
        ];
        let name = NAMES.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs));
        name.replace("mlp.c_fc", "ffn_up").replace("mlp.c_proj", "ffn_down")
    }
}

fn tokenizer(kind: &str) -> Vec<(String, Value)> {
    let words = match kind {
        "gpt2" => ["a", "b", "ab", "Ġ", "Ġa", "1", "2", "12", "<|end|>", "é", "Ã", "©"],
        _ => ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁a", "1", "2", "12", "<0x00>"],
    };
    let texts =
        |texts: &[&str]| Value::Array(texts.iter().map(|text| Value::String((*text).into())).collect());
    let special = |word: &str| word.starts_with('<') && !word.starts_with("<0x");
    let kinds = words.iter().map(|word| Value::I32(if special(word) { 3 } else { 1 })).collect();
    let mut values = vec![
        ("model", Value::String(kind.into())),
        ("tokens", texts(&words)),
        ("token_type", Value::Array(kinds)),
        ("bos_token_id", Value::U32(8)),
    ];
    if kind == "gpt2" {
        values.push(("pre", Value::String("llama-bpe".into())));
        values.push(("merges", texts(&["a b", "Ġ a", "1 2"])));
    } else {
        let scores = (0..words.len()).map(|at| Value::F32(-(at as f32))).collect();
        values.push(("scores", Value::Array(scores)));
    }
    values.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect()
}
