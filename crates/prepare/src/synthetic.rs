//! Models of published shapes with random weights: the cost of a size without its download.
//!
//! Weights are those of a model before its training: normal with the published `initializer_range`, norms 1,
//! biases 0; in gpt2, projections onto the residual stream narrower by √(2 · layers) (Radford and others,
//! "Language Models are Unsupervised Multitask Learners", 2019, section 2.3). The output of such a model is
//! meaningless; its cost is that of the trained one.

use std::ops::Range;
use std::path::{Path, PathBuf};

use bundle::{Architecture, ModelConfig, TensorSpec};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::PrepareError;
use crate::model::{Document, Model, Tensors, matrix};
use crate::modules;

/// As people write it before a name of [`names`].
pub(crate) const PREFIX: &str = "synthetic:";

/// The seed of all weights. One is enough: the weights represent no model in particular.
const SEED: u64 = 0;

/// Values that are drawn one after another, from a stream of their own, so that they do not depend on the
/// number of threads.
const BLOCK: usize = 1 << 16;

/// Names of all synthetic models, by size.
pub fn names() -> String {
    SHAPES.map(|Shape { name, .. }| name).join(", ")
}

pub(crate) fn open(name: &str) -> Result<Model, PrepareError> {
    let Some(shape) = SHAPES.iter().find(|shape| shape.name == name) else {
        let names = names();
        return Err(PrepareError::Request(format!("unknown synthetic model {name:?}; there are {names}")));
    };
    let path = PathBuf::from(format!("{PREFIX}{name}"));
    let json = (shape.config)();
    let config =
        ModelConfig::checked(&json).map_err(|source| PrepareError::Model { path: path.clone(), source })?;
    let weights = Weights::new(path, &config, &json);
    let deviation = weights.deviation;
    let mut bytes = serde_json::to_vec_pretty(&json).expect("a value is valid JSON");
    bytes.push(b'\n');
    let of = shape.published.map_or(String::new(), |repository| format!(" of {repository}"));
    let pooling = config.encoder.as_ref().map(|_| modules::usual());
    Ok(Model {
        name: format!("synthetic-{name}"),
        kind: "synthetic",
        files: Vec::new(),
        seed: Some(SEED),
        config,
        config_json: Document { bytes, derived: format!("the shape{of}") },
        tokenizer: Err("a synthetic model has none".into()),
        chat: None,
        pooling,
        modules: None,
        tensors: Box::new(weights),
        verbatim: Vec::new(),
        derived: format!("drawn by ChaCha8 with seed {SEED}, normal with standard deviation {deviation}"),
    })
}

struct Weights {
    /// Replaces a file's path in errors.
    path: PathBuf,
    /// Standard deviation of embeddings and linear layers.
    deviation: f64,
    /// That of projections onto the residual stream.
    residual: f64,
}

impl Weights {
    fn new(path: PathBuf, config: &ModelConfig, json: &Value) -> Weights {
        let deviation = json["initializer_range"].as_f64().expect("every shape has one");
        let residual = match config.architecture {
            Architecture::Gpt2 => deviation / (2.0 * config.layers as f64).sqrt(),
            _ => deviation,
        };
        Weights { path, deviation, residual }
    }
}

impl Tensors for Weights {
    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        let (_, columns) = matrix(spec);
        let elements = rows.start * columns..rows.end * columns;
        Ok(match &spec.shape[..] {
            [_] if spec.name.ends_with(".bias") => vec![0.0; elements.len()],
            [_] => vec![1.0; elements.len()],
            _ if spec.name.ends_with("c_proj.weight") => draw(elements, &spec.name, self.residual),
            _ => draw(elements, &spec.name, self.deviation),
        })
    }

    fn path_of(&self, _: &str) -> &Path {
        &self.path
    }
}

/// Normal values from the streams of this tensor; they are the same for any division into pieces.
fn draw(elements: Range<usize>, tensor: &str, deviation: f64) -> Vec<f32> {
    let key: [u8; 32] = Sha256::digest(format!("synthetic {SEED} {tensor}")).into();
    let first = elements.start / BLOCK;
    let mut values = vec![0.0; elements.end - first * BLOCK];
    values.par_chunks_mut(BLOCK).enumerate().for_each(|(index, block)| {
        let mut random = ChaCha8Rng::from_seed(key);
        random.set_stream((first + index) as u64);
        for pair in block.chunks_mut(2) {
            let both = normal(random.next_u64());
            for (value, drawn) in pair.iter_mut().zip(both) {
                *value = (drawn * deviation) as f32;
            }
        }
    });
    // A stream is drawn from its beginning.
    values.drain(..elements.start - first * BLOCK);
    values
}

