//! The checks of one engine on one model. Each function panics with the broken rule.

use std::collections::BTreeSet;
use std::ops::Range;

use engine::{Bundle, Decode, EngineError, InferenceEngine, KvCachePolicy, Precision, Settings, Want};

use crate::lengths;
use crate::logits::{TOLERANCE, argmax, check_hidden_states, logits_in_pieces, max_abs_difference};
use crate::models::{Model, Reference};

/// Holds an f32 engine to a model's reference.
pub fn check_model<E: InferenceEngine + Decode>(model: &Model, settings: &Settings) {
    let Model { bundle, reference, .. } = model;
    let mut engine = E::load(bundle, settings).expect("loads");
    assert_eq!(engine.in_effect().weights, settings.precision, "observed precision is the one asked for");
    assert_eq!(engine.in_effect().threads, settings.threads, "observed threads are those asked for");
    logits_match(&mut engine, reference, reference.positions, 0..reference.batch);
    hidden_states_match(&mut engine, reference, settings);
    last_is_the_last_of_all(&mut engine, reference);
    // In one piece, in pieces, and token by token, in a batch and alone.
    for piece in [1, 5, reference.positions / 2, reference.positions - 1] {
        logits_match(&mut engine, reference, piece, 0..1);
        logits_match(&mut engine, reference, piece, 0..reference.batch);
    }
    a_batch_gives_what_each_gives_alone(&mut engine, reference);
    lengths::prompts_of_any_lengths_give_what_each_gives_alone(&mut engine, reference);
    greedy_matches(&mut engine, bundle, reference);
    kv_cache_is_at_least_what_it_must_be(&mut engine, bundle, reference);
    bad_input_is_refused(&mut engine, bundle, reference);
    // After all of that, and after the errors, the engine still computes the same.
    logits_match(&mut engine, reference, reference.positions, 0..reference.batch);
}

/// Holds a framework that does not compute every feature to the reference where it computes all of the model's; else it
/// must refuse the model by name, or a context longer than the model's window. Says whether it computed the model.
pub(crate) fn check_or_refused<E: InferenceEngine + Decode>(model: &Model, settings: &Settings) -> bool {
    let refused = |error: Option<EngineError>| match error {
        Some(EngineError::Unsupported(reason)) => assert!(reason.contains("does not compute"), "{reason}"),
        other => panic!("a feature that is not computed is refused: {other:?}"),
    };
    let mut engine = match E::load(&model.bundle, settings) {
        Ok(engine) => engine,
        Err(error) => {
            refused(Some(error));
            return false;
        }
    };
    if let Some(window) = model.bundle.config().form.window {
        engine.begin(1, window).expect("within its window a model runs");
        refused(engine.begin(1, window + 1).err());
        return false;
    }
    drop(engine);
    check_model::<E>(model, settings);
    true
}

/// Holds an f32 engine to the reference of a model that attends both ways, as [`check_model`] does others.
pub(crate) fn check_both_ways<E: InferenceEngine + Decode>(model: &Model, settings: &Settings) {
    let reference = &model.reference;
    let mut engine = E::load(&model.bundle, settings).expect("loads");
    assert_eq!(engine.in_effect().kv_cache_policy, KvCachePolicy::None, "nothing is kept between passes");
    assert_eq!(engine.kv_cache_bytes(), None, "there is no cache to speak of");
    logits_match(&mut engine, reference, reference.positions, 0..reference.batch);
    hidden_states_match(&mut engine, reference, settings);
    last_is_the_last_of_all(&mut engine, reference);
    for sequence in 0..reference.batch {
        logits_match(&mut engine, reference, reference.positions, sequence..sequence + 1);
    }
    let first = reference.rows()[0];
    engine.begin(1, first.len()).expect("begins");
    engine.append(&first[..1], Want::Last).expect("one position attends to itself");
    match engine.append(&first[1..2], Want::Last) {
        Err(EngineError::Input(_)) => {}
        other => panic!(
            "a second piece is refused, since the first would have to see it: {:?}",
            other.map(<[f32]>::len)
        ),
    }
    logits_match(&mut engine, reference, reference.positions, 0..reference.batch);
}

