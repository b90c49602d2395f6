//! Models of published shapes with drawn weights: the same everywhere, and bundles like any other.

use std::collections::BTreeMap;

use bundle::{Bundle, Precision};
use prepare::{Progress, Source, config, prepare};

use crate::common::{self, Model, Tensor, prepared, refusal, request};

fn tiny() -> Source {
    Source::parse("synthetic:llama-tiny")
}

/// A change of this hash makes two machines measure different models under one name: raise
/// `store::RECIPE` with it.
#[test]
fn what_is_drawn_is_the_same_everywhere_and_always() {
    let (_directory, bundle) = prepared(tiny());
    let files = &bundle.manifest().files;
    let expected = "c31ea0cf4db115d632249059eb5cb46f6ddd3b1a0d73858cdcba576922f4d6ac";
    assert_eq!(files["f32.safetensors"].sha256, expected);
    assert_eq!(bundle.verify("f32.safetensors").unwrap(), expected);
}

#[test]
fn the_manifest_names_kind_and_seed() {
    let (_directory, bundle) = prepared(tiny());
    let manifest = bundle.manifest();
    assert_eq!((manifest.source.kind.as_str(), manifest.source.seed), ("synthetic", Some(0)));
    assert_eq!(manifest.name, "synthetic-llama-tiny");
    assert!(manifest.files["f32.safetensors"].derived.contains("seed 0"));
    assert_eq!(bundle.tokenizer(), None);
}

/// Each precision, requested alone or last, equals the conversion of the same f32 values in a Hugging Face
/// directory.
#[test]
fn every_precision_derives_from_the_same_values_as_a_real_model_s() {
    let (directory, bundle) = prepared(tiny());
    let weights = bundle.weights(Precision::F32).unwrap();
    let mut tensors = BTreeMap::new();
    for spec in bundle.config().tensors() {
        let bytes = weights.tensor(&spec.name).unwrap().bytes.to_vec();
        tensors.insert(spec.name, Tensor { dtype: "F32".into(), shape: spec.shape, bytes });
    }
    let real = Model { config: config(&tiny(), Progress::Silent).unwrap(), tensors }.write();
    let real = Source::Directory(real.path().to_path_buf());
    for precision in Precision::MADE {
        let file = |source: &Source| {
            let made = prepare(&request(source.clone(), &[precision], directory.path())).unwrap();
            Bundle::open(made).unwrap().manifest().files[&precision.file_name()].sha256.clone()
        };
        assert_eq!(file(&tiny()), file(&real), "{precision}");
    }
}

#[test]
fn gpt2_s_shape_is_a_bundle_too() {
    let config = config(&Source::parse("synthetic:gpt2-124m"), Progress::Silent).unwrap();
    assert_eq!(bundle::ModelConfig::from_json(&config).unwrap().max_positions, 1024);
}

#[test]
fn an_unknown_name_is_answered_with_those_there_are() {
    let error = refusal(Source::parse("synthetic:llama"), Precision::F32).to_string();
    assert!(error.contains("\"llama\"") && error.contains(&prepare::synthetic_names()), "{error}");
    for name in ["llama-160m", "llama-360m", "llama-1b", "llama-3.2-1b", "gpt2-124m", "llama-70b"] {
        assert!(prepare::synthetic_names().contains(name));
    }
}

#[test]
fn the_configuration_is_known_before_anything_is_written() {
    let of_directory = config(&Source::Directory(common::tiny("gpt2")), Progress::Silent).unwrap();
    assert_eq!(of_directory["model_type"], "gpt2");
    let (_directory, bundle) = prepared(tiny());
    let of_bundle = config(&Source::Directory(bundle.directory().to_path_buf()), Progress::Silent).unwrap();
    assert_eq!(of_bundle, config(&tiny(), Progress::Silent).unwrap());
    let error = config(&Source::parse("no/such.gguf"), Progress::Silent).unwrap_err();
    assert!(error.to_string().contains("no/such.gguf"), "{error}");
}
