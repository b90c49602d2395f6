//! A GGUF that is written as llama.cpp's converter writes it becomes the original model again.

use std::path::{Path, PathBuf};

use bundle::{Bundle, Pooling, Precision, Rotary};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use prepare::Source;
pub(crate) use prepare::testing::Gguf;
use tempfile::TempDir;

use crate::common::{self, Model, Tensor, digest, floats, prepared, prepared_at, tiny};

/// Operations of these tests on a file.
pub(crate) trait GgufInTests {
    fn from_tiny(name: &str) -> Gguf;
    /// Any model's, with llama.cpp's name `architecture`.
    fn from_model(model: &Model, architecture: &str) -> Gguf;
    fn write(&self) -> (TempDir, PathBuf);
    fn prepared(&self) -> (TempDir, Bundle);
    fn refused(&self, parts: &[&str]);
}

impl GgufInTests for Gguf {
    fn from_tiny(name: &str) -> Gguf {
        let model = Model::tiny(name);
        let architecture = model.config["model_type"].as_str().unwrap().to_owned();
        Gguf::from_model(&model, &architecture)
    }

    fn from_model(model: &Model, architecture: &str) -> Gguf {
        let tensors = model.tensors.iter();
        let tensors = tensors.map(|(name, tensor)| (name.clone(), tensor.shape.clone(), tensor.values()));
        Gguf::new(&model.config, tensors, architecture)
    }

    fn write(&self) -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tiny.gguf");
        std::fs::write(&path, self.bytes()).unwrap();
        (directory, path)
    }

    fn prepared(&self) -> (TempDir, Bundle) {
        let (_directory, path) = self.write();
        prepared(Source::Gguf(path))
    }

    fn refused(&self, parts: &[&str]) {
        let (_directory, path) = self.write();
        refused(&path, parts);
    }
}

pub(crate) fn refused(path: &Path, parts: &[&str]) {
    common::refused(Source::Gguf(path.into()), Precision::F32, &[&["gguf"], parts].concat());
}

/// The divisors that llama.cpp's converter writes for the llama3-rope-scaled model.
fn rope_factors(theta: f64, head_dim: usize, factor: f64, context: f64) -> Vec<f32> {
    let factors = (0..head_dim / 2).map(|i| {
        let wavelength = 2.0 * std::f64::consts::PI * theta.powf(2.0 * i as f64 / head_dim as f64);
        let smooth = (context / wavelength - 1.0) / 3.0;
        1.0 / ((1.0 - smooth.clamp(0.0, 1.0)) / factor + smooth.clamp(0.0, 1.0))
    });
    factors.map(|factor| factor as f32).collect()
}

#[test]
fn a_gguf_gives_the_weights_and_the_configuration_of_the_directory_it_was_made_from() {
    for name in ["gpt2", "llama-gqa-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3-qknorm"] {
        let mut gguf = Gguf::from_tiny(name);
        if name == "llama3-rope-scaled" {
            let factors = rope_factors(5e5, 16, 8.0, 64.0);
            gguf.tensors.insert("rope_freqs.weight".into(), (GgmlDType::F32, vec![8], factors));
        }
        let ((_a, ours), (_b, theirs)) = (gguf.prepared(), prepared_at(tiny(name)));
        assert_eq!(digest(&ours), digest(&theirs), "{name}");
        if name != "llama3-rope-scaled" {
            assert_eq!(ours.config(), theirs.config(), "{name}");
            continue;
        }
        // Its scaling is found again from its divisors.
        let frequencies = |bundle: &Bundle| bundle::rotary::inverse_frequencies(&rotary(bundle), 16);
        for (ours, theirs) in frequencies(&ours).iter().zip(frequencies(&theirs)) {
            assert!((ours - theirs).abs() <= 1e-6 * theirs, "{ours} is not {theirs}");
        }
    }
}

fn rotary(bundle: &Bundle) -> Rotary {
    bundle.config().rotations[0].clone()
}

