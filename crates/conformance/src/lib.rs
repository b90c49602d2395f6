//! One suite for all engines. An engine passes if it computes the same as an independent implementation.
//!
//! Only tests depend on this crate. An engine's `tests/conformance.rs` calls [`check_tiny_models`],
//! [`check_architectures`] (or [`computed_architectures`]), [`check_diffusion`] and, if it encodes,
//! [`check_encoders`] (or [`check_encoders_in_f32`]) with each of its settings, [`graphs()`] if it runs ONNX
//! files, or else [`refuses_graphs`], for variants that make a mistake [`check_growth`], [`check_converted`]
//! and [`check_padding`], and adds its own tests.

mod encoders;
mod graphs;
mod lengths;
mod logits;
mod mistakes;
mod models;
mod states;
mod suite;

use engine::{Bundle, Decode, EngineError, InferenceEngine, Precision, Settings, Want};

use crate::models::diffusion_models;

pub use encoders::{check_encoders, check_encoders_in_16_bits, check_encoders_in_f32};
pub use graphs::{graph_files, graphs, refuses_graphs};
pub use lengths::{OF_ANY_LENGTHS, check_lengths, refuses_lengths};
pub use logits::{
    TOLERANCE, argmax, check_follows, check_hidden_states, logits_in_pieces, max_abs_difference,
};
pub use mistakes::{check_converted, check_growth, check_padding};
pub use models::{
    Model, Reference, architectures, at, bundle, bundle_at, each, fixtures, tiny, tiny_models, with,
    with_options,
};
pub use suite::{check_caches, check_model, check_profile};

/// Holds an f32 engine to every tiny model, without hidden states and with them.
pub fn check_tiny_models<E: InferenceEngine + Decode>(settings: &Settings) {
    for model in tiny() {
        check_model::<E>(&model, settings);
        check_model::<E>(&model, &Settings { hidden_states: true, ..settings.clone() });
    }
}

/// Checks an f32 engine on every model with layers that differ from llama's, with each of these settings.
pub fn check_architectures<E: InferenceEngine + Decode>(each_settings: &[Settings]) {
    for model in each(architectures()) {
        for settings in each_settings {
            check_model::<E>(&model, &Settings { hidden_states: true, ..settings.clone() });
        }
    }
}

/// The models of [`architectures`] that a framework computes: these are checked, and it must refuse each
/// other one with the name of the missing feature.
pub fn computed_architectures<E: InferenceEngine + Decode>(settings: &Settings) -> Vec<String> {
    let computed = each(architectures()).filter(|model| suite::check_or_refused::<E>(model, settings));
    computed.map(|model| model.name()).collect()
}

/// Checks an f32 engine on every model with bidirectional attention, with each of these settings, and its
/// worker on the states of masked diffusion.
pub fn check_diffusion<E: InferenceEngine + Decode>(each_settings: &[Settings]) {
    for model in each(diffusion_models()) {
        for settings in each_settings {
            suite::check_both_ways::<E>(&model, &Settings { hidden_states: true, ..settings.clone() });
        }
        states::check_states::<E>(&model);
    }
}

/// Compares the kernels for 8 and 4 bits with the results of the dequantised weights.
pub fn check_quantised_kernels<E: InferenceEngine + Decode>(tolerance: f32) {
    for mut model in tiny() {
        for precision in [Precision::Int8, Precision::Int4] {
            let dequantised = Settings { dequantised: true, ..at(precision) };
            let mut exact = E::load(&model.bundle, &dequantised).expect("loads");
            let rows = model.reference.rows();
            model.reference.logits = logits_in_pieces(&mut exact, &rows, model.reference.positions);
            let mut engine = E::load(&model.bundle, &at(precision)).expect("loads");
            assert_eq!(engine.in_effect().weights, precision);
            assert!(!engine.in_effect().weight_storage.contains("emulated"));
            check_follows(&mut engine, &model.reference, tolerance, &format!("{precision}"));
        }
    }
}

/// Hidden states are refused if they were not requested at load.
pub fn check_hidden_states_are_asked_for<E: InferenceEngine + Decode>() {
    let model = Model::tiny("gpt2");
    let mut engine = E::load(&model.bundle, &at(Precision::F32)).expect("loads");
    engine.begin(1, 4).expect("begins");
    engine.append(&model.reference.tokens[..1], Want::Last).expect("appends");
    assert!(matches!(engine.hidden_states(), Err(EngineError::Unsupported(_))));
}

/// Why an engine cannot load a model with these settings.
pub fn unsupported<E: InferenceEngine>(bundle: &Bundle, settings: &Settings) -> String {
    match E::load(bundle, settings).err() {
        Some(EngineError::Unsupported(reason)) => reason,
        other => panic!("{settings:?}: {other:?}"),
    }
}

/// Why these settings make no sense to an engine.
pub fn senseless<E: InferenceEngine + Decode>(bundle: &Bundle, settings: &Settings) -> String {
    match E::load(bundle, settings).err() {
        Some(EngineError::Input(reason)) => reason,
        other => panic!("{settings:?}: {other:?}"),
    }
}
