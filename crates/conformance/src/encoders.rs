//! Encoders: the vectors of texts of different lengths, compared with those of an independent implementation.
//!
//! The references come from Hugging Face transformers in f32, each text computed alone. They contain
//! `input_ids` [N, T], padded; `lengths` [N]; `token_type_ids` [N, T]; `pooled.cls`, `pooled.mean`,
//! `pooled.last` and `pooled.mean.normalised` [N, H]; and for models with a head `logits` [N, L], or
//! `token_logits.I` [T, L] of text I.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bundle::{Bundle, Dtype, Pooling, Scored};
use half::f16;
use protocol::{Event, FailureKind};
use safetensors::SafeTensors;
use serde_json::json;
use worker::engine::{Encode, EncodeTask, EngineError, InferenceEngine, Precision, Settings, Tensor, Texts};

use crate::models::{
    self, at, bundle_at, bundle_of, directories, fixtures, max_abs_difference, reference_file, threads,
};

/// Largest difference of a component in f32.
const TOLERANCE: f32 = 2e-4;

/// Least cosine of a vector with the reference's, in f32.
const COSINE: f64 = 0.99999;

/// Each way of pooling, with the name of the reference's vectors, and whether they are normalised.
const POOLED: [(&str, Pooling, bool); 4] = [
    ("pooled.cls", Pooling::Cls, false),
    ("pooled.mean", Pooling::Mean, false),
    ("pooled.last", Pooling::Last, false),
    ("pooled.mean.normalised", Pooling::Mean, true),
];

/// Compares the vectors of every encoder in f32 with the reference's, all texts in one batch and each alone; at 16
/// bits they have nearly the same direction.
pub fn check_encoders<E: InferenceEngine>(settings: &Settings) {
    let precisions = [Precision::F32, Precision::Bf16, Precision::F16];
    each_encoder(&precisions, |name, bundle, reference| {
        let mut refused = check::<E>((name, bundle), settings, reference, (TOLERANCE, COSINE));
        refused.extend(check_in_16_bits::<E>((name, bundle), settings, reference));
        assert!(refused.is_empty(), "it computes every family: {refused:?}");
    });
}

/// The same at 16 bits alone.
pub fn check_encoders_in_16_bits<E: InferenceEngine>(settings: &Settings) {
    each_encoder(&[Precision::Bf16, Precision::F16], |name, bundle, reference| {
        let refused = check_in_16_bits::<E>((name, bundle), settings, reference);
        assert!(refused.is_empty(), "it computes every family: {refused:?}");
    });
}

fn check_in_16_bits<E: InferenceEngine>(
    model: (&str, &Bundle),
    settings: &Settings,
    reference: &SafeTensors<'_>,
) -> BTreeMap<String, String> {
    let mut refused = BTreeMap::new();
    for precision in [Precision::Bf16, Precision::F16] {
        let settings = Settings { precision, ..settings.clone() };
        refused.extend(check::<E>(model, &settings, reference, (f32::INFINITY, 0.99)));
    }
    refused
}

/// The same in f32 alone, with each of these settings. Returns refusals with their reasons: a refused model
/// by its name, and a refused task of a computed model by both names, `bert, pooled.last`, even if only some
/// texts are refused.
pub fn check_encoders_in_f32<E: InferenceEngine>(each_settings: &[Settings]) -> BTreeMap<String, String> {
    let mut refused = BTreeMap::new();
    each_encoder(&[Precision::F32], |name, bundle, reference| {
        for settings in each_settings {
            refused.extend(check::<E>((name, bundle), settings, reference, (TOLERANCE, COSINE)));
        }
    });
    refused
}

