//! Models of published shapes with random weights: the cost of a size without its download.
//!
//! Weights are those of a model before its training: normal with the published `initializer_range`, norms 1,
//! biases 0; in gpt2, projections onto the residual stream narrower by √(2 · layers) (Radford and others,
//! "Language Models are Unsupervised Multitask Learners", 2019, section 2.3). The output of such a model is
//! meaningless; its cost is that of the trained one.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bundle::{Architecture, ModelConfig, POOLING, TensorSpec, arithmetic};
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
    SHAPES.map(|(name, ..)| name).join(", ")
}

pub(crate) fn open(name: &str) -> Result<Model, PrepareError> {
    // Not among the names: comparisons ask for these themselves.
    let probe = arithmetic::WIDTHS.iter().find(|(known, _)| *known == name).map(|(_, width)| *width);
    let shape = SHAPES.iter().find(|(known, ..)| *known == name);
    let (published, json) = match (probe, shape) {
        (Some(width), _) => (&None, arithmetic::config(width)),
        (_, Some((_, published, config))) => (published, config()),
        (None, None) => {
            let names = names();
            return Err(PrepareError::Request(format!(
                "unknown synthetic model {name:?}; there are {names}"
            )));
        }
    };
    let path = PathBuf::from(format!("{PREFIX}{name}"));
    let config = ModelConfig::checked(&json).map_err(PrepareError::model(&path))?;
    let weights = Weights::new(path, &config, &json);
    let derived = match probe {
        Some(_) => "numbers that show what a product reads".to_owned(),
        None => {
            format!("drawn by ChaCha8 with seed {SEED}, normal with standard deviation {}", weights.deviation)
        }
    };
    let of = published.map_or(String::new(), |repository| format!(" of {repository}"));
    let pooling = config.encodes().then(|| (POOLING, modules::usual()));
    Ok(Model {
        name: format!("synthetic-{name}"),
        kind: "synthetic",
        files: Vec::new(),
        seed: Some(SEED),
        config,
        config_json: Document::pretty(&json, format!("the shape{of}")),
        tokenizer: Err("a synthetic model has none".into()),
        others: pooling.into_iter().collect(),
        tensors: match probe {
            Some(_) => Box::new(Probe(weights)),
            None => Box::new(weights),
        },
        verbatim: Vec::new(),
        derived,
    })
}

struct Weights {
    /// Replaces a file's path in errors.
    path: PathBuf,
    /// Standard deviation of embeddings and linear layers.
    deviation: f64,
    /// That of projections onto the residual stream.
    residual: f64,
    routers: BTreeSet<String>,
}

/// The standard deviation of a router, as a multiple of the others'.
const ROUTER: f64 = 8.0;

impl Weights {
    fn new(path: PathBuf, config: &ModelConfig, json: &Value) -> Weights {
        let deviation = json["initializer_range"].as_f64().expect("every shape has one");
        let residual = match config.architecture {
            Architecture::Gpt2 => deviation / (2.0 * config.layers.len() as f64).sqrt(),
            _ => deviation,
        };
        let layers = (0..config.layers.len()).filter_map(|index| config.layer(index).experts);
        let routers = layers.flat_map(|experts| experts.router.weights).collect();
        Weights { path, deviation, residual, routers }
    }
}

impl Tensors for Weights {
    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        let (_, columns) = matrix(spec);
        let elements = rows.start * columns..rows.end * columns;
        Ok(match &spec.shape[..] {
            [_] if spec.name.ends_with(".bias") => vec![0.0; elements.len()],
            [_] => vec![1.0; elements.len()],
            // Wider, so that fewer experts are nearly even: between those the last bits of a sum decide.
            _ if self.routers.contains(&spec.name) => draw(elements, &spec.name, ROUTER * self.deviation),
            _ if spec.name.ends_with("c_proj.weight") => draw(elements, &spec.name, self.residual),
            _ => draw(elements, &spec.name, self.deviation),
        })
    }

    fn path_of(&self, _: &str) -> &Path {
        &self.path
    }
}