/// Two independent standard normal values (Box and Muller, "A Note on the Generation of Random Normal
/// Deviates", 1958). With `libm`, because its functions give the same bits everywhere; with those of the
/// system's library the hash of a bundle would depend on the machine.
fn normal(bits: u64) -> [f64; 2] {
    const STEP: f64 = 1.0 / (1u64 << 32) as f64;
    let radius = (-2.0 * libm::log(((bits >> 32) + 1) as f64 * STEP)).sqrt();
    let (sine, cosine) = libm::sincos(std::f64::consts::TAU * (bits as u32 as f64 * STEP));
    [radius * cosine, radius * sine]
}

// Shapes of published models, as their config.json has them.

/// A model with a known shape and random weights.
struct Shape {
    name: &'static str,
    /// The repository on the Hugging Face hub with this config.json.
    published: Option<&'static str>,
    config: fn() -> Value,
}

/// By size. `llama-tiny` and `bert-tiny` have no published originals: small enough for tests, wide enough for every
/// precision.
/// `llama-tiny-long` has room for passes in which attention is most of the work.
const SHAPES: [Shape; 17] = [
    Shape { name: "bert-tiny", published: None, config: bert_tiny },
    Shape { name: "llama-tiny", published: None, config: llama_tiny },
    Shape { name: "llama-tiny-long", published: None, config: llama_tiny_long },
    Shape { name: "minilm-l6", published: Some("sentence-transformers/all-MiniLM-L6-v2"), config: minilm_l6 },
    Shape { name: "bert-base", published: Some("google-bert/bert-base-uncased"), config: bert_base },
    Shape { name: "gpt2-124m", published: Some("openai-community/gpt2"), config: gpt2_124m },
    Shape {
        name: "modernbert-base",
        published: Some("answerdotai/ModernBERT-base"),
        config: modernbert_base,
    },
    Shape { name: "llama-160m", published: Some("JackFram/llama-160m"), config: llama_160m },
    // Of DiffuCoder's kind and vocabulary, as small as others: the embedding is shared, as in Qwen2's small models.
    Shape { name: "diffucoder-160m", published: None, config: diffucoder_160m },
    Shape { name: "xlm-r-base", published: Some("FacebookAI/xlm-roberta-base"), config: xlm_r_base },
    Shape { name: "bge-large", published: Some("BAAI/bge-large-en-v1.5"), config: bge_large },
    Shape { name: "llama-360m", published: Some("HuggingFaceTB/SmolLM2-360M"), config: llama_360m },
    // Of TinyLlama's parameters 6 % are its embedding; of Llama 3.2's, with a vocabulary of 128 256, a fifth.
    Shape { name: "llama-1b", published: Some("TinyLlama/TinyLlama-1.1B-Chat-v1.0"), config: llama_1b },
    Shape { name: "llama-3.2-1b", published: Some("meta-llama/Llama-3.2-1B"), config: llama_3_2_1b },
    Shape { name: "diffucoder-7b", published: Some("apple/DiffuCoder-7B-Base"), config: diffucoder_7b },
    Shape { name: "llama-8b", published: Some("meta-llama/Llama-3.1-8B"), config: llama_8b },
    Shape { name: "llama-70b", published: Some("meta-llama/Llama-3.1-70B"), config: llama_70b },
];

fn llama_tiny() -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
        "intermediate_size": 128, "max_position_embeddings": 256, "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "tie_word_embeddings": false, "vocab_size": 256,
    })
}

fn llama_tiny_long() -> Value {
    let mut config = llama_tiny();
    config["max_position_embeddings"] = json!(2048);
    config
}

fn bert_tiny() -> Value {
    bert([64, 128, 2, 4], 256)
}

fn minilm_l6() -> Value {
    bert([384, 1536, 6, 12], 30_522)
}

fn bert_base() -> Value {
    bert([768, 3072, 12, 12], 30_522)
}

