//! Models that hear, in 16 bits and in a profile.

use conformance::{Model, at, each, hearing_models, max_abs_difference, with};
use onnx::Attention;
use worker::engine::{Bundle, Decode, InferenceEngine, Precision, Settings, Want};

use super::settings;
use crate::Ort;

/// Logits of a prompt and a step after it, for any audio.
fn heard(engine: &mut Ort, bundle: &Bundle) -> Vec<f32> {
    let numbers = bundle.config().audio.expect("it hears").numbers();
    let frames: Vec<f32> = (0..numbers).map(|place| (place as f32 * 0.37).sin()).collect();
    engine.begin(1, 4).expect("begins");
    engine.listen(&frames).expect("listens");
    let prompt = engine.append(&[3, 5, 7], Want::All).expect("appends").to_vec();
    [&prompt, engine.append(&[9], Want::Last).expect("appends")].concat()
}

#[test]
fn what_is_heard_in_16_bits_follows_f32() {
    for Model { bundle, directory: _directory, .. } in each(hearing_models()) {
        let mut wide = Ort::load(&bundle, &settings()).expect("loads");
        let expected = heard(&mut wide, &bundle);
        let converted = |precision| {
            let settings = Settings { kv_precision: Some(Precision::F32), ..at(precision) };
            Ort::load(&bundle, &with(settings, &[("weights", "converted")])).expect("loads")
        };
        let plan = Attention::plan(bundle.config());
        let narrow = Ort::load_with(&bundle, plan, &at(Precision::F16)).expect("loads");
        let [bf16, f16] = [(Precision::Bf16, 256.0), (Precision::F16, 2048.0)];
        for (mut engine, steps) in [(converted(bf16.0), bf16.1), (converted(f16.0), f16.1), (narrow, f16.1)] {
            let difference = max_abs_difference(&heard(&mut engine, &bundle), &expected);
            assert!(difference <= 32.0 / steps, "{steps} steps: differs by {difference}");
        }
    }
}

#[test]
fn a_traced_run_tells_the_parts_of_both_sessions() {
    let model = each(hearing_models()).next().expect("a model");
    let settings = Ort::profiled(settings(), model.directory.path());
    let mut engine = Ort::load(&model.bundle, &settings).expect("loads");
    heard(&mut engine, &model.bundle);
    let events = engine.end_profile().expect("ends").events;
    let encoder = ["embedding", "layer 1 attention", "layer 1 mlp", "final norm", "keys and values"];
    let decoder = ["layer 2 attention norm", "layer 2 attention", "head"].map(str::to_owned);
    for part in encoder.map(|part| format!("audio {part}")).into_iter().chain(decoder) {
        assert!(events.iter().any(|event| event.part.as_deref() == Some(&part)), "{part}");
    }
}
