//! The reference computes the model that the engines compute, from the same numbers.

use conformance::{
    Model, at, check_model, computed_architectures, logits_in_pieces, max_abs_difference, tiny, unsupported,
};
use reference_burn::Burn;
use worker::engine::{InferenceEngine, Precision, Settings};

fn settings(precision: Precision) -> Settings {
    Settings { hidden_states: true, ..at(precision) }
}

#[test]
fn every_tiny_model_conforms() {
    for model in tiny() {
        check_model::<Burn>(&model, &settings(Precision::F32));
    }
}

/// 8 bits of mantissa, over three layers.
#[test]
fn half_precisions_are_close_to_f32_and_are_what_is_held() {
    for Model { bundle, reference, directory: _directory, .. } in tiny() {
        let largest = reference.logits.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
        for (precision, share) in [(Precision::F16, 0.01), (Precision::Bf16, 0.08)] {
            let mut burn = Burn::load(&bundle, &settings(precision)).unwrap();
            let in_effect = burn.in_effect();
            assert_eq!([&*in_effect.precision, &*in_effect.kv_cache_precision], [precision.name(); 2]);
            let logits = logits_in_pieces(&mut burn, &reference.rows(), reference.positions);
            let difference = max_abs_difference(&logits, &reference.logits);
            assert!(difference <= share * largest, "{precision}: {difference} of {largest}");
        }
    }
}

#[test]
fn what_is_beyond_a_plain_layer_is_refused_by_its_name() {
    assert_eq!(computed_architectures::<Burn>(&settings(Precision::F32)), [""; 0]);
}

#[test]
fn what_the_reference_cannot_do_is_refused_with_the_reason() {
    let model = Model::tiny("gpt2");
    for (settings, word) in [
        (settings(Precision::Int8), "quantised"),
        (Settings { device: "cuda:0".into(), ..settings(Precision::F32) }, "CPU"),
        (Settings { dequantised: true, ..settings(Precision::F32) }, "own way"),
    ] {
        let reason = unsupported::<Burn>(&model.bundle, &settings);
        assert!(reason.contains(word), "{reason}");
    }
}