fn bge_large() -> Value {
    bert([1024, 4096, 24, 16], 30_522)
}

/// BERT of these sizes.
fn bert([hidden, intermediate, layers, heads]: [usize; 4], vocabulary: usize) -> Value {
    json!({
        "model_type": "bert", "hidden_act": "gelu", "hidden_size": hidden, "initializer_range": 0.02,
        "intermediate_size": intermediate, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "num_attention_heads": heads, "num_hidden_layers": layers, "pad_token_id": 0, "type_vocab_size": 2,
        "vocab_size": vocabulary,
    })
}

fn modernbert_base() -> Value {
    json!({
        "model_type": "modernbert", "global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0,
        "hidden_activation": "gelu", "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 1152,
        "local_attention": 128, "local_rope_theta": 10_000.0, "max_position_embeddings": 8192, "norm_bias": false,
        "norm_eps": 1e-5, "num_attention_heads": 12, "num_hidden_layers": 22, "pad_token_id": 50_283,
        "vocab_size": 50_368,
    })
}

fn xlm_r_base() -> Value {
    json!({
        "model_type": "xlm-roberta", "hidden_act": "gelu", "hidden_size": 768, "initializer_range": 0.02,
        "intermediate_size": 3072, "layer_norm_eps": 1e-5, "max_position_embeddings": 514,
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1,
        "vocab_size": 250_002,
    })
}

fn gpt2_124m() -> Value {
    json!({
        "model_type": "gpt2", "activation_function": "gelu_new", "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "vocab_size": 50_257,
    })
}

fn llama_160m() -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 768, "initializer_range": 0.02,
        "intermediate_size": 3072, "max_position_embeddings": 2048, "num_attention_heads": 12,
        "num_hidden_layers": 12, "num_key_value_heads": 12, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "tie_word_embeddings": false, "vocab_size": 32_000,
    })
}

fn diffucoder_160m() -> Value {
    diffucoder(json!({
        "hidden_size": 576, "intermediate_size": 3072, "num_attention_heads": 9, "num_hidden_layers": 12,
        "num_key_value_heads": 3, "tie_word_embeddings": true,
    }))
}

fn diffucoder_7b() -> Value {
    diffucoder(json!({
        "hidden_size": 3584, "intermediate_size": 18_944, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "tie_word_embeddings": false,
    }))
}

/// The common settings of these models, and their own sizes.
fn diffucoder(sizes: Value) -> Value {
    let mut config = json!({
        "model_type": "Dream", "hidden_act": "silu", "initializer_range": 0.02, "mask_token_id": 151_666,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "vocab_size": 152_064,
    });
    if let (Some(config), Value::Object(sizes)) = (config.as_object_mut(), sizes) {
        config.extend(sizes);
    }
    config
}

fn llama_360m() -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 960, "initializer_range": 0.02,
        "intermediate_size": 2560, "max_position_embeddings": 8192, "num_attention_heads": 15,
        "num_hidden_layers": 32, "num_key_value_heads": 5, "rms_norm_eps": 1e-5, "rope_theta": 100_000.0,
        "tie_word_embeddings": true, "vocab_size": 49_152,
    })
}

fn llama_1b() -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 5632, "max_position_embeddings": 2048, "num_attention_heads": 32,
        "num_hidden_layers": 22, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "tie_word_embeddings": false, "vocab_size": 32_000,
    })
}

/// Its head and its embedding are one matrix, and its rotation is scaled by 32 where 3.1's is by 8.
fn llama_3_2_1b() -> Value {
    let mut config = llama_3([2048, 8192, 16, 32]);
    config["rope_scaling"]["factor"] = json!(32.0);
    config["tie_word_embeddings"] = json!(true);
    config
}

fn llama_8b() -> Value {
    llama_3([4096, 14_336, 32, 32])
}

fn llama_70b() -> Value {
    llama_3([8192, 28_672, 80, 64])
}

/// Llama 3.1 of these sizes; the differences of 3.2 are in its own function.
fn llama_3([hidden, intermediate, layers, heads]: [usize; 4]) -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden, "initializer_range": 0.02,
        "intermediate_size": intermediate, "max_position_embeddings": 131_072, "num_attention_heads": heads,
        "num_hidden_layers": layers, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "rope_theta": 500_000.0, "tie_word_embeddings": false, "vocab_size": 128_256,
    })
}

