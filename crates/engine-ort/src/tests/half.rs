//! The f16 graph, which is for GPUs. Here the CPU provider runs it, with casts around operators for which it
//! has no f16 kernels.

use conformance::{Model, check_follows, check_hidden_states, tiny, unsupported};
use onnx::Attention;
use worker::engine::{Decode, InferenceEngine, Precision, Settings, Want};

use super::{Padded, settings};
use crate::Ort;

/// Rounding weights and activations to 11 bits of mantissa moves the tiny models' results by up to 18 such
/// units.
const TOLERANCE: f32 = 32.0 / 2048.0;

fn half() -> Settings {
    Settings { precision: Precision::F16, ..settings() }
}

#[test]
fn the_f16_graph_follows_f32() {
    for Model { bundle, reference, directory: _directory, .. } in tiny() {
        let mut engine = Ort::load_with(&bundle, Attention::plan(bundle.config()), &half()).expect("loads");
        let in_effect = engine.in_effect();
        assert_eq!((&*in_effect.activations, &*in_effect.kv_cache_precision), ("f16", "f16"));
        check_follows(&mut engine, &reference, TOLERANCE, "f16");
        engine.begin(reference.batch, reference.positions).expect("begins");
        engine.append(&reference.tokens, Want::Last).expect("appends");
        check_hidden_states(&engine.hidden_states().expect("asked for"), &reference.hidden, TOLERANCE);
        let mut padded = Padded::load(&bundle, &half()).expect("loads");
        check_follows(&mut padded, &reference, TOLERANCE, "padded");
    }
}

#[test]
fn a_library_without_cuda_is_named_with_what_to_do() {
    let Model { bundle, directory: _directory, .. } = Model::tiny("gpt2");
    // No machine has this many GPUs.
    let reason = unsupported::<Ort>(&bundle, &Settings { device: "cuda:99".into(), ..half() });
    assert!(reason.contains("cuda:99") && reason.contains("onnxruntime-gpu"), "{reason}");
    let reason = unsupported::<Ort>(&bundle, &Settings { device: "cuda:0".into(), ..settings() });
    assert!(reason.contains("f16 alone"), "{reason}");
}
