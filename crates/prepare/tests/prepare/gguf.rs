//! A GGUF that is written as llama.cpp's converter writes it becomes the original model again.

use std::path::{Path, PathBuf};

use bundle::{Bundle, Position, Precision};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use prepare::Source;
pub(crate) use prepare::testing::Gguf;
use tempfile::TempDir;

use crate::common::{Model, prepared, refusal, tiny};

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
    let error = refusal(Source::Gguf(path.into()), Precision::F32);
    let text = error.to_string();
    assert!(error.is_bad_input() && !text.contains('\n'), "{text}");
    for part in [&["gguf"], parts].concat() {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
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

fn add_rope_factors(gguf: &mut Gguf) {
    let factors = rope_factors(5e5, 16, 8.0, 64.0);
    gguf.tensors.insert("rope_freqs.weight".into(), (GgmlDType::F32, vec![8], factors));
}

#[test]
fn a_gguf_gives_the_same_weights_as_the_directory_it_was_made_from() {
    for name in ["gpt2", "llama-gqa-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3-qknorm"] {
        let mut gguf = Gguf::from_tiny(name);
        if name == "llama3-rope-scaled" {
            add_rope_factors(&mut gguf);
        }
        let ((_a, ours), (_b, theirs)) = (gguf.prepared(), prepared(Source::Directory(tiny(name))));
        let file = "f32.safetensors";
        assert_eq!(ours.manifest().files[file].sha256, theirs.manifest().files[file].sha256, "{name}");
    }
}

#[test]
fn a_gguf_gives_the_same_configuration_as_the_directory_it_was_made_from() {
    for name in ["gpt2", "llama-gqa-tied", "qwen2-bias", "qwen3-qknorm"] {
        let (_a, ours) = Gguf::from_tiny(name).prepared();
        let (_b, theirs) = prepared(Source::Directory(tiny(name)));
        assert_eq!(ours.config(), theirs.config(), "{name}");
    }
}

#[test]
fn llama_3_scaling_is_found_again_from_its_divisors() {
    let mut gguf = Gguf::from_tiny("llama3-rope-scaled");
    add_rope_factors(&mut gguf);
    let ((_a, ours), (_b, theirs)) =
        (gguf.prepared(), prepared(Source::Directory(tiny("llama3-rope-scaled"))));
    let frequencies = |bundle: &Bundle| match &bundle.config().position {
        Position::Rotary(rotary) => bundle::rotary::inverse_frequencies(rotary, 16),
        Position::Learned => panic!("a llama rotates"),
    };
    for (ours, theirs) in frequencies(&ours).iter().zip(frequencies(&theirs)) {
        assert!((ours - theirs).abs() <= 1e-6 * theirs, "{ours} is not {theirs}");
    }
}

#[test]
fn linear_scaling_is_kept_and_other_kinds_are_refused() {
    let mut gguf = Gguf::from_tiny("llama-gqa-tied");
    gguf.metadata.insert("llama.rope.scaling.type".into(), Value::String("linear".into()));
    gguf.metadata.insert("llama.rope.scaling.factor".into(), Value::F32(4.0));
    let (_bundles, bundle) = gguf.prepared();
    let Position::Rotary(rotary) = &bundle.config().position else { panic!("a llama rotates") };
    assert_eq!((rotary.linear_factor, &rotary.llama3), (4.0, &None));
    gguf.metadata.insert("llama.rope.scaling.type".into(), Value::String("yarn".into()));
    gguf.refused(&["yarn", "linear"]);
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
        let bytes = weights.tensor("model.layers.1.mlp.down_proj.weight").unwrap().bytes.to_vec();
        let ours = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let theirs = &gguf.tensors[name].2;
        let largest = theirs.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let error = ours.zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest;
        assert!(error > 0.0 && error <= bound, "{dtype:?} is off by {error} of the largest weight");
    }
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
    with("llama.expert_count", Value::U32(8)).refused(&["experts"]);
    with("llama.logit_scale", Value::F32(2.0)).refused(&["llama.logit_scale"]);
    with("llama.rope.dimension_count", Value::U32(8)).refused(&["heads of 16", "8 are rotated"]);
    with("llama.attention.head_count", Value::String("4".into())).refused(&["head_count", "whole number"]);
    with("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)).refused(&["finite"]);
    with("llama.block_count", Value::U32(1 << 12)).refused(&["4096 layers"]);
    with("split.count", Value::U16(2)).refused(&["part", "merge"]);
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
    bytes[at..at + 4].copy_from_slice(&23u32.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    refused(&path, &["blk.0.ffn_up.weight", "IQ4_XS", "Q4_0"]);
}
