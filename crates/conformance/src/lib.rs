//! One suite for all engines. An engine passes if it computes the same as an independent implementation.
//!
//! Only tests depend on this crate. An engine's `tests/conformance.rs` calls [`check_tiny_models`],
//! [`check_architectures`] (or [`computed_architectures`]), [`check_diffusion`] and, if it encodes,
//! [`check_encoders`] (or [`check_encoders_in_f32`]) with each of its settings, [`graphs()`] if it runs ONNX
//! files, or else [`refuses_graphs`], for variants that make a mistake [`check_growth`], [`check_converted`]
//! and [`check_padding`], and adds its own tests.

mod encoders;
mod models;
mod speech;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

pub use encoders::{
    check_encoders, check_encoders_in_16_bits, check_encoders_in_f32, graph_bundle, graph_files,
    graph_inputs, graphs, refuses_graphs,
};
pub use models::{
    Model, Reference, TOLERANCE, architectures, argmax, at, bundle, bundle_at, check_converted,
    check_file_blocks, check_follows, check_growth, check_halves, check_hidden_states, check_padding, each,
    fixtures, logits_in_pieces, max_abs_difference, mixtures, synthetic, tiny, tiny_models, with,
    with_options,
};
use protocol::Event;
use safetensors::SafeTensors;
use serde_json::{Value, json};
pub use speech::{check_speech, check_speech_in_fewer_bits, hearing_models};
use worker::engine::{
    Bundle, Decode, EngineError, InferenceEngine, KvCachePolicy, Precision, Settings, Want,
};

use crate::models::{diffusion_models, threads};

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
    let computed = each(architectures()).filter(|model| check_or_refused::<E>(model, settings));
    computed.map(|model| model.name()).collect()
}

/// Checks an f32 engine on every model with bidirectional attention, with each of these settings, and its
/// worker on the states of masked diffusion.
pub fn check_diffusion<E: InferenceEngine + Decode>(each_settings: &[Settings]) {
    for model in each(diffusion_models()) {
        for settings in each_settings {
            check_both_ways::<E>(&model, &Settings { hidden_states: true, ..settings.clone() });
        }
        check_states::<E>(&model);
    }
}