#[test]
fn linear_scaling_is_kept_and_other_kinds_are_refused() {
    let mut gguf = Gguf::from_tiny("llama-gqa-tied");
    gguf.metadata.insert("llama.rope.scaling.type".into(), Value::String("linear".into()));
    gguf.metadata.insert("llama.rope.scaling.factor".into(), Value::F32(4.0));
    let (_bundles, bundle) = gguf.prepared();
    assert_eq!(rotary(&bundle), Rotary { linear_factor: 4.0, ..Rotary::plain(rotary(&bundle).theta) });
    gguf.metadata.insert("llama.rope.scaling.type".into(), Value::String("mrope".into()));
    gguf.refused(&["mrope", "linear"]);
}

#[test]
fn yarn_is_read_where_llama_cpp_and_transformers_agree() {
    let mut gguf = Gguf::from_tiny("llama-gqa-tied");
    let mut put = |key: &str, value: Value| gguf.metadata.insert(format!("llama.rope.scaling.{key}"), value);
    put("type", Value::String("yarn".into()));
    put("factor", Value::F32(4.0));
    put("original_context_length", Value::U32(32));
    put("attn_factor", Value::F32(2.0));
    let usual = 1.0 + 0.1 * 4f64.ln();
    for (key, value) in
        [("yarn_beta_fast", 32.0), ("yarn_beta_slow", 1.0), ("yarn_attn_factor", usual as f32)]
    {
        put(key, Value::F32(value));
    }
    let (_bundles, bundle) = gguf.prepared();
    let yarn = rotary(&bundle).yarn.unwrap();
    assert_eq!((yarn.factor, yarn.original_max_positions), (4.0, 32));
    assert!((yarn.scale - 2.0 * usual).abs() < 1e-6, "llama.cpp multiplies by attn_factor");
    for (key, value) in [("yarn_beta_fast", 16.0), ("yarn_attn_factor", 1.0), ("yarn_log_multiplier", 0.1)] {
        let mut gguf = gguf.clone();
        gguf.metadata.insert(format!("llama.rope.scaling.{key}"), Value::F32(value));
        gguf.refused(&[key]);
    }
}

#[test]
fn quantised_tensors_are_dequantised() {
    // With the largest error of rounding, as a part of the largest weight.
    let types = [
        (GgmlDType::F16, 1.0 / 2048.0),
        (GgmlDType::BF16, 1.0 / 256.0),
        (GgmlDType::Q8_0, 1.0 / 127.0),
        (GgmlDType::Q5_1, 1.0 / 31.0),
        (GgmlDType::Q4_0, 1.0 / 8.0),
    ];
    let name = "blk.1.ffn_down.weight";
    for (dtype, bound) in types {
        let mut gguf = Gguf::from_tiny("llama-gqa-tied");
        gguf.tensors.get_mut(name).unwrap().0 = dtype;
        let (_bundles, bundle) = gguf.prepared();
        let weights = bundle.weights(Precision::F32).unwrap();
        let ours = floats(weights.tensor("model.layers.1.mlp.down_proj.weight").unwrap().bytes);
        let theirs = &gguf.tensors[name].2;
        let largest = theirs.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let error = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest;
        assert!(error > 0.0 && error <= bound, "{dtype:?} is off by {error} of the largest weight");
    }
}

/// Types that take turns, so that q, k and v of a layer differ and so do their halves in two layers.
const TYPES: [GgmlDType; 11] = [
    GgmlDType::Q4K,
    GgmlDType::Q6K,
    GgmlDType::Q8_0,
    GgmlDType::Q5K,
    GgmlDType::F16,
    GgmlDType::Q4_0,
    GgmlDType::Q2K,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q3K,
    GgmlDType::Q5_1,
];

#[test]
fn blocks_are_kept_bit_for_bit_with_rows_where_dequantised_ones_are() {
    let (_directory, path) = Gguf::of_types(&TYPES).write();
    let bundles = tempfile::tempdir().unwrap();
    let of = |precisions: &[Precision]| {
        let request = common::request(Source::Gguf(path.clone()), precisions, bundles.path());
        Bundle::open(prepare::prepare(&request).unwrap()).unwrap()
    };
    of(&[Precision::File]);
    let bundle = of(&[Precision::F32]);
    assert_eq!(bundle.precisions(), [Precision::F32, Precision::File]);
    let [f32, file] = [Precision::F32, Precision::File].map(|precision| bundle.weights(precision).unwrap());
    let config = bundle.config();
    assert!(config.blocks.len() < config.quantised().len(), "one type is of floats");
    for names in (0..config.layers.len()).flat_map(|index| {
        let layer = config.layer(index);
        [layer.qkv, layer.output, layer.gate_up, layer.down]
    }) {
        let held = file.quantised(&names.weights).unwrap();
        assert!(names.weights.len() == 1 || held.blocks.len() > 1, "the types differ");
        let (ours, theirs) = (held.dequantised(), floats(f32.stacked(&names.weights).unwrap().bytes));
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert!(bits(ours) == bits(theirs), "{names:?}");
    }
    let head = file.quantised(&[config.lm_head()]).unwrap().dequantised();
    assert_eq!(head, floats(f32.tensor(&config.lm_head()).unwrap().bytes));
}

