//! One suite for all engines. An engine that passes computes what an independent implementation computed.
//!
//! An engine's `tests/conformance.rs` prepares the models under `crates/engine/fixtures/tiny` and calls
//! [`check_model`] for each. The references there come from Hugging Face transformers in f32; they
//! hold `input_ids` [2, T], `logits` [2, T, V], `hidden.0` … `hidden.L` [2, T, H] and `greedy` (16
//! tokens after row 0).
//!
//! Models that attend both ways ([`diffusion_models`], [`check_both_ways`]) have no `greedy`: `prompt` and
//! `states.ALGORITHM` are for `worker`'s suite, since the worker chooses tokens.

mod caches;

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

pub use caches::check_caches;

use crate::{Bundle, EngineError, InferenceEngine, KvCachePolicy, Settings, Want};

/// How far two computations of the same f32 logits may be apart: the largest absolute difference.
/// The order of summation differs between frameworks; 2e-4 is some hundred times the effect seen on
/// the tiny models, and far below what any wrong operation does to them.
pub const TOLERANCE: f32 = 2e-4;

/// Where the tiny reference models lie in a checkout: Hugging Face directories with a
/// `reference.safetensors` each.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny")
}

/// Directories of all the tiny models that go token by token.
pub fn tiny_models() -> Vec<PathBuf> {
    directories(&fixtures())
}