/// Compares an engine that computes in f32 with a model's reference, with keys and values in each element
/// type, one position at a time and all at once. In 16 bits the logits of the tiny models move by up to some
/// ten units of the last place.
pub fn check_caches<E: InferenceEngine + Decode>(model: &Model, settings: &Settings) {
    let reference = &model.reference;
    let expected = &reference.logits[..reference.logits.len() / reference.batch];
    let mut sizes = Vec::new();
    for cache in Precision::CACHES {
        let mut engine = E::load(&model.bundle, &Settings { cache, ..settings.clone() }).expect("loads");
        assert_eq!(engine.in_effect().kv_cache, cache, "the observed cache is the one asked for");
        let tolerance = match cache {
            Precision::Bf16 => 16.0 / 256.0,
            Precision::F16 => 16.0 / 2048.0,
            _ => TOLERANCE,
        };
        for piece in [1, reference.positions] {
            let logits = logits_in_pieces(&mut engine, &reference.rows()[..1], piece);
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

/// These of the reference's sequences together, so many positions at a time.
fn logits_match<E: InferenceEngine + Decode>(
    engine: &mut E,
    r: &Reference,
    piece: usize,
    sequences: Range<usize>,
) {
    let each = r.logits.len() / r.batch;
    let logits = logits_in_pieces(engine, &r.rows()[sequences.clone()], piece);
    let difference = max_abs_difference(&logits, &r.logits[sequences.start * each..sequences.end * each]);
    assert!(
        difference <= TOLERANCE,
        "pieces of {piece}, sequences {sequences:?}: logits differ by {difference}"
    );
}

fn hidden_states_match<E: InferenceEngine + Decode>(engine: &mut E, r: &Reference, settings: &Settings) {
    if !settings.hidden_states {
        return;
    }
    engine.begin(r.batch, r.positions).expect("begins");
    engine.append(&r.tokens, Want::Last).expect("appends");
    match engine.hidden_states() {
        Err(EngineError::Unsupported(reason)) => assert!(!reason.is_empty(), "a refusal has a reason"),
        Err(other) => panic!("hidden states: {other}"),
        Ok(hidden) => check_hidden_states(&hidden, &r.hidden, TOLERANCE),
    }
}

fn last_is_the_last_of_all<E: InferenceEngine + Decode>(engine: &mut E, r: &Reference) {
    let vocabulary = r.logits.len() / r.tokens.len();
    engine.begin(r.batch, r.positions).expect("begins");
    let logits = engine.append(&r.tokens, Want::Last).expect("appends");
    let last = r.logits.chunks_exact(r.positions * vocabulary).flat_map(|all| &all[all.len() - vocabulary..]);
    let difference = max_abs_difference(logits, &last.copied().collect::<Vec<_>>());
    assert!(difference <= TOLERANCE, "last logits differ by {difference}");
}

fn a_batch_gives_what_each_gives_alone<E: InferenceEngine + Decode>(engine: &mut E, r: &Reference) {
    // Four different prompts of one length, cut from the reference's two rows.
    let length = r.positions / 2;
    let prompts: Vec<&[u32]> =
        (0..4).map(|i| &r.rows()[i % 2][(i / 2) * length..(i / 2 + 1) * length]).collect();
    let together = logits_in_pieces(engine, &prompts, length);
    let alone = prompts.iter().flat_map(|prompt| logits_in_pieces(engine, &[prompt], length));
    let difference = max_abs_difference(&alone.collect::<Vec<_>>(), &together);
    assert!(difference <= TOLERANCE, "a batch of four differs by {difference}");
}

fn greedy_matches<E: InferenceEngine + Decode>(engine: &mut E, bundle: &Bundle, r: &Reference) {
    let capacity = (r.positions + r.greedy.len()).min(bundle.config().max_positions);
    engine.begin(1, capacity).expect("begins");
    let mut next = argmax(engine.append(r.rows()[0], Want::Last).expect("appends"));
    for (step, &expected) in r.greedy.iter().enumerate() {
        assert_eq!(next, expected, "greedy token {step}");
        if step + 1 < r.greedy.len() {
            next = argmax(engine.append(&[next], Want::Last).expect("appends"));
        }
    }
}

/// The size of the KV cache, where an engine reports one. It must hold keys and values of every filled position, in
/// the element type that the engine reports, and as much for each sequence. It may hold more: kernels want heads
/// padded, and a cache that grows may have room ahead. A preallocated cache has all of its size from the beginning.
fn kv_cache_is_at_least_what_it_must_be<E: InferenceEngine + Decode>(
    engine: &mut E,
    bundle: &Bundle,
    r: &Reference,
) {
    let config = bundle.config();
    let element = engine.in_effect().kv_cache.element().bytes();
    let least =
        |batch: usize| 2 * config.layers * batch * config.kv_heads * config.head_dim * r.positions * element;
    let mut told = Vec::new();
    for batch in [1, 2] {
        engine.begin(batch, r.positions).expect("begins");
        let begun = engine.kv_cache_bytes();
        engine.append(&r.tokens[..batch * r.positions], Want::Last).expect("appends");
        let Some(bytes) = engine.kv_cache_bytes() else { return };
        assert!(bytes >= least(batch) as u64, "a KV cache of {bytes} bytes cannot hold {}", least(batch));
        if engine.in_effect().kv_cache_policy == KvCachePolicy::Preallocated {
            assert_eq!(begun, Some(bytes), "a preallocated KV cache is of one size throughout");
        }
        // A hybrid of engines that cannot share a cache has two.
        let has_two = engine.hybrid().is_some_and(|hybrid| hybrid.obstacle.is_some());
        told.push(if has_two { bytes / 2 } else { bytes });
    }
    assert_eq!(told[1], 2 * told[0], "two sequences take twice the KV cache of one");
}

fn bad_input_is_refused<E: InferenceEngine + Decode>(engine: &mut E, bundle: &Bundle, r: &Reference) {
    let config = bundle.config();
    let refused = |result: Result<(), EngineError>, rule: &str| match result {
        Err(EngineError::Input(_)) => {}
        other => panic!("{rule}: {other:?}"),
    };
    refused(engine.begin(1, config.max_positions + 1), "a cache beyond the model's context is refused");
    refused(engine.begin(0, 1), "an empty batch is refused");
    engine.begin(1, 4).expect("begins");
    let outside = config.vocab_size as u32;
    refused(engine.append(&[outside], Want::Last).map(|_| ()), "a token outside the vocabulary is refused");
    refused(engine.append(&[], Want::Last).map(|_| ()), "nothing to append is refused");
    refused(
        engine.append(&r.rows()[0][..5], Want::Last).map(|_| ()),
        "tokens beyond the capacity are refused",
    );
    engine.append(&r.rows()[0][..4], Want::Last).expect("exactly the capacity fits");
}

/// Checks a framework's own profiler over a prefill and a decode step: each part of the model has events in
/// both, every event is complete, and it ends once. `in_layer` are the names of a layer's parts. `settings`
/// are those of [`InferenceEngine::profiled`].
pub fn check_profile<E: InferenceEngine + Decode>(bundle: &Bundle, settings: &Settings, in_layer: &[&str]) {
    let mut engine = E::load(bundle, settings).expect("loads");
    engine.begin_profile().expect("has a profiler");
    engine.begin(1, 3).expect("begins");
    engine.append(&[1, 2], Want::Last).expect("appends");
    engine.append(&[3], Want::Last).expect("appends");
    let profile = engine.end_profile().expect("ends");
    for event in &profile.events {
        assert!(!event.name.is_empty() && !event.thread.is_empty() && event.start_ns > 0, "{event:?}");
    }
    let layers = 0..bundle.config().layers;
    let in_layers = layers.flat_map(|layer| in_layer.iter().map(move |part| format!("layer {layer}{part}")));
    for part in ["embedding", "final norm", "head"].map(str::to_owned).into_iter().chain(in_layers) {
        let told = profile.events.iter().filter(|event| event.part.as_ref() == Some(&part));
        let starts: BTreeSet<u64> = told.map(|event| event.start_ns).collect();
        assert!(starts.len() >= 2, "{part} is computed in both steps and told at {starts:?}");
    }
    assert!(engine.end_profile().is_err(), "a profile ends once");
}
