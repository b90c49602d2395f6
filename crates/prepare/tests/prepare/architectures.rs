//! Models with layers that differ from llama's, from safetensors and from GGUF with llama.cpp's names and
//! order.

use bundle::{Bundle, Precision};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use serde_json::json;
use tempfile::TempDir;

use crate::common::{Model, Tensor, floats};
use crate::gguf::{Gguf, GgufInTests};

fn fixture(name: &str) -> Model {
    Model::fixture(&format!("architectures/{name}"))
}

/// llama.cpp's names of tensors that llama does not have.
const NAMES: [(&str, &str); 5] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
];

/// The model as GGUF, with metadata that llama does not have.
fn gguf(model: &Model, architecture: &str, more: &[(&str, Value)]) -> Gguf {
    let mut model = model.clone();
    let behind = model.tensors.keys().any(|name| name.contains("post_feedforward_layernorm"));
    let named = |name: &String| {
        let names = NAMES.iter().filter(|(theirs, _)| behind || !theirs.ends_with("layernorm"));
        names.fold(name.clone(), |name, (theirs, ours)| name.replace(theirs, ours))
    };
    model.tensors = model.tensors.iter().map(|(name, tensor)| (named(name), tensor.clone())).collect();
    let mut gguf = Gguf::from_model(&model, architecture);
    if architecture.starts_with("gemma") {
        let norms = gguf.tensors.iter_mut().filter(|(name, _)| name.ends_with("norm.weight"));
        norms.for_each(|(_, (_, _, values))| values.iter_mut().for_each(|value| *value += 1.0));
    }
    gguf.metadata.extend(more.iter().map(|(key, value)| (format!("{architecture}.{key}"), value.clone())));
    gguf
}

/// Whether two documents are equal, numbers to a millionth of them.
fn alike(ours: &serde_json::Value, theirs: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Object};
    match (ours, theirs) {
        (Object(ours), Object(theirs)) => {
            let same = |(name, ours)| theirs.get(name).is_some_and(|theirs| alike(ours, theirs));
            ours.len() == theirs.len() && ours.iter().all(same)
        }
        (Array(ours), Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| alike(ours, theirs))
        }
        _ => match (ours.as_f64(), theirs.as_f64()) {
            (Some(ours), Some(theirs)) => (ours - theirs).abs() <= 1e-6 * theirs.abs(),
            _ => ours == theirs,
        },
    }
}

fn values(bundle: &Bundle) -> Vec<f32> {
    let weights = bundle.weights(Precision::F32).unwrap();
    let tensors = bundle.config().tensors().into_iter();
    let bytes = tensors.flat_map(|spec| weights.tensor(&spec.name).unwrap().bytes.to_vec());
    floats(&bytes.collect::<Vec<u8>>())
}

fn assert_same(ours: (TempDir, Bundle), theirs: (TempDir, Bundle)) {
    let (ours, theirs) = (ours.1, theirs.1);
    let [described, expected] = [&ours, &theirs].map(|bundle| bundle.config().described());
    assert!(alike(&described, &expected), "{described}\nis not\n{expected}");
    let furthest = values(&ours).iter().zip(values(&theirs)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest <= 1e-6, "weights differ by {furthest}");
}

fn check(name: &str, architecture: &str, more: &[(&str, Value)]) {
    let model = fixture(name);
    assert_same(gguf(&model, architecture, more).prepared(), model.prepared());
}

#[test]
fn gemmas_from_gguf_have_norms_less_one_windows_and_caps() {
    let scale = |scalar: f32| ("attention.scale", Value::F32(scalar.sqrt().recip()));
    check(
        "gemma2",
        "gemma2",
        &[
            ("attention.sliding_window", Value::U32(16)),
            ("attn_logit_softcapping", Value::F32(4.0)),
            ("final_logit_softcapping", Value::F32(3.0)),
            scale(24.0),
        ],
    );
    let pattern = [true, false, true].map(Value::Bool).to_vec();
    check(
        "gemma3",
        "gemma3",
        &[
            ("attention.sliding_window", Value::U32(16)),
            ("attention.sliding_window_pattern", Value::Array(pattern)),
            ("rope.freq_base", Value::F32(1e6)),
            scale(32.0),
        ],
    );
}