/// Compares the kernels for 8 and 4 bits with the results of the dequantised weights. Of mixtures, the router's shares
/// follow the activations, too, so that twice the tolerance is theirs.
pub fn check_quantised_kernels<E: InferenceEngine + Decode>(tolerance: f32) {
    for mut model in tiny().chain(each(mixtures())) {
        for precision in [Precision::Int8, Precision::Int4] {
            let dequantised = Settings { dequantised: true, ..at(precision) };
            let mut exact = E::load(&model.bundle, &dequantised).expect("loads");
            let is_mixture = model.bundle.config().experts(0).is_some();
            let tolerance = if is_mixture { 2.0 * tolerance } else { tolerance };
            let rows = model.reference.rows();
            model.reference.logits = logits_in_pieces(&mut exact, &rows, model.reference.positions);
            let mut engine = E::load(&model.bundle, &at(precision)).expect("loads");
            assert_eq!(engine.in_effect().precision, precision.name());
            assert!(!engine.in_effect().weight_storage.contains("emulated"));
            check_follows(&mut engine, &model.reference, tolerance, &format!("{} {precision}", model.name()));
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

// The checks of one engine on one model. Each function panics with the broken rule.

/// Holds an f32 engine to a model's reference.
pub fn check_model<E: InferenceEngine + Decode>(model: &Model, settings: &Settings) {
    let Model { bundle, reference, .. } = model;
    let mut engine = E::load(bundle, settings).expect("loads");
    assert_eq!(
        engine.in_effect().precision,
        settings.precision.name(),
        "observed precision is the one asked for"
    );
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
    prompts_of_any_lengths_give_what_each_gives_alone(&mut engine, reference);
    greedy_matches(&mut engine, bundle, reference);
    kv_cache_is_at_least_what_it_must_be(&mut engine, bundle, reference);
    bad_input_is_refused(&mut engine, bundle, reference);
    // After all of that, and after the errors, the engine still computes the same.
    logits_match(&mut engine, reference, reference.positions, 0..reference.batch);
}

/// Holds a framework that does not compute every feature to the reference where it computes all of the model's; else it
/// must refuse the model by name, or a context longer than the model's window. Says whether it computed the model.
fn check_or_refused<E: InferenceEngine + Decode>(model: &Model, settings: &Settings) -> bool {
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
    if let Some(window) = model.bundle.config().window() {
        engine.begin(1, window).expect("within its window a model runs");
        refused(engine.begin(1, window + 1).err());
        return false;
    }
    drop(engine);
    check_model::<E>(model, settings);
    true
}

/// Holds an f32 engine to the reference of a model that attends both ways, as [`check_model`] does others.
fn check_both_ways<E: InferenceEngine + Decode>(model: &Model, settings: &Settings) {
    let reference = &model.reference;
    let mut engine = E::load(&model.bundle, settings).expect("loads");
    assert_eq!(engine.in_effect().kv_cache, KvCachePolicy::None, "nothing is kept between passes");
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
    let second = engine.append(&first[1..2], Want::Last).map(<[f32]>::len);
    assert!(
        matches!(second, Err(EngineError::Input(_))),
        "a second piece is refused, since the first would have to see it: {second:?}"
    );
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
        let settings = Settings { kv_precision: Some(cache), ..settings.clone() };
        let mut engine = E::load(&model.bundle, &settings).expect("loads");
        assert_eq!(models::cache(&engine), cache, "the observed cache is the one asked for");
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
    let element = models::cache(engine).element().bytes();
    let least = |batch: usize| {
        2 * config.layers.len() * batch * config.kv_heads * config.head_dim * r.positions * element
    };
    let mut told = Vec::new();
    for batch in [1, 2] {
        engine.begin(batch, r.positions).expect("begins");
        let begun = engine.kv_cache_bytes();
        engine.append(&r.tokens[..batch * r.positions], Want::Last).expect("appends");
        let Some(bytes) = engine.kv_cache_bytes() else { return };
        assert!(bytes >= least(batch) as u64, "a KV cache of {bytes} bytes cannot hold {}", least(batch));
        if engine.in_effect().kv_cache == KvCachePolicy::Preallocated {
            assert_eq!(begun, Some(bytes), "a preallocated KV cache is of one size throughout");
        }
        // A hybrid of engines that cannot share a cache has two.
        let has_two = engine.obstacle().is_some();
        told.push(if has_two { bytes / 2 } else { bytes });
    }
    assert_eq!(told[1], 2 * told[0], "two sequences take twice the KV cache of one");
}

fn bad_input_is_refused<E: InferenceEngine + Decode>(engine: &mut E, bundle: &Bundle, r: &Reference) {
    let config = bundle.config();
    let refused = |result: Result<(), EngineError>, rule: &str| {
        assert!(matches!(result, Err(EngineError::Input(_))), "{rule}: {result:?}");
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
    let layers = 0..bundle.config().layers.len();
    let in_layers = layers.flat_map(|layer| in_layer.iter().map(move |part| format!("layer {layer}{part}")));
    for part in ["embedding", "final norm", "head"].map(str::to_owned).into_iter().chain(in_layers) {
        let told = profile.events.iter().filter(|event| event.part.as_deref() == Some(part.as_str()));
        let starts: BTreeSet<u64> = told.map(|event| event.start_ns).collect();
        assert!(starts.len() >= 2, "{part} is computed in both steps and told at {starts:?}");
    }
    assert!(engine.end_profile().is_err(), "a profile ends once");
}

// Prompts of different lengths in one batch.

/// Tokens that each sequence is continued by, one by one, and then in one piece.
const STEPS: usize = 3;

/// The logits of a batch of `prompts`, and of each alone, each prompt continued by `steps`: those of its last
/// token, of each step, and of all steps in one piece.
fn both<E: InferenceEngine + Decode>(
    engine: &mut E,
    prompts: &[&[u32]],
    steps: &[&[u32]],
    capacity: usize,
) -> Result<[Vec<Vec<f32>>; 2], EngineError> {
    let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.len()).collect();
    let mut together = vec![Vec::new(); prompts.len()];
    let mut put = |logits: &[f32]| {
        let rows = logits.chunks_exact(logits.len() / prompts.len());
        together.iter_mut().zip(rows).for_each(|(all, row)| all.extend_from_slice(row));
    };
    engine.begin(prompts.len(), capacity)?;
    put(engine.append_each(&prompts.concat(), &lengths)?);
    for step in 0..steps[0].len() {
        let tokens: Vec<u32> = steps.iter().map(|steps| steps[step]).collect();
        put(engine.append(&tokens, Want::Last)?);
    }
    put(engine.append(&steps.concat(), Want::All)?);
    let mut alone = Vec::new();
    for (prompt, steps) in prompts.iter().zip(steps) {
        let mut all = Vec::new();
        engine.begin(1, capacity)?;
        all.extend_from_slice(engine.append(prompt, Want::Last)?);
        for &token in *steps {
            all.extend_from_slice(engine.append(&[token], Want::Last)?);
        }
        all.extend_from_slice(engine.append(steps, Want::All)?);
        alone.push(all);
    }
    Ok([together, alone])
}

/// For any lengths, every engine gives for each prompt of a batch the same as alone, or refuses such a batch.
fn prompts_of_any_lengths_give_what_each_gives_alone<E: InferenceEngine + Decode>(
    engine: &mut E,
    r: &Reference,
) {
    let longest = r.positions - 2 * STEPS;
    let row = |sequence: usize| r.rows()[sequence % r.batch];
    // The longest first, last and in the middle; one token alone; a batch that follows one of equal lengths.
    for lengths in [vec![1, longest, longest / 2], vec![longest, 2], vec![3, 5, longest]] {
        let cut = |(place, &length): (usize, &usize)| &row(place)[place..place + length];
        let prompts: Vec<&[u32]> = lengths.iter().enumerate().map(cut).collect();
        let steps: Vec<&[u32]> = (0..lengths.len()).map(|place| &row(place + 1)[..STEPS]).collect();
        let [together, alone] = match both(engine, &prompts, &steps, r.positions) {
            Ok(both) => both,
            Err(EngineError::Unsupported(reason)) => {
                assert!(reason.contains("length"), "a refusal says what is refused: {reason}");
                return;
            }
            Err(error) => panic!("prompts of {lengths:?} tokens: {error}"),
        };
        for (place, (ours, theirs)) in together.iter().zip(&alone).enumerate() {
            let difference = max_abs_difference(ours, theirs);
            assert!(
                difference <= TOLERANCE,
                "sequence {place} of prompts of {lengths:?} tokens differs by {difference} from the same alone"
            );
        }
        engine.begin(lengths.len(), r.positions).expect("begins");
        engine.append_each(&prompts.concat(), &lengths).expect("appends");
        assert!(engine.padding().is_some(), "the engine reports its padding");
        engine.begin(lengths.len(), r.positions).expect("begins");
        assert_eq!(engine.padding(), None, "and is gone with its sequences");
    }
}

/// A plain model and one with a sliding window, for [`check_lengths`].
pub const OF_ANY_LENGTHS: [&str; 2] = ["tiny/llama-gqa-tied", "architectures/gemma3"];

/// Prompts of 16, 64 and 256 tokens in one batch: the same logits as for each alone. Settings that refuse
/// such a batch, or one of the models, fail.
pub fn check_lengths<E: InferenceEngine + Decode>(settings: &Settings, models: &[&str]) {
    for source in models.iter().map(|model| fixtures().with_file_name(model)) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let bundle = with_longer_context(&source, directory.path());
        let mut engine = E::load(&bundle, settings).expect("loads");
        let vocabulary = bundle.config().vocab_size as u32;
        let tokens: Vec<u32> = (0..256).map(|place| (place * 7 + 3) % vocabulary).collect();
        let prompts = [&tokens[5..21], &tokens[..64], &tokens[..]];
        let steps = [9, 40, 90].map(|first| &tokens[first..first + STEPS]);
        let [together, alone] = both(&mut engine, &prompts, &steps, 256 + 2 * STEPS).expect("any lengths");
        for (prompt, (ours, theirs)) in prompts.iter().zip(together.iter().zip(&alone)) {
            let (tokens, difference) = (prompt.len(), max_abs_difference(ours, theirs));
            assert!(difference <= TOLERANCE, "{}: {tokens} tokens differ by {difference}", source.display());
        }
    }
}

/// A tiny model that says it has room for 512 tokens, in f32.
fn with_longer_context(source: &Path, directory: &Path) -> Bundle {
    let copy = directory.join("model");
    std::fs::create_dir(&copy).expect("a directory");
    for entry in std::fs::read_dir(source).expect("a directory") {
        let entry = entry.expect("readable");
        std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("copies");
    }
    let path = copy.join("config.json");
    let text = std::fs::read_to_string(&path).expect("a configuration");
    let longer = text.replace(r#""max_position_embeddings": 256"#, r#""max_position_embeddings": 512"#);
    assert_ne!(longer, text, "the configuration says how much room there is");
    std::fs::write(&path, longer).expect("writes");
    bundle_at(&copy, &directory.join("bundles"), &[Precision::F32])
}

/// These settings refuse prompts of different lengths, in a sentence that says so.
pub fn refuses_lengths<E: InferenceEngine + Decode>(settings: &Settings) {
    let model = Model::tiny("gpt2");
    let mut engine = E::load(&model.bundle, settings).expect("loads");
    engine.begin(2, 8).expect("begins");
    match engine.append_each(&[1, 2, 3], &[1, 2]) {
        Err(EngineError::Unsupported(reason)) => assert!(reason.contains("length"), "{reason}"),
        other => panic!("prompts of different lengths: {:?}", other.map(<[f32]>::len)),
    }
}

// Checks of a worker in masked diffusion: the states of an independent implementation.

/// Denoises the reference's prompt at temperature 0 with every algorithm that has states there, and requires
/// exactly these states.
fn check_states<E: InferenceEngine + Decode>(model: &Model) {
    let bytes = models::reference_file(&model.source);
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a valid reference file");
    let told = header.metadata().as_ref().expect("it says how it was made");
    let number = |name: &str| told[name].parse::<f64>().expect("a number");
    let file = SafeTensors::deserialize(&bytes).expect("a valid reference file");
    let ids = |name: &str| models::ids(&file, name);
    let prompt = ids("prompt").expect("present");
    let (steps, mask) = (number("steps") as usize, number("mask_token_id") as u32);
    let mut checked = 0;
    for algorithm in protocol::Algorithm::ALL {
        let Some(expected) = ids(&format!("states.{}", algorithm.name())) else { continue };
        let denoise = json!({
            "steps": steps, "algorithm": algorithm, "temperature": 0.0, "alg_temp": 0.0, "eps": number("eps"), "seed": 0
        });
        let work = json!({
            "kind": "denoise", "cases": [{ "prompts": [prompt] }], "new_tokens": number("new_tokens") as usize,
            "forced": false, "how": denoise
        });
        let task = json!({ "kind": "answer", "work": work });
        let (tokens, unmasked) = generated::<E>(model, &task);
        let ours = protocol::states(&prompt, &tokens, &unmasked, mask, steps).concat();
        assert_eq!(ours, expected, "states of {}", algorithm.name());
        checked += 1;
    }
    assert!(checked > 0, "the reference has states");
}

/// The tokens and the steps that unmask them, as a worker of `E` answers.
fn generated<E: InferenceEngine + Decode>(model: &Model, task: &Value) -> (Vec<u32>, Vec<u32>) {
    let job = json!({
        "protocol": protocol::VERSION,
        "bundle": model.bundle.directory(),
        "settings": { "precision": "f32", "device": "cpu", "threads": threads(), "jit": true },
        "task": task,
    });
    let mut output = Vec::new();
    let served = worker::serve::<E>(&job.to_string(), &mut std::io::empty(), 0, &mut output);
    served.unwrap_or_else(|error| panic!("{}: {error}", E::FRAMEWORK));
    let mut events = output.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let answered = events.find_map(|event| match event {
        Event::Answered(answered) => Some(answered),
        _ => None,
    });
    let output = answered.expect("it says what it generated").outputs.remove(0);
    (output.tokens()[0].clone(), output.unmasked()[0].clone())
}
