//! ONNX files: the outputs of small ones, compared with those of ONNX's own reference evaluator
//! (`graphs/README.md`).

use std::path::{Path, PathBuf};

use bundle::{Bundle, Dtype};
use engine::{EngineError, InferenceEngine, Precision, Tensor};
use half::f16;
use protocol::{Event, FailureKind};
use serde_json::json;

use crate::models::{at, threads};

/// Largest difference of a float, as a share of the largest of its output.
const TOLERANCE: f64 = 2e-4;
/// The largest number of an output counts as at least this.
const LEAST: f64 = 0.01;

/// The inputs of a file and its expected outputs.
#[derive(serde::Deserialize)]
struct Expected {
    inputs: Vec<protocol::Tensor>,
    outputs: Vec<protocol::Tensor>,
}

/// Where the files are in a checkout.
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
            (false, found) => compare(&name, file, &found.unwrap_or_else(|error| panic!("{name}: {error}"))),
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
    let bundle = prepared(&directory().join("scalars.onnx"), place.path());
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
fn prepared(file: &Path, bundles: &Path) -> Bundle {
    let request = prepare::Request {
        source: prepare::Source::Onnx(file.to_owned()),
        name: None,
        precisions: vec![Precision::F32],
        bundles: bundles.to_owned(),
        progress: prepare::Progress::Silent,
    };
    let directory = prepare::prepare(&request).unwrap_or_else(|error| panic!("{error}"));
    Bundle::open(directory).expect("opens")
}

/// The outputs of two runs, each with the file's inputs.
fn outputs<E: InferenceEngine>(file: &Path) -> Result<[Vec<Tensor>; 2], EngineError> {
    let place = tempfile::tempdir().expect("a temporary directory");
    let bundle = prepared(file, place.path());
    let graph = bundle.config().graph.clone().expect("it is an ONNX file");
    let inputs: Vec<Tensor> = expected(file).inputs.into_iter().map(tensor).collect();
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

fn compare(file: &str, path: &Path, found: &[Vec<Tensor>; 2]) {
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
            let (ours, theirs) = (floats(ours), floats(theirs));
            let allowed = TOLERANCE * theirs.iter().fold(LEAST, |largest, number| largest.max(number.abs()));
            let is_near = |(ours, theirs): (&f64, &f64)| (ours - theirs).abs() <= allowed;
            assert!(ours.iter().zip(&theirs).all(is_near), "{what}: {ours:?} for {theirs:?}");
        }
    }
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype {
        Dtype::Float16 => {
            tensor.data.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f64()).collect()
        }
        Dtype::Float32 => {
            tensor.data.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
        }
        _ => tensor.data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
    }
}