fn each_encoder(precisions: &[Precision], mut check: impl FnMut(&str, &Bundle, &SafeTensors<'_>)) {
    for source in directories(&fixtures().with_file_name("encoders")) {
        println!("{}", source.display());
        let directory = tempfile::tempdir().expect("a temporary directory");
        let bundle = bundle_at(&source, directory.path(), precisions);
        let bytes = reference_file(&source);
        let name = source.file_name().expect("a name").to_string_lossy();
        check(&name, &bundle, &SafeTensors::deserialize(&bytes).expect("a valid reference file"));
    }
}

/// The engine's refusals, with their reasons.
fn check<E: InferenceEngine>(
    (model, bundle): (&str, &Bundle),
    settings: &Settings,
    reference: &SafeTensors<'_>,
    (tolerance, cosine): (f32, f64),
) -> BTreeMap<String, String> {
    let mut refused = BTreeMap::new();
    let mut engine = match E::load(bundle, settings) {
        Err(EngineError::Unsupported(reason)) => return BTreeMap::from([(model.to_owned(), reason)]),
        loaded => loaded.expect("loads"),
    };
    assert!(engine.decode().is_err(), "an encoder continues nothing");
    let encoder = engine.encode().expect("encodes");
    let ids = |name: &str| models::ids(reference, name).expect("present");
    let lengths: Vec<usize> = ids("lengths").into_iter().map(|length| length as usize).collect();
    let padded = reference.tensor("input_ids").expect("present").shape()[1];
    let rows = |name: &str| -> Vec<Vec<u32>> {
        let all = ids(name);
        all.chunks_exact(padded).zip(&lengths).map(|(row, &length)| row[..length].to_vec()).collect()
    };
    let (tokens, types) = (rows("input_ids"), rows("token_type_ids"));
    if bundle.config().scoring().is_none() {
        let texts = Texts { tokens: &tokens[0], types: &[], lengths: &lengths[..1] };
        assert!(encoder.encode(texts, EncodeTask::Score).is_err(), "there is no head");
    }
    let (all_tokens, all_types) = (tokens.concat(), types.concat());
    if settings.hidden_states {
        let texts = Texts { tokens: &all_tokens, types: &all_types, lengths: &lengths };
        check_states(encoder, texts, reference, (tolerance, cosine));
    }
    for (name, task, expected) in cases(bundle, reference, lengths.len()) {
        // A score of one label has no direction.
        let limits = (tolerance, if task == EncodeTask::Score { f64::NEG_INFINITY } else { cosine });
        let mut encode = |texts: Texts<'_>| match encoder.encode(texts, task) {
            Err(EngineError::Unsupported(reason)) => {
                refused.insert(format!("{model}, {name}"), reason);
                None
            }
            found => Some(found.expect("encodes").to_vec()),
        };
        let texts = Texts { tokens: &all_tokens, types: &all_types, lengths: &lengths };
        if let Some(found) = encode(texts) {
            assert_eq!(found.len(), expected.concat().len(), "{name}");
            let mut rest = &found[..];
            for (text, expected) in expected.iter().enumerate() {
                let of_text;
                (of_text, rest) = rest.split_at(expected.len());
                compare(of_text, expected, limits, &format!("{name}, text {text}"));
            }
        }
        for (text, expected) in expected.iter().enumerate() {
            assert_eq!(expected.len(), bundle.config().width(task, lengths[text]), "{name}");
            let (tokens, types, lengths) = (&tokens[text][..], &types[text][..], &lengths[text..=text]);
            if let Some(alone) = encode(Texts { tokens, types, lengths }) {
                compare(&alone, expected, limits, &format!("{name}, text {text} alone"));
            }
        }
    }
    let mean = EncodeTask::Embed { pooling: Pooling::Mean, normalise: false };
    let none = Texts { tokens: &[], types: &[], lengths: &[] };
    assert!(encoder.encode(none, mean).is_err(), "there is no text");
    let outside = Texts { tokens: &[bundle.config().vocab_size as u32], types: &[], lengths: &[1] };
    assert!(encoder.encode(outside, mean).is_err(), "outside the vocabulary");
    refused
}

/// Hidden states have a row for each token, and the last are the reference's where it has them.
fn check_states(encoder: &mut dyn Encode, texts: Texts<'_>, reference: &SafeTensors<'_>, limits: (f32, f64)) {
    let task = EncodeTask::Embed { pooling: Pooling::Mean, normalise: false };
    encoder.encode(texts, task).expect("encodes");
    let layers = encoder.hidden_states().expect("asked for at load").layers;
    let (count, numbers) =
        (encoder.config().layers.len() + 1, texts.tokens.len() * encoder.config().hidden_size);
    assert_eq!(layers.len(), count, "the embeddings and each layer");
    assert!(layers.iter().all(|layer| layer.len() == numbers), "a row for each token");
    assert!(layers.windows(2).all(|pair| pair[0] != pair[1]), "each layer changes them");
    let names = (0..texts.lengths.len()).map(|text| format!("last_hidden.{text}"));
    if let Some(last) = names.map(|name| models::floats(reference, &name)).collect::<Option<Vec<_>>>() {
        compare(&layers[count - 1], &last.concat(), limits, "the last hidden states");
    }
}