#[cfg(test)]
mod tests {
    use bundle::{ModelConfig, Position, Precision};

    use super::*;

    fn drawn(tensor: &str, count: usize) -> Vec<f32> {
        draw(0..count, tensor, 0.02)
    }

    #[test]
    fn weights_are_normal() {
        let values = drawn("a", 1 << 20);
        let moment =
            |power| values.iter().map(|&v| (f64::from(v) / 0.02).powi(power)).sum::<f64>() / (1 << 20) as f64;
        // Four standard errors of each moment.
        for (power, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let error = 4.0 * f64::sqrt(variance) / 1024.0;
            assert!((moment(power) - expected).abs() < error, "moment {power} is {}", moment(power));
        }
    }

    #[test]
    fn tensors_and_their_blocks_are_unlike_each_other() {
        let (a, b) = (drawn("a", 2 * BLOCK), drawn("b", BLOCK));
        assert_ne!(a[..BLOCK], b[..]);
        assert_ne!(a[..BLOCK], a[BLOCK..]);
        assert_eq!(a[..BLOCK], drawn("a", BLOCK)[..], "the length of a tensor does not change its beginning");
    }

    #[test]
    fn a_piece_is_what_the_whole_holds_there() {
        let whole = drawn("a", 2 * BLOCK + 7);
        for piece in [1..2, 5..BLOCK, BLOCK - 1..BLOCK + 1, BLOCK..2 * BLOCK + 7, BLOCK + 3..BLOCK + 3] {
            assert_eq!(draw(piece.clone(), "a", 0.02), whole[piece]);
        }
    }

    #[test]
    fn gpt2_s_projections_onto_the_residual_stream_are_narrower() {
        let json = (SHAPES.iter().find(|shape| shape.name == "gpt2-124m").unwrap().config)();
        let config = ModelConfig::from_json(&json).unwrap();
        let weights = Weights::new(PathBuf::new(), &config, &json);
        assert_eq!(weights.residual, 0.02 / 24f64.sqrt());
        let deviation = |name: &str| {
            let values = weights.read(&TensorSpec { name: name.into(), shape: vec![64, 64] }, 0..64).unwrap();
            (values.iter().map(|v| f64::from(v * v)).sum::<f64>() / 4096.0).sqrt()
        };
        let ratio =
            deviation("transformer.h.0.mlp.c_fc.weight") / deviation("transformer.h.0.mlp.c_proj.weight");
        assert!((ratio / 24f64.sqrt() - 1.0).abs() < 0.1, "{ratio}");
    }

    fn config(name: &str) -> ModelConfig {
        let shape = SHAPES.iter().find(|shape| shape.name == name).unwrap();
        ModelConfig::checked(&(shape.config)()).unwrap()
    }

    /// As the models' cards and papers count them, to a million; encoders without their poolers.
    #[test]
    fn parameters_are_as_many_as_published() {
        let millions = |name: &str| {
            let elements =
                config(name).tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum::<usize>();
            elements / 1_000_000
        };
        assert_eq!(
            SHAPES[3..].iter().map(|shape| millions(shape.name)).collect::<Vec<_>>(),
            [22, 108, 124, 149, 162, 161, 277, 334, 361, 1100, 1235, 7615, 8030, 70_553]
        );
    }

    /// Both are in its config.json.
    #[test]
    fn llama_3_2_shares_its_embedding_and_scales_its_rotation_by_32() {
        let config = config("llama-3.2-1b");
        assert!(config.tied_embeddings);
        let Position::Rotary(rotary) = config.position else { panic!("it has no rotation") };
        let scaling = rotary.llama3.unwrap();
        assert_eq!((rotary.theta, scaling.factor), (500_000.0, 32.0));
        assert_eq!((scaling.low_freq_factor, scaling.high_freq_factor), (1.0, 4.0));
        assert_eq!((scaling.original_max_positions, config.max_positions), (8192, 131_072));
    }

    #[test]
    fn every_shape_can_be_stored_at_every_precision() {
        for shape in &SHAPES {
            for precision in Precision::ALL {
                config(shape.name).stored(precision).unwrap();
            }
        }
    }
}
