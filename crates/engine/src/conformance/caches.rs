//! Keys and values in each element type that they may be kept in.

use super::{Reference, TOLERANCE, max_abs_difference};
use crate::{Bundle, InferenceEngine, Precision, Settings, Want};

/// Holds an engine that computes in f32 and keeps keys and values in each element type to `reference`, one position at a
/// time and all at once. In 16 bits the logits of the tiny models move by up to some ten units of the last place.
pub fn check_caches<E: InferenceEngine>(bundle: &Bundle, reference: &Reference, settings: &Settings) {
    let mut sizes = Vec::new();
    for cache in Precision::CACHES {
        let mut engine = E::load(bundle, &Settings { cache, ..settings.clone() }).expect("loads");
        assert_eq!(engine.in_effect().kv_cache, cache, "the observed cache is the one asked for");
        let tolerance = match cache {
            Precision::Bf16 => 16.0 / 256.0,
            Precision::F16 => 16.0 / 2048.0,
            _ => TOLERANCE,
        };
        let expected = &reference.logits[..reference.logits.len() / reference.batch];
        for piece in [1, reference.positions] {
            engine.begin(1, reference.positions).expect("begins");
            let mut logits = Vec::new();
            for tokens in reference.row(0).chunks(piece) {
                logits.extend_from_slice(engine.append(tokens, Want::All).expect("appends"));
            }
            let difference = max_abs_difference(&logits, expected);
            assert!(difference <= tolerance, "cache in {cache}, {piece} at a time: {difference}");
            if cache != Precision::F32 && piece == 1 {
                assert!(difference > TOLERANCE / 100.0, "a cache in {cache} that rounds nothing");
            }
        }
        sizes.push(engine.kv_cache_bytes().expect("tells its size"));
    }
    assert_eq!(sizes, [sizes[0], sizes[0] / 2, sizes[0] / 2], "16 bits take half of 32");
}