#[test]
fn without_blocks_of_its_own_a_model_is_not_measured_in_them() {
    let refused = |source: Source, parts: &[&str]| common::refused(source, Precision::File, parts);
    refused(Source::Directory(tiny("gpt2")), &["blocks of a GGUF", "this model has none", "int8"]);
    let (_directory, path) = Gguf::of_types(&[GgmlDType::F16]).write();
    refused(Source::Gguf(path), &["this model has none"]);
    let mut gguf = Gguf::of_types(&[GgmlDType::Q4K]);
    gguf.tensors.get_mut("blk.1.attn_k.weight").unwrap().0 = GgmlDType::Q8K;
    let (_directory, path) = gguf.write();
    refused(Source::Gguf(path), &["model.layers.1.self_attn.k_proj.weight", "Q8_K", "Q4_K", "ask for f32"]);
}

#[test]
fn the_manifest_names_the_type_of_most_weights() {
    let mut gguf = Gguf::from_tiny("llama-gqa-tied");
    let stored = |gguf: &Gguf| gguf.prepared().1.manifest().source.stored.clone();
    assert_eq!(stored(&gguf).as_deref(), Some("F32"));
    gguf.tensors
        .values_mut()
        .filter(|tensor| tensor.1.len() == 2)
        .for_each(|tensor| tensor.0 = GgmlDType::Q4_0);
    assert_eq!(stored(&gguf).as_deref(), Some("Q4_0"));
}

