//! Changes after which `prepare` may well accept a model: it is the accepted ones that matter here.

use std::collections::BTreeMap;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::Model;
use crate::Form;
use crate::mutate;

/// Weights at the limits of f32, and weights that reach them in sums and products.
const WEIGHTS: [f32; 9] = [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, 1e19, -1e19, 65504.0];

/// Ways to divide the rows of q, k and v of the tiny models into heads: heads, heads of keys, length of each.
const HEADS: [(u64, u64, u64); 4] = [(2, 1, 32), (4, 2, 16), (8, 4, 8), (32, 16, 2)];

pub(super) fn changed(model: &Model, random: &mut ChaCha8Rng) -> Model {
    let mut model = model.clone();
    for _ in 0..random.random_range(1..4) {
        match &mut model {
            Model::Gguf(bytes) => change_bytes(bytes, random),
            Model::Directory(files) => change_files(files, random),
        }
    }
    model
}

/// A few bytes anywhere: most of a GGUF is weights.
fn change_bytes(bytes: &mut [u8], random: &mut ChaCha8Rng) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..random.random_range(1..16) {
        let at = random.random_range(0..bytes.len());
        bytes[at] = match random.random_range(0..4) {
            0 => random.random_range(0..=255),
            1 => 0xff,
            2 => bytes[at].wrapping_add(1),
            _ => bytes[at] ^ (1 << random.random_range(0..8)),
        };
    }
}

fn change_files(files: &mut BTreeMap<String, Vec<u8>>, random: &mut ChaCha8Rng) {
    match random.random_range(0..6) {
        0 => change_weights(files, random),
        1 => change_file(files, "model.safetensors", Form::Safetensors, random),
        2 => change_heads(files, random),
        3 => change_numbers(files, random),
        _ => change_file(files, "config.json", Form::Json, random),
    }
}

fn change_file(files: &mut BTreeMap<String, Vec<u8>>, name: &str, form: Form, random: &mut ChaCha8Rng) {
    let seed = random.random();
    if let Some(bytes) = files.get_mut(name)
        && let Some(changed) = mutate::mutated(bytes, form, seed)
    {
        *bytes = changed;
    }
}

fn change_weights(files: &mut BTreeMap<String, Vec<u8>>, random: &mut ChaCha8Rng) {
    let Some(bytes) = files.get_mut("model.safetensors") else { return };
    let Some(header) = bytes.first_chunk::<8>().map(|length| 8 + u64::from_le_bytes(*length) as usize) else {
        return;
    };
    let Some(data) = bytes.get_mut(header..) else { return };
    let (numbers, _) = data.as_chunks_mut::<4>();
    for _ in 0..random.random_range(1..2000) {
        if numbers.is_empty() {
            return;
        }
        let at = random.random_range(0..numbers.len());
        numbers[at] = WEIGHTS[random.random_range(0..WEIGHTS.len())].to_le_bytes();
    }
}

fn change_config(files: &mut BTreeMap<String, Vec<u8>>, change: impl FnOnce(&mut Value)) {
    if let Some(bytes) = files.get_mut("config.json")
        && let Ok(mut config) = serde_json::from_slice::<Value>(bytes)
        && config.is_object()
    {
        change(&mut config);
        *bytes = config.to_string().into_bytes();
    }
}

/// Other heads of the same rows.
fn change_heads(files: &mut BTreeMap<String, Vec<u8>>, random: &mut ChaCha8Rng) {
    let (heads, kv_heads, length) = HEADS[random.random_range(0..HEADS.len())];
    change_config(files, |config| {
        if config.get("n_head").is_some() {
            config["n_head"] = json!(heads);
        } else {
            config["num_attention_heads"] = json!(heads);
            config["num_key_value_heads"] = json!(kv_heads);
            config["head_dim"] = json!(length);
        }
    });
}

/// Numbers that no weight's shape depends on.
fn change_numbers(files: &mut BTreeMap<String, Vec<u8>>, random: &mut ChaCha8Rng) {
    const LENGTHS: [u64; 6] = [1, 2, 3, 1 << 20, (1 << 28) - 1, 131_072];
    const EPSILONS: [f64; 6] = [0.0, 1e-300, 1e300, -1.0, 1.0, 1e38];
    const THETAS: [f64; 5] = [1.000_000_1, 1e308, 2.0, 1e10, 500_000.0];
    const FACTORS: [f64; 6] = [0.0, 1e-6, 1e6, 32.0, 1.0, 8.0];
    const ACTIVATIONS: [&str; 4] = ["silu", "gelu", "gelu_new", "relu"];
    let mut number = |from: &[f64]| from[random.random_range(0..from.len())];
    let (epsilon, theta, factor) = (number(&EPSILONS), number(&THETAS), number(&FACTORS));
    let low = number(&FACTORS);
    let length = LENGTHS[random.random_range(0..LENGTHS.len())];
    let activation = ACTIVATIONS[random.random_range(0..ACTIVATIONS.len())];
    let kind = ["linear", "llama3", "default"][random.random_range(0..3)];
    let which = random.random_range(0..5);
    change_config(files, |config| match which {
        0 => {
            let name = if config.get("n_head").is_some() { "n_positions" } else { "max_position_embeddings" };
            config[name] = json!(length);
        }
        1 => {
            config["rms_norm_eps"] = json!(epsilon);
            config["layer_norm_epsilon"] = json!(epsilon);
        }
        2 => config["rope_parameters"] = json!({"rope_theta": theta, "rope_type": "default"}),
        3 => {
            config["rope_parameters"] = json!({
                "rope_theta": theta, "rope_type": kind, "factor": factor, "low_freq_factor": low,
                "high_freq_factor": 4.0, "original_max_position_embeddings": length
            });
        }
        _ => {
            config["hidden_act"] = json!(activation);
            config["activation_function"] = json!(activation);
        }
    });
}
