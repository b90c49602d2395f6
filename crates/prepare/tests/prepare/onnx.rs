//! An ONNX file becomes a bundle unchanged, with the files that it names, and no other file is read.

use std::path::Path;

use bundle::{Bundle, GRAPH_FILE, Precision};
use prepare::{PrepareError, Source};

use crate::common::{self, entries, prepared, refusal};

/// The name in `external.onnx` of its file of weights.
const NAMED: &[u8] = b"external.data";

fn file(name: &str) -> std::path::PathBuf {
    conformance::graph_files().into_iter().find(|file| file.ends_with(name)).expect("it is there")
}

fn refused(path: &Path, parts: &[&str]) {
    common::refused(Source::Onnx(path.into()), Precision::F32, parts);
}

/// The file with another name for its weights, which is as long.
fn naming(name: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(file("external.onnx")).unwrap();
    assert_eq!(name.len(), NAMED.len());
    let mut places = 0;
    for at in 0..bytes.len() - NAMED.len() {
        if &bytes[at..at + NAMED.len()] == NAMED {
            bytes[at..at + NAMED.len()].copy_from_slice(name.as_bytes());
            places += 1;
        }
    }
    assert!(places > 0, "it names the file");
    bytes
}

#[test]
fn every_file_becomes_a_bundle_byte_by_byte() {
    for source in conformance::graph_files() {
        let (_held, bundle) = prepared(Source::Onnx(source.clone()));
        let read = |path: &Path| std::fs::read(path).unwrap();
        assert_eq!(read(&bundle.directory().join(GRAPH_FILE)), read(&source));
        assert!(bundle.config().graph.is_some() && bundle.check_weights(Precision::F32).is_ok());
        let is_external = source.ends_with("external.onnx");
        assert_eq!(entries(bundle.directory()).contains(&"external.data".to_owned()), is_external);
    }
}

#[test]
fn weights_beside_the_file_come_along_and_are_its_own() {
    let source = file("external.onnx");
    let (held, bundle) = prepared(Source::Onnx(source.clone()));
    let weights = std::fs::read(source.with_file_name("external.data")).unwrap();
    assert_eq!(std::fs::read(bundle.directory().join("external.data")).unwrap(), weights);
    let graph = bundle.config().graph.as_ref().unwrap();
    assert_eq!(graph.bytes, std::fs::metadata(&source).unwrap().len() + weights.len() as u64);
    // Other weights make another bundle.
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(&source, directory.path().join("external.onnx")).unwrap();
    std::fs::write(directory.path().join("external.data"), vec![1; weights.len()]).unwrap();
    let copy = Source::Onnx(directory.path().join("external.onnx"));
    let request = common::request(copy, &[Precision::F32], held.path());
    let other = Bundle::open(prepare::prepare(&request).unwrap()).unwrap();
    assert_ne!(other.directory(), bundle.directory());
}

#[test]
fn a_name_that_leads_elsewhere_or_is_a_bundle_s_own_is_refused() {
    let outer = tempfile::tempdir().unwrap();
    let directory = outer.path().join("inner");
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("model.onnx");
    for name in ["../secret.bin", "/etc/hostname", "a/../../b.bin", "no\0named.data", "manifest.json"] {
        std::fs::write(&path, naming(name)).unwrap();
        refused(&path, &["model.onnx", "such as model.data"]);
    }
    // Names of other lengths need another ONNX file.
    for name in ["f32.safetensors", "tokenizer.json", "pooling.json", "config.json", "graph.onnx", "x"] {
        let bytes = model_naming(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::write(directory.join(name), [0; 8]).unwrap();
        if name == "x" {
            prepared(Source::Onnx(path.clone()));
        } else {
            refused(&path, &["model.onnx", name, "such as model.data"]);
        }
    }
}

/// The bytes of a field of a protobuf message that is a message or text.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

/// An ONNX file with one weight, its output: two floats in a file of this name.
fn model_naming(name: &str) -> Vec<u8> {
    let location = [field(1, b"location"), field(2, name.as_bytes())].concat();
    let weight =
        [&[1 << 3, 2, 2 << 3, 1][..], &field(8, b"y"), &field(13, &location), &[14 << 3, 1]].concat();
    let output = [field(1, b"y"), field(2, &field(1, &[1 << 3, 1]))].concat();
    let graph = [field(5, &weight), field(12, &output)].concat();
    [&[1 << 3, 8][..], &field(7, &graph)].concat()
}

#[test]
#[cfg(unix)]
fn a_link_that_leaves_the_directory_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), [0; 216]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("external.onnx");
    std::fs::copy(file("external.onnx"), &path).unwrap();
    refused(&path, &["external.data", "no such file"]);
    std::os::unix::fs::symlink(outside.path().join("secret"), path.with_file_name("external.data")).unwrap();
    refused(&path, &["external.data", "leaves the model's directory"]);
}

#[test]
fn other_precisions_and_damaged_files_are_refused() {
    let error = refusal(Source::Onnx(file("scalars.onnx")), Precision::F16);
    assert!(matches!(error, PrepareError::Request(_)), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("some.onnx");
    refused(&path, &["some.onnx", "no such file"]);
    for bytes in [&b""[..], b"a text", &[0xff; 100]] {
        std::fs::write(&path, bytes).unwrap();
        refused(&path, &["some.onnx is not a model"]);
    }
}
