//! Encoders with quantised weights, and refusals.

use std::fs;
use std::path::Path;

use bundle::Pooling;
use conformance::{bundle, fixtures, max_abs_difference, unsupported, with};
use serde_json::Value;
use worker::engine::{
    Bundle, EncodeTask, EngineError, InferenceEngine, KvCachePolicy, Precision, Settings, Texts,
};

use super::quantised::{QUANTISED, at, dequantise_in_place};
use super::settings;
use crate::Ort;

/// A multiple of the group size of every precision.
const INTERMEDIATE: usize = 96;
const LENGTHS: [usize; 3] = [7, 1, 12];

/// A tiny encoder with fewer rows in the middle of its MLPs, at every precision.
fn narrowed(directory: &Path, model: &str) -> Bundle {
    altered(directory, model, None)
}

/// The same, with this activation if there is one.
fn altered(directory: &Path, model: &str, activation: Option<&str>) -> Bundle {
    let source = directory.join(activation.unwrap_or(model));
    let model = fixtures().with_file_name("encoders").join(model);
    fs::create_dir(&source).expect("a directory");
    let text = fs::read_to_string(model.join("config.json")).expect("readable");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    let old = config["intermediate_size"].take().as_u64().expect("a number");
    config["intermediate_size"] = INTERMEDIATE.into();
    if let Some(activation) = activation {
        config["hidden_act"] = activation.into();
    }
    fs::write(source.join("config.json"), config.to_string()).expect("writable");
    let file = fs::read(model.join("model.safetensors")).expect("readable");
    let (size, rest) = file.split_first_chunk().expect("a size");
    let (header, data) = rest.split_at(u64::from_le_bytes(*size) as usize);
    let mut header: Value = serde_json::from_slice(header).expect("JSON");
    let mut kept = Vec::new();
    for (name, tensor) in header.as_object_mut().expect("tensors") {
        if name == "__metadata__" {
            continue;
        }
        let start = tensor["data_offsets"][0].as_u64().expect("a number") as usize;
        let sizes = tensor["shape"].as_array_mut().expect("sizes");
        // Twice as many rows if gate and up are in one tensor.
        for size in sizes {
            for count in [1, 2] {
                if *size == old * count {
                    *size = (INTERMEDIATE as u64 * count).into();
                }
            }
        }
        let sizes = tensor["shape"].as_array().expect("sizes");
        let numbers: u64 = sizes.iter().filter_map(Value::as_u64).product();
        tensor["data_offsets"] = vec![kept.len(), kept.len() + 4 * numbers as usize].into();
        kept.extend_from_slice(&data[start..start + 4 * numbers as usize]);
    }
    let header = header.to_string().into_bytes();
    let size = (header.len() as u64).to_le_bytes();
    fs::write(source.join("model.safetensors"), [&size[..], &header, &kept].concat()).expect("writable");
    bundle(&source, directory)
}

/// The scores of a few texts, or their vectors if the model has no head, and the kernel of products.
fn encode(bundle: &Bundle, settings: &Settings) -> (Vec<f32>, String) {
    let mut engine = Ort::load(bundle, settings).expect("loads");
    let tokens: Vec<u32> = (0..LENGTHS.iter().sum::<usize>() as u32).map(|i| i * 37 % 199).collect();
    let texts = Texts { tokens: &tokens, types: &[], lengths: &LENGTHS };
    let encoder = engine.encode().expect("encodes");
    let task = match bundle.config().head() {
        Some(_) => EncodeTask::Score,
        None => EncodeTask::Embed { pooling: Pooling::Mean, normalise: false },
    };
    let vectors = encoder.encode(texts, task).expect("encodes").to_vec();
    assert_eq!(encoder.positions(), LENGTHS.len() * 12);
    let in_effect = engine.in_effect();
    assert_eq!(in_effect.precision, settings.precision.name());
    assert_eq!(in_effect.kv_cache, KvCachePolicy::None);
    (vectors, in_effect.kernels[0].to_string())
}

/// How far rounding activations to 8 bits may move vectors with components up to 3.
const ROUNDED: f32 = 0.2;

#[test]
fn quantised_encoders_give_what_their_dequantised_weights_give() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for model in ["bert", "bert-rank", "bert-tokens", "mpnet", "modernbert", "qwen3-embed"] {
        let bundle = narrowed(directory.path(), model);
        for precision in QUANTISED {
            dequantise_in_place(&bundle, precision);
            let (expected, _) = encode(&bundle, &settings());
            let (exact, kernel) = encode(&bundle, &at(precision, true));
            assert!(kernel.contains("FusedMatMul"), "{kernel}");
            let difference = max_abs_difference(&exact, &expected);
            assert!(difference <= 1e-5, "{model} in {precision} dequantised differs by {difference}");
            for jit in [true, false] {
                let (fast, kernel) = encode(&bundle, &Settings { jit, ..at(precision, false) });
                assert!(kernel.contains("MatMulNBits") || kernel.contains("MatMulBnb4"), "{kernel}");
                let difference = max_abs_difference(&fast, &expected);
                println!("{model} in {precision}: {difference}");
                assert!(difference <= ROUNDED, "{model} in {precision} differs by {difference}");
            }
        }
    }
}

#[test]
fn padding_in_all_layers_is_reported_and_changes_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for model in ["bert-tokens", "modernbert"] {
        let bundle = narrowed(directory.path(), model);
        let padded = with(settings(), &[("padded", "true")]);
        let [usual, found] = [settings(), padded.clone()].map(|settings| encode(&bundle, &settings).0);
        let difference = max_abs_difference(&usual, &found);
        assert!(difference <= 1e-5, "{model} differs by {difference}");
        let kernels = Ort::load(&bundle, &padded).expect("loads").in_effect().kernels.join(", ");
        assert!(kernels.contains(" texts padded to the longest"), "{kernels}");
        assert!(!kernels.contains("unpadded"), "{kernels}");
    }
}

#[test]
fn every_activation_is_in_the_graph() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let vectors =
        |activation: &str| encode(&altered(directory.path(), "bert", Some(activation)), &settings()).0;
    let gelu = vectors("gelu");
    let differences = ["gelu_new", "silu", "relu"].map(|other| max_abs_difference(&vectors(other), &gelu));
    let [tanh, silu, relu] = differences;
    assert!((1e-6..0.02).contains(&tanh) && silu > tanh && relu > tanh, "{differences:?}");
}

#[test]
fn an_encoder_continues_nothing_and_is_on_a_cpu_alone() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bundle = narrowed(directory.path(), "bert");
    let mut engine = Ort::load(&bundle, &settings()).expect("loads");
    assert!(matches!(engine.decode().map(|_| ()), Err(EngineError::Input(_))));
    let half = Settings { precision: Precision::F16, ..settings() };
    let reason = unsupported::<Ort>(&bundle, &half);
    assert!(reason.contains("f16 matrix product"), "{reason}");
    let reason = unsupported::<Ort>(&bundle, &Settings { device: "cuda:0".into(), ..half });
    assert!(reason.contains("on a CPU alone"), "{reason}");
}
