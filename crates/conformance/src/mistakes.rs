//! Variants of engines that make a common mistake: they compute the same as others, and report the mistake.

use bundle::Pooling;
use engine::{Decode, EncodeTask, InferenceEngine, KvCachePolicy, Precision, Settings, Texts, Want};

use crate::logits::{TOLERANCE, check_follows, max_abs_difference};
use crate::models::{Model, at, bundle_at, fixtures, tiny, with, with_options};
use crate::{senseless, unsupported};

/// A KV cache that grows holds keys and values of exactly the positions that were appended.
pub fn check_growth<E: InferenceEngine + Decode>(settings: &Settings) {
    let model = Model::tiny("llama-gqa-tied");
    let Model { bundle, reference, .. } = &model;
    let mut engine = E::load(bundle, settings).expect("loads");
    assert_eq!(engine.in_effect().kv_cache_policy, KvCachePolicy::Growing);
    let config = bundle.config();
    let element = engine.in_effect().kv_cache.element().bytes();
    let least = (2 * config.layers * config.kv_heads * config.head_dim * element) as u64;
    for batch in [1, 2, 2] {
        engine.begin(batch, reference.positions).expect("begins");
        assert_eq!(engine.kv_cache_bytes(), Some(0), "nothing is preallocated");
        let mut each = Vec::new();
        for (appended, positions) in [(3, 3), (1, 4), (2, 6)] {
            engine.append(&reference.tokens[..batch * appended], Want::Last).expect("appends");
            let bytes = engine.kv_cache_bytes().expect("tells its size");
            assert_eq!(bytes % (batch * positions) as u64, 0, "room of no position");
            each.push(bytes / (batch * positions) as u64);
        }
        assert!(each.iter().all(|&bytes| bytes == each[0] && bytes >= least), "{each:?} bytes a position");
    }
}

/// Weights of 16 bits that are converted for every product give f32's results, and are reported as converted;
/// with other weights there is nothing to convert. Keys and values are in f32, as in all engines then.
pub fn check_converted<E: InferenceEngine + Decode>(tolerances: &[(Precision, f32)]) {
    let converted =
        |precision| with(Settings { cache: Precision::F32, ..at(precision) }, &[("weights", "converted")]);
    for model in tiny() {
        for &(precision, tolerance) in tolerances {
            let mut engine = E::load(&model.bundle, &converted(precision)).expect("loads");
            let in_effect = engine.in_effect();
            assert_eq!(in_effect.weights, precision);
            let storage = in_effect.weight_storage;
            assert!(storage.contains("converted to f32 for every product"), "{storage}");
            check_follows(&mut engine, &model.reference, tolerance, &format!("{precision}, converted"));
        }
    }
    let model = Model::tiny("gpt2");
    for precision in [Precision::F32, Precision::Int8, Precision::Int4, Precision::Nf4] {
        let reason = unsupported::<E>(&model.bundle, &converted(precision));
        assert!(reason.contains(&format!("nothing to convert at {precision}")), "{reason}");
    }
}

/// The effect of each value of the option `padded` on three texts of 1, 3 and 1 tokens, of a model with 130
/// positions: the reported kernels, and the computed positions. Vectors are the same without padding. A
/// decoder has no texts to pad, and an encoder no cache to grow.
pub fn check_padding<E: InferenceEngine + Decode>(padded: &[(&str, &str, usize)]) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = fixtures().with_file_name("encoders").join("bert");
    let bundle = bundle_at(&source, directory.path(), &[Precision::F32]);
    let task = EncodeTask::Embed { pooling: Pooling::Max, normalise: false };
    let found = |option: &str| {
        let mut engine = E::load(&bundle, &with_options(&[("padded", option)])).expect("loads");
        let kernels = engine.in_effect().kernels.join(", ");
        let encoder = engine.encode().expect("encodes");
        let texts = Texts { tokens: &[5, 6, 7, 8, 9], types: &[], lengths: &[1, 3, 1] };
        let vectors = encoder.encode(texts, task).expect("encodes").to_vec();
        (kernels, encoder.positions(), vectors)
    };
    let (_, _, unpadded) = found("false");
    for &(option, said, computed) in padded {
        let (kernels, positions, vectors) = found(option);
        assert!(kernels.contains(said), "{option}: {kernels}");
        assert_eq!(positions, computed, "{option}");
        assert!(max_abs_difference(&vectors, &unpadded) <= TOLERANCE, "{option}");
    }
    let decoder = Model::tiny("gpt2");
    for (option, bundle, reason) in [
        (("padded", "512"), &decoder.bundle, "option padded is for encoders"),
        (("padded", "0"), &bundle, "true, false or a number of tokens"),
        (("cache", "growing"), &bundle, "option cache is for models that continue texts"),
    ] {
        let found = senseless::<E>(bundle, &with_options(&[option]));
        assert!(found.contains(reason), "{found}");
    }
}