/// Directories of tiny models whose layers are otherwise than llama's. Texts of those with a window are longer than it.
pub fn architectures() -> Vec<PathBuf> {
    directories(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/architectures"))
}

/// Directories of the tiny models that generate by masked diffusion.
pub fn diffusion_models() -> Vec<PathBuf> {
    directories(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/diffusion"))
}

fn directories(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).expect("the fixtures are part of the checkout");
    let mut models: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    models.sort();
    models
}

/// Reference outputs of one tiny model.
pub struct Reference {
    pub batch: usize,
    pub positions: usize,
    /// `[batch, positions]`
    pub tokens: Vec<u32>,
    /// `[batch, positions, vocabulary]`
    pub logits: Vec<f32>,
    /// As in [`crate::HiddenStates`].
    pub hidden: Vec<Vec<f32>>,
    /// None where the model does not go token by token.
    pub greedy: Vec<u32>,
}

impl Reference {
    pub fn read(model: &Path) -> Reference {
        let path = model.join("reference.safetensors");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).expect("a valid reference file");
        let floats = |name: &str| -> Option<Vec<f32>> {
            let tensor = file.tensor(name).ok()?;
            assert_eq!(tensor.dtype(), Dtype::F32);
            let numbers = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            Some(numbers.collect())
        };
        let ids = |name: &str| -> Option<Vec<u32>> {
            let data = file.tensor(name).ok()?.data().to_vec();
            Some(data.chunks_exact(8).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        };
        let shape = file.tensor("input_ids").expect("present").shape().to_vec();
        Reference {
            batch: shape[0],
            positions: shape[1],
            tokens: ids("input_ids").expect("present"),
            logits: floats("logits").expect("present"),
            hidden: (0..).map_while(|layer| floats(&format!("hidden.{layer}"))).collect(),
            greedy: ids("greedy").unwrap_or_default(),
        }
    }

    /// The tokens of one sequence.
    fn row(&self, index: usize) -> &[u32] {
        &self.tokens[index * self.positions..(index + 1) * self.positions]
    }
}

/// Largest absolute difference; infinite where the lengths differ or a number is not finite.
pub fn max_abs_difference(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() || a.iter().chain(b).any(|x| !x.is_finite()) {
        return f32::INFINITY;
    }
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

/// Holds an f32 engine on `bundle` to `reference`. Panics with the rule that was broken.
pub fn check_model<E: InferenceEngine>(bundle: &Bundle, reference: &Reference, settings: &Settings) {
    let mut engine = E::load(bundle, settings).expect("loads");
    assert_eq!(engine.in_effect().weights, settings.precision, "observed precision is the one asked for");
    assert_eq!(engine.in_effect().threads, settings.threads, "observed threads are those asked for");
    all_positions_match(&mut engine, reference);
    if settings.hidden_states {
        hidden_states_match(&mut engine, reference);
    }
    last_is_the_last_of_all(&mut engine, reference);
    pieces_equal_the_whole(&mut engine, reference);
    a_batch_gives_what_each_gives_alone(&mut engine, reference);
    greedy_matches(&mut engine, bundle, reference);
    kv_cache_is_at_least_what_it_must_be(&mut engine, bundle, reference);
    bad_input_is_refused(&mut engine, bundle, reference);
    // After all of that, and after the errors, the engine still computes the same.
    all_positions_match(&mut engine, reference);
}

/// Holds a framework that does not compute every feature to `reference` where it computes all of the model's; else it
/// must refuse the model by name, or a context longer than the model's window. Says whether it computed the model.
pub fn check_or_refused<E: InferenceEngine>(
    bundle: &Bundle,
    reference: &Reference,
    settings: &Settings,
) -> bool {
    let refused = |error: Option<EngineError>| match error {
        Some(EngineError::Unsupported(reason)) => assert!(reason.contains("does not compute"), "{reason}"),
        other => panic!("a feature that is not computed is refused: {other:?}"),
    };
    let mut engine = match E::load(bundle, settings) {
        Ok(engine) => engine,
        Err(error) => {
            refused(Some(error));
            return false;
        }
    };
    if let Some(window) = bundle.config().form.window {
        engine.begin(1, window).expect("within its window a model runs");
        refused(engine.begin(1, window + 1).err());
        return false;
    }
    drop(engine);
    check_model::<E>(bundle, reference, settings);
    true
}

/// Holds an f32 engine on the `bundle` of a model that attends both ways to `reference`, as [`check_model`] does others.
pub fn check_both_ways<E: InferenceEngine>(bundle: &Bundle, reference: &Reference, settings: &Settings) {
    let mut engine = E::load(bundle, settings).expect("loads");
    assert_eq!(engine.in_effect().kv_cache_policy, KvCachePolicy::None, "nothing is kept between passes");
    assert_eq!(engine.kv_cache_bytes(), None, "there is no cache to speak of");
    all_positions_match(&mut engine, reference);
    if settings.hidden_states {
        hidden_states_match(&mut engine, reference);
    }
    last_is_the_last_of_all(&mut engine, reference);
    a_batch_gives_what_each_gives_alone_both_ways(&mut engine, reference);
    let length = reference.positions;
    engine.begin(1, length).expect("begins");
    engine.append(&reference.row(0)[..1], Want::Last).expect("one position attends to itself");
    match engine.append(&reference.row(0)[1..2], Want::Last) {
        Err(EngineError::Input(_)) => {}
        other => panic!(
            "a second piece is refused, since the first would have to see it: {:?}",
            other.map(<[f32]>::len)
        ),
    }
    all_positions_match(&mut engine, reference);
}

fn a_batch_gives_what_each_gives_alone_both_ways<E: InferenceEngine>(engine: &mut E, r: &Reference) {
    let each = r.logits.len() / r.batch;
    for sequence in 0..r.batch {
        engine.begin(1, r.positions).expect("begins");
        let alone = engine.append(r.row(sequence), Want::All).expect("appends");
        let difference = max_abs_difference(alone, &r.logits[sequence * each..(sequence + 1) * each]);
        assert!(difference <= TOLERANCE, "sequence {sequence} alone differs by {difference}");
    }
}

fn all_positions_match<E: InferenceEngine>(engine: &mut E, r: &Reference) {
    engine.begin(r.batch, r.positions).expect("begins");
    let logits = engine.append(&r.tokens, Want::All).expect("appends");
    let difference = max_abs_difference(logits, &r.logits);
    assert!(difference <= TOLERANCE, "logits differ from the reference by {difference}");
}

fn hidden_states_match<E: InferenceEngine>(engine: &mut E, r: &Reference) {
    engine.begin(r.batch, r.positions).expect("begins");
    engine.append(&r.tokens, Want::Last).expect("appends");
    match engine.hidden_states() {
        Err(EngineError::Unsupported(reason)) => assert!(!reason.is_empty(), "a refusal has a reason"),
        Err(other) => panic!("hidden states: {other}"),
        Ok(hidden) => {
            assert_eq!(hidden.layers.len(), r.hidden.len(), "embeddings and one state a layer");
            for (layer, (ours, theirs)) in hidden.layers.iter().zip(&r.hidden).enumerate() {
                let difference = max_abs_difference(ours, theirs);
                assert!(difference <= TOLERANCE, "hidden state {layer} differs by {difference}");
            }
        }
    }
}

fn last_is_the_last_of_all<E: InferenceEngine>(engine: &mut E, r: &Reference) {
    let vocabulary = r.logits.len() / (r.batch * r.positions);
    engine.begin(r.batch, r.positions).expect("begins");
    let logits = engine.append(&r.tokens, Want::Last).expect("appends").to_vec();
    assert_eq!(logits.len(), r.batch * vocabulary, "one row of logits a sequence");
    for (sequence, ours) in logits.chunks_exact(vocabulary).enumerate() {
        let end = (sequence + 1) * r.positions * vocabulary;
        let difference = max_abs_difference(ours, &r.logits[end - vocabulary..end]);
        assert!(difference <= TOLERANCE, "last logits of sequence {sequence} differ by {difference}");
    }
}

/// Prefill in one piece, in pieces, and token by token gives the same, in a batch and alone.
fn pieces_equal_the_whole<E: InferenceEngine>(engine: &mut E, r: &Reference) {
    let vocabulary = r.logits.len() / (r.batch * r.positions);
    for piece in [1, 5, r.positions / 2, r.positions - 1] {
        for batch in [1, r.batch] {
            engine.begin(batch, r.positions).expect("begins");
            let mut start = 0;
            while start < r.positions {
                let end = (start + piece).min(r.positions);
                let tokens: Vec<u32> = (0..batch).flat_map(|b| r.row(b)[start..end].to_vec()).collect();
                let logits = engine.append(&tokens, Want::All).expect("appends");
                for (sequence, ours) in logits.chunks_exact((end - start) * vocabulary).enumerate() {
                    let from = (sequence * r.positions + start) * vocabulary;
                    let theirs = &r.logits[from..from + ours.len()];
                    let difference = max_abs_difference(ours, theirs);
                    assert!(
                        difference <= TOLERANCE,
                        "pieces of {piece}, batch {batch}: positions {start}..{end} of sequence {sequence} differ by {difference}"
                    );
                }
                start = end;
            }
        }
    }
}

fn a_batch_gives_what_each_gives_alone<E: InferenceEngine>(engine: &mut E, r: &Reference) {
    // Four different prompts of one length, cut from the reference's two rows.
    let length = r.positions / 2;
    let prompts: Vec<&[u32]> =
        (0..4).map(|i| &r.row(i % 2)[(i / 2) * length..(i / 2 + 1) * length]).collect();
    engine.begin(prompts.len(), length).expect("begins");
    let together = engine.append(&prompts.concat(), Want::All).expect("appends").to_vec();
    for (index, prompt) in prompts.iter().enumerate() {
        engine.begin(1, length).expect("begins");
        let alone = engine.append(prompt, Want::All).expect("appends");
        let difference = max_abs_difference(alone, &together[index * alone.len()..(index + 1) * alone.len()]);
        assert!(difference <= TOLERANCE, "sequence {index} of a batch of four differs by {difference}");
    }
}

fn greedy_matches<E: InferenceEngine>(engine: &mut E, bundle: &Bundle, r: &Reference) {
    let capacity = (r.positions + r.greedy.len()).min(bundle.config().max_positions);
    engine.begin(1, capacity).expect("begins");
    let mut next = argmax(engine.append(r.row(0), Want::Last).expect("appends"));
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
fn kv_cache_is_at_least_what_it_must_be<E: InferenceEngine>(engine: &mut E, bundle: &Bundle, r: &Reference) {
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
        // A hybrid whose engines cannot share this one has two.
        let has_two = engine.hybrid().is_some_and(|hybrid| hybrid.obstacle.is_some());
        told.push(if has_two { bytes / 2 } else { bytes });
    }
    assert_eq!(told[1], 2 * told[0], "two sequences take twice the KV cache of one");
}

fn bad_input_is_refused<E: InferenceEngine>(engine: &mut E, bundle: &Bundle, r: &Reference) {
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
    refused(engine.append(&r.row(0)[..5], Want::Last).map(|_| ()), "tokens beyond the capacity are refused");
    engine.append(&r.row(0)[..4], Want::Last).expect("exactly the capacity fits");
}

/// Index of the largest logit, the first of equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = index;
        }
    }
    best as u32
}

/// Checks a framework's own profiler over a prefill and a decode step: each of `parts` is told in both, every event is
/// complete, and it ends once. `settings` are those of [`InferenceEngine::profiled`].
pub fn check_profile<E: InferenceEngine>(bundle: &Bundle, settings: Settings, parts: &[String]) {
    let mut engine = E::load(bundle, &settings).expect("loads");
    engine.begin_profile().expect("has a profiler");
    engine.begin(1, 3).expect("begins");
    engine.append(&[1, 2], Want::Last).expect("appends");
    engine.append(&[3], Want::Last).expect("appends");
    let profile = engine.end_profile().expect("ends");
    for event in &profile.events {
        assert!(!event.name.is_empty() && !event.thread.is_empty() && event.start_ns > 0, "{event:?}");
    }
    for part in parts {
        let told = profile.events.iter().filter(|event| event.part.as_ref() == Some(part));
        let starts: std::collections::BTreeSet<u64> = told.map(|event| event.start_ns).collect();
        assert!(starts.len() >= 2, "{part} is computed in both steps and told at {starts:?}");
    }
    assert!(engine.end_profile().is_err(), "a profile ends once");
}