/// The tasks for so many texts, with the reference's numbers for each.
fn cases(
    bundle: &Bundle,
    reference: &SafeTensors<'_>,
    texts: usize,
) -> Vec<(&'static str, EncodeTask, Vec<Vec<f32>>)> {
    let floats = |name: &str| models::floats(reference, name).expect("present");
    let rows = |name: &str, width| floats(name).chunks_exact(width).map(<[f32]>::to_vec).collect();
    let hidden = bundle.config().hidden_size;
    let pooled = POOLED.iter().map(|&(name, pooling, normalise)| {
        (name, EncodeTask::Embed { pooling, normalise }, rows(name, hidden))
    });
    let scores = bundle.config().scoring().map(|head| {
        let scores = match head.of {
            Scored::Texts(_) => rows("logits", head.labels),
            Scored::Tokens => (0..texts).map(|text| floats(&format!("token_logits.{text}"))).collect(),
        };
        ("scores", EncodeTask::Score, scores)
    });
    pooled.chain(scores).collect()
}

fn compare(found: &[f32], expected: &[f32], (tolerance, least): (f32, f64), what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let difference = max_abs_difference(found, expected);
    assert!(difference <= tolerance, "{what}: a component differs by {difference}");
    let product =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = product(found, expected) / (product(found, found) * product(expected, expected)).sqrt();
    assert!(cosine >= least, "{what}: a cosine of {cosine}");
}

// ONNX files: the outputs of small ones, compared with those of ONNX's own reference evaluator
// (`graphs/README.md`).

/// Largest difference of a float, as a share of the largest of its output.
const GRAPHS_TOLERANCE: f64 = 2e-4;

/// The largest number of an output counts as at least this.
const LEAST: f64 = 0.01;

#[derive(serde::Deserialize)]
struct Expected {
    inputs: Vec<protocol::Tensor>,
    outputs: Vec<protocol::Tensor>,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("graphs")
}

/// Every file, sorted by name.
pub fn graph_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory()).expect("the files are part of the checkout");
    let files = entries.map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|end| end == "onnx")).collect();
    files.sort();
    files
}

/// Checks an engine on every file: two runs must give the reference's outputs. It must refuse those named in
/// `unsupported` as [`EngineError::Unsupported`], when it loads them or when it runs them.
pub fn graphs<E: InferenceEngine>(unsupported: &[&str]) {
    assert!(E::RUNS_GRAPHS, "{} says that it runs ONNX files", E::FRAMEWORK);
    let files = graph_files();
    let mut known = Vec::new();
    for file in &files {
        println!("{}", file.display());
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let found = outputs::<E>(file);
        match (unsupported.contains(&name.as_str()), found) {
            (false, found) => {
                graphs_compare(&name, file, &found.unwrap_or_else(|error| panic!("{name}: {error}")))
            }
            (true, Err(EngineError::Unsupported(reason))) => {
                assert!(!reason.is_empty() && !reason.contains('\n'), "{name}: a sentence: {reason:?}");
            }
            (true, Err(error)) => panic!("{name}: it is refused, but not as unsupported: {error}"),
            (true, Ok(_)) => panic!("{name}: it runs, and is said to be unsupported"),
        }
        known.push(name);
    }
    let unknown: Vec<_> =
        unsupported.iter().filter(|name| !known.iter().any(|known| known == *name)).collect();
    assert!(unknown.is_empty(), "there are no such files: {unknown:?}");
}

