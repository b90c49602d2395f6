//! The reference computes the model that the engines compute, from the same numbers.

use std::collections::BTreeMap;
use std::path::Path;

use engine::conformance::{Reference, architectures, check_model, check_or_refused, tiny_models};
use engine::{Bundle, Device, EngineError, InferenceEngine, Precision, Settings, Want};
use reference_burn::Burn;

fn settings(precision: Precision) -> Settings {
    Settings {
        precision,
        cache: precision.usual_cache(),
        device: Device::Cpu,
        threads: 2,
        jit: true,
        hidden_states: true,
        dequantised: false,
        options: BTreeMap::new(),
    }
}

fn bundle(source: &Path, directory: &Path) -> Bundle {
    let request = prepare::Request {
        source: prepare::Source::Directory(source.to_owned()),
        name: None,
        precisions: vec![Precision::F32, Precision::Bf16, Precision::F16, Precision::Int8],
        bundles: directory.into(),
        progress: prepare::Progress::Silent,
    };
    Bundle::open(prepare::prepare(&request).expect("prepares")).expect("opens")
}

#[test]
fn every_tiny_model_conforms() {
    for model in tiny_models() {
        let directory = tempfile::tempdir().unwrap();
        let bundle = bundle(&model, directory.path());
        check_model::<Burn>(&bundle, &Reference::read(&model), &settings(Precision::F32));
    }
}

/// 8 bits of mantissa, over three layers.
#[test]
fn half_precisions_are_close_to_f32_and_are_what_is_held() {
    for model in tiny_models() {
        let directory = tempfile::tempdir().unwrap();
        let (bundle, reference) = (bundle(&model, directory.path()), Reference::read(&model));
        let largest = reference.logits.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
        for (precision, share) in [(Precision::F16, 0.01), (Precision::Bf16, 0.08)] {
            let mut burn = Burn::load(&bundle, &settings(precision)).unwrap();
            let in_effect = burn.in_effect();
            assert_eq!((in_effect.weights, in_effect.kv_cache), (precision, precision));
            burn.begin(reference.batch, reference.positions).unwrap();
            let logits = burn.append(&reference.tokens, Want::All).unwrap();
            let difference = engine::conformance::max_abs_difference(logits, &reference.logits);
            assert!(difference <= share * largest, "{precision}: {difference} of {largest}");
        }
    }
}

#[test]
fn what_is_beyond_a_plain_layer_is_refused_by_its_name() {
    for model in architectures() {
        let directory = tempfile::tempdir().unwrap();
        let (bundle, reference) = (bundle(&model, directory.path()), Reference::read(&model));
        assert!(!check_or_refused::<Burn>(&bundle, &reference, &settings(Precision::F32)), "{model:?}");
    }
}

#[test]
fn what_the_reference_cannot_do_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let bundle = bundle(&tiny_models()[0], directory.path());
    let refused = |settings: Settings, word: &str| {
        let refused = Burn::load(&bundle, &settings).expect_err("is refused");
        assert!(matches!(&refused, EngineError::Unsupported(reason) if reason.contains(word)), "{refused}");
    };
    refused(settings(Precision::Int8), "quantised");
    refused(Settings { device: Device::Cuda(0), ..settings(Precision::F32) }, "CPU");
    refused(Settings { dequantised: true, ..settings(Precision::F32) }, "own way");
}
