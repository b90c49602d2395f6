//! The f16 graph, which is a GPU's. Here the CPU provider runs it, with casts around the operators that it has no f16
//! kernels for.

use engine::conformance::{Reference, argmax, max_abs_difference, tiny_models};
use engine::{Device, EngineError, InferenceEngine, Precision, Settings, Want};
use onnx::Attention;

use super::{Padded, prepared_at, settings};
use crate::Ort;

/// Rounding weights and activations to 11 bits of mantissa moves what the tiny models give by up to 18 such units.
const TOLERANCE: f32 = 32.0 / 2048.0;

fn half() -> Settings {
    Settings { precision: Precision::F16, cache: Precision::F16, ..settings() }
}

fn follows(engine: &mut impl InferenceEngine, reference: &Reference, vocabulary: usize) {
    for piece in [reference.positions, 1] {
        engine.begin(reference.batch, reference.positions).expect("begins");
        let mut logits = vec![Vec::new(); reference.batch];
        for start in (0..reference.positions).step_by(piece) {
            let rows = reference.tokens.chunks_exact(reference.positions);
            let tokens: Vec<u32> = rows.flat_map(|row| &row[start..start + piece]).copied().collect();
            let appended = engine.append(&tokens, Want::All).expect("appends");
            for (logits, appended) in logits.iter_mut().zip(appended.chunks_exact(piece * vocabulary)) {
                logits.extend_from_slice(appended);
            }
        }
        let logits = logits.concat();
        let difference = max_abs_difference(&logits, &reference.logits);
        assert!(difference <= TOLERANCE, "logits differ by {difference} in pieces of {piece}");
        for (ours, theirs) in logits.chunks(vocabulary).zip(reference.logits.chunks(vocabulary)) {
            let margin = theirs[argmax(theirs) as usize] - theirs[argmax(ours) as usize];
            assert!(margin <= TOLERANCE, "the chosen token's logit is {margin} lower");
        }
    }
}

#[test]
fn the_f16_graph_follows_f32() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    for model in tiny_models() {
        let bundle = prepared_at(vec![Precision::F16], &model, bundles.path());
        let (reference, config) = (Reference::read(&model), bundle.config());
        let mut engine = Ort::load_with(&bundle, Attention::plan(config), &half()).expect("loads");
        let in_effect = engine.in_effect();
        assert_eq!((in_effect.activations.as_str(), in_effect.kv_cache), ("f16", Precision::F16));
        follows(&mut engine, &reference, config.vocab_size);
        engine.begin(reference.batch, reference.positions).expect("begins");
        engine.append(&reference.tokens, Want::Last).expect("appends");
        let hidden = engine.hidden_states().expect("asked for at load");
        assert_eq!(hidden.layers.len(), reference.hidden.len());
        for (ours, theirs) in hidden.layers.iter().zip(&reference.hidden) {
            let difference = max_abs_difference(ours, theirs);
            assert!(difference <= TOLERANCE, "hidden states differ by {difference}");
        }
        let mut padded = Padded::load(&bundle, &half()).expect("loads");
        follows(&mut padded, &reference, config.vocab_size);
    }
}

#[test]
fn a_library_without_cuda_is_named_with_what_to_do() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    let model = &tiny_models()[0];
    let bundle = prepared_at(vec![Precision::F32, Precision::F16], model, bundles.path());
    let refused = |settings: Settings| match Ort::load(&bundle, &settings).err() {
        Some(EngineError::Unsupported(reason)) => reason,
        other => panic!("{other:?}"),
    };
    // No machine has this many.
    let reason = refused(Settings { device: Device::Cuda(99), ..half() });
    assert!(reason.contains("cuda:99") && reason.contains("onnxruntime-gpu"), "{reason}");
    let reason = refused(Settings { device: Device::Cuda(0), ..settings() });
    assert!(reason.contains("f16 alone"), "{reason}");
}