#[test]
fn gemma_s_scale_is_the_head_s_where_nothing_says_otherwise() {
    let model = fixture("gemma2");
    let (_bundles, bundle) =
        gguf(&model, "gemma2", &[("attention.sliding_window", Value::U32(16))]).prepared();
    assert_eq!(bundle.config().form.attention_scale, None);
}

/// The published files have experts in blocks of 4 bits; transformers dequantises them to `[experts, in, out]`.
#[test]
fn experts_in_blocks_of_mxfp4_are_the_numbers_that_they_stand_for() {
    let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let mut floats = fixture("gpt-oss");
    let mut blocks = floats.clone();
    blocks.config["quantization_config"] = json!({ "quant_method": "mxfp4" });
    let names: Vec<String> = floats.tensors.keys().filter(|name| name.ends_with("_proj")).cloned().collect();
    assert_eq!(names.len(), 4, "two layers");
    for name in names {
        let Tensor { shape, .. } = blocks.tensors.remove(&name).unwrap();
        let [experts, columns, rows] = [shape[0], shape[1], shape[2]];
        // Any nibbles and scales: by place.
        let nibble = |at: usize| (at * 7 + at / 11) % 16;
        let scale = |block: usize| 120 + block % 5;
        let bytes =
            (0..experts * rows * columns / 2).map(|at| (nibble(2 * at) | nibble(2 * at + 1) << 4) as u8);
        let (bytes, of_rows) = (bytes.collect(), [experts, rows, columns / 32]);
        let tensor =
            |shape: &[usize], bytes: Vec<u8>| Tensor { dtype: "U8".into(), shape: shape.to_vec(), bytes };
        let scales = (0..experts * rows * columns / 32).map(|block| scale(block) as u8).collect();
        blocks.tensors.insert(format!("{name}_blocks"), tensor(&[&of_rows[..], &[16]].concat(), bytes));
        blocks.tensors.insert(format!("{name}_scales"), tensor(&of_rows, scales));
        let values = (0..experts * columns * rows).map(|at| {
            let (expert, column, row) = (at / (columns * rows), at / rows % columns, at % rows);
            let at = (expert * rows + row) * columns + column;
            let sign = if nibble(at) > 7 { -1.0 } else { 1.0 };
            sign * numbers[nibble(at) % 8] * 2f32.powi(scale(at / 32) as i32 - 127)
        });
        floats.tensors.insert(name, Tensor::f32(&shape, &values.collect::<Vec<_>>()));
    }
    let [(_held, blocks), (_also, floats)] = [blocks.prepared(), floats.prepared()];
    let weights = |bundle: &Bundle| std::fs::read(bundle.directory().join("f32.safetensors")).unwrap();
    assert!(weights(&blocks) == weights(&floats));
    assert_eq!(blocks.manifest().source.stored.as_deref(), Some("mxfp4"));
}

/// The tensors of all experts are one in a GGUF, by part.
fn with_experts_together(mut gguf: Gguf) -> Gguf {
    let held = std::mem::take(&mut gguf.tensors);
    for (name, (kind, shape, values)) in held {
        let words: Vec<&str> = name.split('.').collect();
        let whole = match words[..] {
            [_, layer, _, "experts", _, part, _] => {
                let part = match part {
                    "w1" | "gate_proj" => "gate",
                    "w2" | "down_proj" => "down",
                    _ => "up",
                };
                format!("blk.{layer}.ffn_{part}_exps.weight")
            }
            [_, layer, "mlp" | "block_sparse_moe", "gate", _] => format!("blk.{layer}.ffn_gate_inp.weight"),
            _ => name.clone(),
        };
        let is_of_experts = whole.contains("_exps");
        let all = gguf.tensors.entry(whole).or_insert_with(|| match is_of_experts {
            true => (kind, [&[0], &shape[..]].concat(), Vec::new()),
            false => (kind, shape.clone(), Vec::new()),
        });
        all.1[0] += usize::from(is_of_experts);
        all.2.extend(values);
    }
    gguf
}

