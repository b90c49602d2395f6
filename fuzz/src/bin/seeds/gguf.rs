//! Seeds of GGUF files: each architecture, each family of quantised types, both kinds of tokenizers.

use anyhow::Result;
use bundle::{ModelConfig, Precision};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use fuzz::models::{Model, prepared};
use prepare::testing::Gguf;
use serde_json::json;

/// A model; its matrices are stored as one type if their rows allow it.
struct Shape {
    name: &'static str,
    architecture: &'static str,
    hidden: usize,
    stored: GgmlDType,
    tokenizer: Option<&'static str>,
}

const SHAPES: [Shape; 8] = [
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
    Shape { name: "llama-biases", architecture: "llama", hidden: 8, stored: GgmlDType::F32, tokenizer: None },
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
        let config = self.config();
        let tensors = ModelConfig::from_json(&config)?.tensors().into_iter().map(|mut spec| {
            if spec.name.contains(".c_") {
                // The converter turns gpt2's matrices.
                spec.shape.reverse();
            }
            let elements: usize = spec.shape.iter().product();
            let values = (0..elements).map(|at| ((at * 37 % 64) as f32 - 32.0) / 64.0).collect();
            (spec.name, spec.shape, values)
        });
        let mut gguf = Gguf::new(&config, tensors, self.architecture);
        for (stored, shape, _) in gguf.tensors.values_mut() {
            if shape.len() == 2 && shape[1].is_multiple_of(self.stored.block_size()) {
                *stored = self.stored;
            }
        }
        gguf.metadata.extend(self.tokenizer.into_iter().flat_map(tokenizer));
        Ok(gguf.bytes())
    }

    fn config(&self) -> serde_json::Value {
        match self.architecture {
            "gpt2" => json!({
                "model_type": "gpt2", "n_embd": self.hidden, "n_head": 2, "n_layer": 1, "n_positions": 16,
                "n_inner": 8, "vocab_size": VOCABULARY, "layer_norm_epsilon": 1e-5
            }),
            _ => json!({
                "model_type": self.architecture, "hidden_size": self.hidden, "intermediate_size": 4,
                "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
                "vocab_size": VOCABULARY, "max_position_embeddings": 16, "tie_word_embeddings": true,
                "attention_bias": self.name.ends_with("biases"),
                "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"}
            }),
        }
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