/// The weights of [`arithmetic`].
struct Probe(Weights);

impl Tensors for Probe {
    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        let (_, columns) = matrix(spec);
        Ok(match spec.name.as_str() {
            "model.embed_tokens.weight" => {
                rows.flat_map(|row| arithmetic::embedding(row as u32, columns)).collect()
            }
            "lm_head.weight" => rows.flat_map(|row| arithmetic::head(row, columns)).collect(),
            _ if spec.shape.len() == 1 => vec![1.0; rows.len() * columns],
            _ => vec![0.0; rows.len() * columns],
        })
    }

    fn path_of(&self, name: &str) -> &Path {
        self.0.path_of(name)
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

/// A model with a known shape and random weights: its name, the repository on the Hugging Face hub with this config.json
/// if there is one, and the config.json.
type Shape = (&'static str, Option<&'static str>, fn() -> Value);

/// By size. `llama-tiny` and `bert-tiny` have no published originals: small enough for tests, wide enough for every
/// precision.
/// `llama-tiny-long` has room for passes in which attention is most of the work.
const SHAPES: [Shape; 20] = [
    ("bert-tiny", None, || bert([64, 128, 2, 4], 256)),
    ("llama-tiny", None, || llama([64, 128, 2, 4, 2], (256, 256))),
    ("llama-tiny-long", None, || llama([64, 128, 2, 4, 2], (256, 2048))),
    // As llama2.c's stories15M: a round of two processes takes a second, so that many are recorded.
    ("llama-15m", None, || {
        with(llama([288, 768, 6, 6, 6], (32_000, 256)), json!({ "tie_word_embeddings": true }))
    }),
    ("minilm-l6", Some("sentence-transformers/all-MiniLM-L6-v2"), || bert([384, 1536, 6, 12], 30_522)),
    ("bert-base", Some("google-bert/bert-base-uncased"), || bert([768, 3072, 12, 12], 30_522)),
    ("gpt2-124m", Some("openai-community/gpt2"), gpt2_124m),
    ("modernbert-base", Some("answerdotai/ModernBERT-base"), modernbert_base),
    ("llama-160m", Some("JackFram/llama-160m"), || {
        with(llama([768, 3072, 12, 12, 12], (32_000, 2048)), json!({ "rms_norm_eps": 1e-6 }))
    }),
    // Of Qwen3-MoE's kind, 326M parameters of which a token goes through 62M; and the dense model with as many.
    ("qwen3-moe-small", None, || {
        let experts = json!({
            "model_type": "qwen3_moe", "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512,
            "norm_topk_prob": true,
        });
        with(qwen3([512, 2048, 12, 8, 2]), experts)
    }),
    ("qwen3-small", None, || qwen3([512, 2048, 12, 8, 2])),
    // Of DiffuCoder's kind and vocabulary, as small as others: the embedding is shared, as in Qwen2's small models.
    ("diffucoder-160m", None, || diffucoder([576, 3072, 12, 9, 3], true)),
    ("xlm-r-base", Some("FacebookAI/xlm-roberta-base"), xlm_r_base),
    ("bge-large", Some("BAAI/bge-large-en-v1.5"), || bert([1024, 4096, 24, 16], 30_522)),
    ("llama-360m", Some("HuggingFaceTB/SmolLM2-360M"), || {
        let more = json!({ "rope_theta": 100_000.0, "tie_word_embeddings": true });
        with(llama([960, 2560, 32, 15, 5], (49_152, 8192)), more)
    }),
    // Of TinyLlama's parameters 6 % are its embedding; of Llama 3.2's, with a vocabulary of 128 256, a fifth.
    ("llama-1b", Some("TinyLlama/TinyLlama-1.1B-Chat-v1.0"), || {
        llama([2048, 5632, 22, 32, 4], (32_000, 2048))
    }),
    // Its head and its embedding are one matrix, and its rotation is scaled by 32 where 3.1's is by 8.
    ("llama-3.2-1b", Some("meta-llama/Llama-3.2-1B"), || {
        with(llama_3([2048, 8192, 16, 32, 8], 32.0), json!({ "tie_word_embeddings": true }))
    }),
    ("diffucoder-7b", Some("apple/DiffuCoder-7B-Base"), || diffucoder([3584, 18_944, 28, 28, 4], false)),
    ("llama-8b", Some("meta-llama/Llama-3.1-8B"), || llama_3([4096, 14_336, 32, 32, 8], 8.0)),
    ("llama-70b", Some("meta-llama/Llama-3.1-70B"), || llama_3([8192, 28_672, 80, 64, 8], 8.0)),
];

/// The configuration with these fields in place of its own, or beside them.
fn with(mut config: Value, more: Value) -> Value {
    if let (Some(config), Value::Object(more)) = (config.as_object_mut(), more) {
        config.extend(more);
    }
    config
}

/// Llama 2 of these sizes, vocabulary and context.
fn llama(
    [hidden, intermediate, layers, heads, kv_heads]: [usize; 5],
    (vocabulary, positions): (usize, usize),
) -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden, "initializer_range": 0.02,
        "intermediate_size": intermediate, "max_position_embeddings": positions, "num_attention_heads": heads,
        "num_hidden_layers": layers, "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "tie_word_embeddings": false, "vocab_size": vocabulary,
    })
}

