//! The reference computes the model that the engines compute, from the same numbers.

use conformance::{
    Model, at, check_encoders_in_f32, check_model, computed_architectures, graphs, tiny, unsupported,
};
use reference_tract::Tract;
use worker::engine::{Precision, Settings};

fn settings() -> Settings {
    Settings { hidden_states: true, ..at(Precision::F32) }
}

/// Every architecture, with hidden states on two threads, and on one without.
#[test]
fn tiny_models_match_the_reference() {
    let alone = Settings { threads: 1, ..at(Precision::F32) };
    for model in tiny() {
        check_model::<Tract>(&model, &settings());
        check_model::<Tract>(&model, &alone);
    }
}

#[test]
fn architectures_conform_or_are_refused_by_the_feature_s_name() {
    assert_eq!(computed_architectures::<Tract>(&settings()), ["granite", "olmo2", "phi3", "smollm3"]);
}

#[test]
fn encoders_match_the_reference() {
    let alone = Settings { threads: 1, ..at(Precision::F32) };
    let refused = check_encoders_in_f32::<Tract>(&[at(Precision::F32), alone]);
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn onnx_files_give_the_outputs_of_the_reference() {
    // It gives every If one name and takes no name twice; it has no Loop.
    graphs::<Tract>(&["if-twice", "loop"]);
}

#[test]
fn what_it_cannot_do_is_refused_with_a_reason() {
    let model = Model::tiny("gpt2");
    let refused = |settings: Settings| unsupported::<Tract>(&model.bundle, &settings);
    for precision in [Precision::Bf16, Precision::F16, Precision::Int8, Precision::Int4, Precision::Nf4] {
        assert!(refused(Settings { precision, ..settings() }).contains("tract"));
    }
    assert!(refused(Settings { jit: false, ..settings() }).contains("optimiser"));
    assert!(refused(Settings { device: "cuda:0".into(), ..settings() }).contains("CUDA"));
}