#[test]
fn what_would_change_the_computation_is_refused() {
    let with = |key: &str, value: Value| {
        let mut gguf = Gguf::from_tiny("llama-gqa-tied");
        gguf.metadata.insert(key.into(), value);
        gguf
    };
    with("general.architecture", Value::String("mamba".into())).refused(&["mamba", "qwen3"]);
    with("llama.expert_count", Value::U32(8)).refused(&["llama.expert_used_count", "missing"]);
    with("llama.logit_scale", Value::F32(2.0)).refused(&["llama.logit_scale"]);
    with("llama.rope.dimension_count", Value::U32(8)).refused(&["heads of 16", "8 are rotated"]);
    with("llama.attention.head_count", Value::String("4".into())).refused(&["head_count", "whole number"]);
    with("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)).refused(&["finite"]);
    with("llama.block_count", Value::U32(1 << 12)).refused(&["4096 layers"]);
    with("split.count", Value::U16(2)).refused(&["part 1 of 2", "-00001-of-00002.gguf"]);
    with("llama.rope.scaling.attn_factor", Value::F32(2.0)).refused(&["attn_factor", "YaRN"]);
    with("llama.unheard.of", Value::U32(1)).refused(&["\"llama.unheard.of\"", "may change"]);
    with("llama.attention.sliding_window_pattern", Value::U32(2)).refused(&["sliding_window_pattern"]);
    with("general.type", Value::String("adapter".into())).refused(&["LoRA", "llama-export-lora"]);
    with("general.architecture", Value::String("clip".into())).refused(&["mmproj"]);
    with("llama.pooling_type", Value::U32(4)).refused(&["llama.pooling_type", "reranker"]);
    // What is switched off, and what says nothing about the computation.
    for key in ["llama.nextn_predict_layers", "llama.vocab_size", "general.unheard.of"] {
        with(key, Value::U32(0)).prepared();
    }
    let mut gguf = with("llama.rope.freq_base", Value::F32(1e4));
    gguf.metadata.remove("llama.context_length");
    gguf.refused(&["llama.context_length", "missing"]);
    let mut gguf = Gguf::from_tiny("llama3-rope-scaled");
    gguf.tensors.insert("rope_freqs.weight".into(), (GgmlDType::F32, vec![8], vec![3.0; 8]));
    gguf.refused(&["rope_freqs.weight"]);
}

#[test]
fn a_tensor_that_is_missing_wrong_or_superfluous_is_named() {
    let name = "blk.2.attn_v.weight";
    let mut gguf = Gguf::from_tiny("llama-gqa-tied");
    let tensor = gguf.tensors.remove(name).unwrap();
    gguf.refused(&[name, "missing", "[32, 64]"]);
    gguf.tensors.insert(name.into(), (GgmlDType::F32, vec![64, 32], tensor.2.clone()));
    gguf.refused(&[name, "[64, 32]", "[32, 64]"]);
    gguf.tensors.insert(name.into(), tensor);
    gguf.tensors.insert("blk.0.attn_sinks.weight".into(), (GgmlDType::F32, vec![4], vec![0.0; 4]));
    gguf.refused(&["blk.0.attn_sinks.weight", "no place"]);
    let mut gguf = Gguf::from_tiny("llama-gqa-tied");
    gguf.tensors.get_mut(name).unwrap().2[5] = f32::INFINITY;
    gguf.refused(&["v_proj", "inf", "element 5"]);
}

#[test]
fn a_file_that_is_no_gguf_of_a_known_version_is_refused() {
    let (directory, path) = Gguf::from_tiny("llama-gqa-tied").write();
    let bytes = std::fs::read(&path).unwrap();
    let with = |at: usize, new: &[u8], parts: &[&str]| {
        let mut changed = bytes.clone();
        changed[at..at + new.len()].copy_from_slice(new);
        std::fs::write(&path, changed).unwrap();
        refused(&path, parts);
    };
    with(0, b"GGML", &["magic"]);
    with(4, &1u32.to_le_bytes(), &["version 1"]);
    with(4, &9u32.to_le_bytes(), &["version 9"]);
    with(4, &3u32.to_be_bytes(), &["big-endian"]);
    with(8, &u64::MAX.to_le_bytes(), &["tensor entry", "truncated"]);
    with(16, &u64::MAX.to_le_bytes(), &["metadata"]);
    refused(&directory.path().join("nowhere.gguf"), &["no such file"]);
    std::fs::create_dir(directory.path().join("directory.gguf")).unwrap();
    refused(&directory.path().join("directory.gguf"), &["is a directory"]);
}

#[test]
fn a_type_that_cannot_be_dequantised_is_named() {
    let (_directory, path) = Gguf::from_tiny("llama-gqa-tied").write();
    let mut bytes = std::fs::read(&path).unwrap();
    // After the name there are the number of dimensions, two dimensions, and the type.
    let name = b"blk.0.ffn_up.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len() + 20;
    for (number, words) in [(24u32, "I8"), (99, "the unknown type 99")] {
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        refused(&path, &["blk.0.ffn_up.weight", words, "MXFP4", "IQ4"]);
    }
}

#[test]
fn biases_of_queries_and_keys_come_back_in_order() {
    for architecture in ["llama", "granite"] {
        let fixture = if architecture == "llama" { "tiny/llama-gqa-tied" } else { "architectures/granite" };
        let mut model = Model::fixture(fixture);
        model.config["attention_bias"] = true.into();
        let weights: Vec<_> =
            model.tensors.keys().filter(|name| name.contains("self_attn")).cloned().collect();
        for name in weights {
            let rows = model.tensors[&name].shape[0];
            let values: Vec<f32> = (0..rows).map(|row| row as f32 + 0.5).collect();
            model.tensors.insert(name.replace("weight", "bias"), Tensor::f32(&[rows], &values));
        }
        let mut gguf = Gguf::from_model(&model, architecture);
        let names: Vec<_> = gguf.tensors.keys().filter(|name| name.ends_with("attn_q.bias")).collect();
        assert!(!names.is_empty() && gguf.tensors[names[0]].2[1] != 1.5, "the converter reorders them");
        if architecture == "granite" {
            for (field, key) in [
                ("attention_multiplier", "attention.scale"),
                ("embedding_multiplier", "embedding_scale"),
                ("residual_multiplier", "residual_scale"),
                ("logits_scaling", "logit_scale"),
            ] {
                let number = model.config[field].as_f64().unwrap() as f32;
                gguf.metadata.insert(format!("granite.{key}"), Value::F32(number));
            }
        }
        let ((_a, ours), (_b, theirs)) = (gguf.prepared(), model.prepared());
        assert_eq!(digest(&ours), digest(&theirs), "{architecture}");
    }
}

/// Two parts as llama-gguf-split writes them: the metadata are in the first alone.
fn parts(gguf: &Gguf, directory: &Path) -> [PathBuf; 2] {
    let count = gguf.tensors.len();
    let middle = gguf.tensors.keys().nth(count / 2).unwrap().clone();
    let [mut first, mut second] = [gguf.clone(), gguf.clone()];
    second.tensors = first.tensors.split_off(&middle);
    second.metadata.clear();
    first.metadata.insert("split.tensors.count".into(), Value::I32(count as i32));
    [(0, first), (1, second)].map(|(number, mut part)| {
        part.metadata.insert("split.no".into(), Value::U16(number));
        part.metadata.insert("split.count".into(), Value::U16(2));
        let path = directory.join(format!("model-{:05}-of-00002.gguf", number + 1));
        std::fs::write(&path, part.bytes()).unwrap();
        path
    })
}

#[test]
fn a_model_in_parts_is_read_whole_whichever_part_is_named() {
    let (directory, whole) = (tempfile::tempdir().unwrap(), Gguf::from_tiny("qwen2-bias"));
    let paths = parts(&whole, directory.path());
    let (_bundles, whole) = whole.prepared();
    for path in &paths {
        let (_bundles, bundle) = prepared(Source::Gguf(path.clone()));
        assert_eq!(digest(&bundle), digest(&whole));
        assert_eq!((bundle.manifest().name.as_str(), bundle.config()), ("model", whole.config()));
    }
}

#[test]
fn parts_that_are_missing_or_contradict_each_other_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let gguf = Gguf::from_tiny("llama-gqa-tied");
    let [first, second] = parts(&gguf, directory.path());
    std::fs::copy(&first, &second).unwrap();
    refused(&first, &["00002-of-00002", "is part 2 of 2"]);
    parts(&gguf, directory.path());
    let mut wrong = gguf.clone();
    wrong.metadata.insert("split.no".into(), Value::U16(1));
    wrong.metadata.insert("split.count".into(), Value::U16(2));
    wrong.tensors.retain(|name, _| name == "blk.0.attn_q.weight");
    std::fs::write(&second, wrong.bytes()).unwrap();
    refused(&first, &["blk.0.attn_q.weight", "also in model-00001-of-00002.gguf"]);
    wrong.tensors.clear();
    std::fs::write(&second, wrong.bytes()).unwrap();
    refused(&first, &["00001-of-00002", "tensors"]);
    std::fs::remove_file(&first).unwrap();
    refused(&second, &["model-00001-of-00002.gguf", "not there", "part 1 of 2"]);
}