#[test]
fn experts_of_mixtral_and_of_qwen3_come_from_gguf() {
    let experts = [("expert_count", Value::U32(4)), ("expert_used_count", Value::U32(2))];
    let mixtral = fixture("mixtral");
    let together = with_experts_together(gguf(&mixtral, "llama", &experts));
    assert!(together.tensors.keys().any(|name| name == "blk.1.ffn_up_exps.weight"));
    assert_same(together.prepared(), mixtral.prepared());
    // llama.cpp's qwen3moe has experts in every layer.
    let mut qwen = fixture("qwen3-moe");
    qwen.tensors.retain(|name, _| !name.contains("layers.1.") && !name.contains("layers.2."));
    (qwen.config["num_hidden_layers"], qwen.config["mlp_only_layers"]) = (json!(1), json!([]));
    let width = [("expert_feed_forward_length", Value::U32(32))];
    let together = with_experts_together(gguf(&qwen, "qwen3moe", &[&experts[..], &width].concat()));
    assert_same(together.prepared(), qwen.prepared());
    let other = gguf(&fixture("granite"), "granite", &experts);
    other.refused(&["a mixture of experts is not supported for granite"]);
}

#[test]
fn granite_from_gguf_has_its_four_multipliers() {
    check(
        "granite",
        "granite",
        &[
            ("attention.scale", Value::F32(0.0625)),
            ("embedding_scale", Value::F32(12.0)),
            ("residual_scale", Value::F32(0.22)),
            ("logit_scale", Value::F32(6.0)),
        ],
    );
}

#[test]
fn olmo2_from_gguf_has_norms_behind_its_blocks() {
    check("olmo2", "olmo2", &[]);
}

#[test]
fn every_fourth_layer_of_smollm3_from_gguf_does_not_rotate() {
    let mut model = fixture("smollm3");
    model.config.as_object_mut().unwrap().remove("no_rope_layers");
    model.config["no_rope_layer_interval"] = json!(4);
    assert_same(gguf(&model, "smollm3", &[]).prepared(), model.prepared());
}

#[test]
fn phi3_from_gguf_keeps_what_is_fused_its_window_and_its_divisors() {
    check("phi3", "phi3", &[]);
    let model = fixture("phi3-longrope");
    let more = [
        ("attention.sliding_window", Value::U32(18)),
        ("rope.freq_base", Value::F32(1e4)),
        ("rope.dimension_count", Value::U32(12)),
        ("rope.scaling.original_context_length", Value::U32(24)),
    ];
    let mut gguf = gguf(&model, "phi3", &more);
    for (name, field) in [("short", "short_factor"), ("long", "long_factor")] {
        let factors = model.config["rope_parameters"][field].as_array().unwrap();
        let factors: Vec<f32> = factors.iter().map(|factor| factor.as_f64().unwrap() as f32).collect();
        let tensor = (GgmlDType::F32, vec![factors.len()], factors);
        gguf.tensors.insert(format!("rope_factors_{name}.weight"), tensor);
    }
    assert_same(gguf.prepared(), model.prepared());
}

#[test]
fn mistral_s_window_comes_with_its_gguf() {
    check("mistral-window", "llama", &[("attention.sliding_window", Value::U32(12))]);
}

#[test]
fn what_other_architectures_have_is_refused_of_a_llama() {
    let model = fixture("granite");
    for key in ["attention.scale", "embedding_scale", "residual_scale", "logit_scale"] {
        gguf(&model, "llama", &[(key, Value::F32(0.5))]).refused(&[key, "not supported"]);
    }
}
