//! A weights file is checked before anyone computes with it.

use bundle::{Precision, TensorSpec, Weights};
use serde_json::{Value, json};

fn file(header: &Value, bytes: usize) -> tempfile::NamedTempFile {
    let header = header.to_string();
    let mut contents = (header.len() as u64).to_le_bytes().to_vec();
    contents.extend_from_slice(header.as_bytes());
    contents.extend((0..bytes).map(|i| i as u8));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), contents).unwrap();
    file
}

fn tensor(kind: &str, shape: &[usize], from: usize, to: usize) -> Value {
    json!({"dtype": kind, "shape": shape, "data_offsets": [from, to]})
}

fn expected(names: &[&str]) -> Vec<TensorSpec> {
    names.iter().map(|name| TensorSpec { name: (*name).into(), shape: vec![1, 2] }).collect()
}

fn map(header: &Value, bytes: usize, names: &[&str]) -> Result<Weights, String> {
    Weights::map(file(header, bytes).path(), Precision::F32, &expected(names)).map_err(|e| e.to_string())
}

#[test]
fn neighbours_stack_without_a_copy() {
    let header = json!({"a": tensor("F32", &[1, 2], 0, 8), "b": tensor("F32", &[1, 2], 8, 16)});
    let weights = map(&header, 16, &["a", "b"]).unwrap();
    let stacked = weights.stacked(&["a".into(), "b".into()]).unwrap();
    assert_eq!((stacked.shape.as_slice(), stacked.bytes.len(), stacked.bytes[8]), (&[2, 2][..], 16, 8));
    assert_eq!(stacked.file_offset, weights.tensor("a").unwrap().file_offset);
    let error = weights.stacked(&["b".into(), "a".into()]).unwrap_err().to_string();
    assert!(error.contains("a does not lie directly behind b"), "{error}");
}

#[test]
fn what_was_released_reads_as_before() {
    let header = json!({"a": tensor("F32", &[1, 2], 0, 8), "b": tensor("F32", &[1, 2], 8, 16)});
    let weights = map(&header, 16, &["a", "b"]).unwrap();
    let tensor = weights.tensor("b").unwrap();
    let before = tensor.bytes.to_vec();
    weights.release(&tensor);
    assert_eq!(weights.tensor("b").unwrap().bytes, before);
}

#[test]
fn what_is_missing_or_of_another_shape_or_type_is_named() {
    let one = json!({"a": tensor("F32", &[1, 2], 0, 8)});
    assert!(map(&one, 8, &["a", "b"]).unwrap_err().contains("has no tensor \"b\""));
    let turned = json!({"a": tensor("F32", &[2, 1], 0, 8)});
    assert!(map(&turned, 8, &["a"]).unwrap_err().contains("shape [2, 1], but config.json calls for [1, 2]"));
    let half = json!({"a": tensor("F16", &[1, 2], 0, 4)});
    assert!(map(&half, 4, &["a"]).unwrap_err().contains("stored as F16, not as f32"));
}

#[test]
fn a_header_that_lies_is_refused() {
    for (header, bytes) in [
        (json!({"a": tensor("F32", &[1, 2], 0, 8)}), 7),
        (json!({"a": tensor("F32", &[1, 2], 0, 8)}), 9),
        (json!({"a": tensor("F32", &[1, 2], 8, 16)}), 16),
        (json!({"a": tensor("F32", &[1, 2], 0, 4)}), 4),
        (json!({"a": 3}), 0),
    ] {
        let error = map(&header, bytes, &["a"]).unwrap_err();
        assert!(error.contains("not a valid safetensors file"), "{header}: {error}");
    }
}

#[test]
fn a_truncated_header_is_refused() {
    let file = file(&json!({}), 0);
    std::fs::write(file.path(), u64::MAX.to_le_bytes()).unwrap();
    assert!(Weights::map(file.path(), Precision::F32, &[]).is_err());
    std::fs::write(file.path(), []).unwrap();
    assert!(Weights::map(file.path(), Precision::F32, &[]).is_err());
}