#[test]
fn a_decoder_with_a_pooling_type_encodes() {
    let mut gguf = Gguf::from_tiny("qwen3-qknorm");
    for (number, pooling) in [(1, Pooling::Mean), (3, Pooling::Last)] {
        gguf.metadata.insert("qwen3.pooling_type".into(), Value::U32(number));
        let (_bundles, bundle) = gguf.prepared();
        assert!(bundle.config().encoder.is_some());
        let pooled = bundle.pooled().unwrap().unwrap();
        assert_eq!((pooled.pooling, pooled.normalise), (pooling, true));
    }
    let both_ways = |gguf: &Gguf| !gguf.prepared().1.config().causal;
    assert!(!both_ways(&gguf));
    gguf.metadata.insert("qwen3.attention.causal".into(), Value::Bool(false));
    assert!(both_ways(&gguf));
    gguf.metadata.insert("qwen3.pooling_type".into(), Value::U32(0));
    gguf.refused(&["not causal"]);
    gguf.metadata.remove("qwen3.attention.causal");
    assert!(gguf.prepared().1.config().encoder.is_none());
}

#[test]
fn a_gguf_is_recognised_by_its_first_bytes() {
    let (_directory, path) = Gguf::from_tiny("llama-gqa-tied").write();
    let blob = path.with_file_name("sha256-0123");
    std::fs::rename(&path, &blob).unwrap();
    assert_eq!(Source::parse(blob.to_str().unwrap()), Source::Gguf(blob));
}