/// Llama 3 of these sizes, with a rotation scaled by this factor.
fn llama_3(sizes: [usize; 5], factor: f64) -> Value {
    let scaling = json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    with(llama(sizes, (128_256, 131_072)), json!({ "rope_theta": 500_000.0, "rope_scaling": scaling }))
}

/// Qwen3 of these sizes, with a small vocabulary.
fn qwen3(sizes: [usize; 5]) -> Value {
    with(
        llama(sizes, (32_000, 32_768)),
        json!({
            "model_type": "qwen3", "head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
            "tie_word_embeddings": true,
        }),
    )
}

fn diffucoder(sizes: [usize; 5], is_tied: bool) -> Value {
    with(
        llama(sizes, (152_064, 131_072)),
        json!({
            "model_type": "Dream", "mask_token_id": 151_666, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
            "tie_word_embeddings": is_tied,
        }),
    )
}

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

#[cfg(test)]
mod tests {
    use bundle::{ModelConfig, Precision};

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
        let json = gpt2_124m();
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
        let (_, _, config) = SHAPES.iter().find(|(known, ..)| *known == name).unwrap();
        ModelConfig::checked(&config()).unwrap()
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
            SHAPES[3..].iter().map(|(name, ..)| millions(name)).collect::<Vec<_>>(),
            [15, 22, 108, 124, 149, 162, 326, 62, 161, 277, 334, 361, 1100, 1235, 7615, 8030, 70_553]
        );
    }

    /// Both are in its config.json.
    #[test]
    fn llama_3_2_shares_its_embedding_and_scales_its_rotation_by_32() {
        let config = config("llama-3.2-1b");
        assert!(config.tied_embeddings);
        let rotary = config.rotations[0].clone();
        let scaling = rotary.llama3.unwrap();
        assert_eq!((rotary.theta, scaling.factor), (500_000.0, 32.0));
        assert_eq!((scaling.low_freq_factor, scaling.high_freq_factor), (1.0, 4.0));
        assert_eq!((scaling.original_max_positions, config.max_positions), (8192, 131_072));
    }

    #[test]
    fn every_shape_can_be_stored_at_every_precision() {
        for (name, ..) in SHAPES {
            for precision in Precision::MADE {
                config(name).stored(precision).unwrap();
            }
        }
    }
}