/// Holds the worker of an engine that runs no ONNX files to its refusal, before it loads anything.
pub fn refuses_graphs<E: InferenceEngine>() {
    assert!(!E::RUNS_GRAPHS, "{} says that it runs no ONNX files", E::FRAMEWORK);
    let place = tempfile::tempdir().expect("a temporary directory");
    let bundle = graph_bundle(&directory().join("scalars.onnx"), place.path());
    let job = json!({
        "protocol": protocol::VERSION,
        "bundle": bundle.directory(),
        "settings": { "precision": "f32", "device": "cpu", "threads": threads(), "jit": true },
        "task": { "kind": "answer", "work": { "kind": "graph", "cases": [] } },
    });
    let mut output = Vec::new();
    let served = worker::serve::<E>(&job.to_string(), &mut std::io::empty(), 0, &mut output);
    assert!(served.is_err(), "it does not do the job");
    let last = output.split(|&byte| byte == b'\n').rfind(|line| !line.is_empty()).expect("it sends events");
    match serde_json::from_slice(last).expect("an event") {
        Event::Failed(failed) => {
            assert_eq!(failed.kind, FailureKind::Unsupported, "{}", failed.reason);
            assert!(failed.reason.contains(E::FRAMEWORK), "{}", failed.reason);
        }
        other => panic!("{other:?}"),
    }
}

/// The file as a bundle, in the directory `bundles`.
pub fn graph_bundle(file: &Path, bundles: &Path) -> Bundle {
    bundle_of(prepare::Source::Onnx(file.to_owned()), bundles, &[Precision::F32])
}

fn outputs<E: InferenceEngine>(file: &Path) -> Result<[Vec<Tensor>; 2], EngineError> {
    let place = tempfile::tempdir().expect("a temporary directory");
    let bundle = graph_bundle(file, place.path());
    let graph = bundle.config().graph.clone().expect("it is an ONNX file");
    let inputs = graph_inputs(file);
    let named = inputs.iter().map(|input| (&input.name, input.dtype));
    assert!(named.eq(graph.inputs.iter().map(|input| (&input.name, input.dtype))), "the file's own inputs");
    let mut engine = E::load(&bundle, &at(Precision::F32))?;
    assert!(engine.decode().is_err() && engine.encode().is_err(), "it is no model of texts");
    let engine = engine.graph()?;
    assert_eq!(engine.graph(), &graph);
    engine.feed(&inputs)?;
    engine.run()?;
    let first = engine.outputs()?;
    engine.run()?;
    Ok([first, engine.outputs()?])
}

/// The inputs that the reference's outputs are for.
pub fn graph_inputs(file: &Path) -> Vec<Tensor> {
    expected(file).inputs.into_iter().map(tensor).collect()
}

fn expected(file: &Path) -> Expected {
    let text = std::fs::read(file.with_extension("json")).expect("the reference is there");
    serde_json::from_slice(&text).expect("a valid reference")
}

fn tensor(read: protocol::Tensor) -> Tensor {
    let protocol::Tensor { name, dtype, shape, data } = read;
    let dtype = Dtype::from_name(&dtype).expect("a type of numbers");
    assert_eq!(data.len(), Tensor::elements(&shape) * dtype.bytes(), "{name}");
    Tensor { name, dtype, shape, data }
}

fn graphs_compare(file: &str, path: &Path, found: &[Vec<Tensor>; 2]) {
    let expected: Vec<Tensor> = expected(path).outputs.into_iter().map(tensor).collect();
    for (run, found) in found.iter().enumerate() {
        let described =
            |tensor: &Tensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone(), tensor.data.len());
        let [ours, theirs] = [found, &expected].map(|all| all.iter().map(described).collect::<Vec<_>>());
        assert_eq!(ours, theirs, "{file}, run {run}: names, types, shapes and bytes of the outputs");
        for (ours, theirs) in found.iter().zip(&expected) {
            let what = format!("{file}, run {run}, {}", ours.name);
            if !theirs.dtype.is_float() {
                assert_eq!(ours.data, theirs.data, "{what}");
                continue;
            }
            let (ours, theirs) = (graphs_floats(ours), graphs_floats(theirs));
            let allowed =
                GRAPHS_TOLERANCE * theirs.iter().fold(LEAST, |largest, number| largest.max(number.abs()));
            let is_near = |(ours, theirs): (&f64, &f64)| (ours - theirs).abs() <= allowed;
            assert!(ours.iter().zip(&theirs).all(is_near), "{what}: {ours:?} for {theirs:?}");
        }
    }
}

fn graphs_floats(tensor: &Tensor) -> Vec<f64> {
    let number = |bytes: &[u8]| match *bytes {
        [a, b] => f16::from_le_bytes([a, b]).to_f64(),
        [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
        _ => f64::from_le_bytes(bytes.try_into().expect("eight bytes")),
    };
    tensor.data.chunks_exact(tensor.dtype.bytes()).map(number).collect()
}
