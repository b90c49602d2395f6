//! A weights file is checked before it is used.

use bundle::{Element, Precision, StoredTensor, Weights};
use serde_json::{Value, json};

fn file(header: &Value, bytes: usize) -> tempfile::NamedTempFile {
    let mut header = header.to_string();
    // The format allows spaces behind the header.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
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

fn expected(names: &[&str]) -> Vec<StoredTensor> {
    let stored = |name: &&str| StoredTensor {
        name: (*name).into(),
        shape: vec![1, 2],
        element: Element::F32,
        blocks: None,
    };
    names.iter().map(stored).collect()
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
    assert!(map(&half, 4, &["a"]).unwrap_err().contains("stored as F16, not as F32"));
}

#[test]
fn a_tensor_that_cannot_be_read_in_place_is_refused() {
    for shift in 1..=4 {
        let a = tensor("F32", &[1, 2], shift, shift + 8);
        let file = file(&json!({"odd": tensor("U8", &[shift], 0, shift), "a": a}), shift + 8);
        let map = |precision| Weights::map(file.path(), precision, &expected(&["a"]));
        assert!(map(Precision::File).is_ok(), "its vectors are copied");
        match map(Precision::F32) {
            Ok(_) => assert_eq!(shift, 4),
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.contains("which is not a multiple of 4, so it cannot be read in place"),
                    "{error}"
                );
            }
        }
    }
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

/// A file of one quantised tensor `w` of `[rows, columns]`.
fn quantised_file(
    precision: Precision,
    rows: usize,
    columns: usize,
    codes: &[u8],
    scales: &[f32],
) -> Weights {
    let packed = if precision == Precision::Int8 { columns } else { columns / 2 };
    let element = if precision == Precision::Int8 { Element::I8 } else { Element::U8 };
    let scale_shape = match precision {
        Precision::Int4 => vec![rows, columns / 32],
        _ => vec![scales.len()],
    };
    let end = codes.len() + 4 * scales.len();
    let header = json!({
        "w": tensor(element.name(), &[rows, packed], 0, codes.len()),
        "w.scale": tensor("F32", &scale_shape, codes.len(), end),
    });
    let file = file(&header, 0);
    let mut contents = std::fs::read(file.path()).unwrap();
    contents.extend_from_slice(codes);
    contents.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
    std::fs::write(file.path(), contents).unwrap();
    let stored = [
        StoredTensor { name: "w".into(), shape: vec![rows, packed], element, blocks: None },
        StoredTensor { name: "w.scale".into(), shape: scale_shape, element: Element::F32, blocks: None },
    ];
    Weights::map(file.path(), precision, &stored).unwrap()
}

#[test]
fn int8_has_a_scale_for_each_row() {
    let codes: Vec<u8> = (0..64).map(|i| (i as i8 - 32) as u8).collect();
    let weights = quantised_file(Precision::Int8, 2, 32, &codes, &[0.5, 2.0]);
    assert!(weights.is_quantised("w"));
    let quantised = weights.quantised(&["w".into()]).unwrap();
    let values = quantised.dequantised();
    assert_eq!((values[0], values[31], values[32], values[63]), (-16.0, -0.5, 0.0, 62.0));
    assert_eq!(quantised.integers(1)[..2], [0, 1]);
}

#[test]
fn int4_has_the_even_column_in_the_low_half_and_a_scale_for_each_group() {
    let mut codes = vec![0x88; 32];
    codes[0] = 0xf0; // columns 0 and 1: −8 and 7
    codes[16] = 0x79; // columns 32 and 33, the second group: 1 and −1
    let weights = quantised_file(Precision::Int4, 1, 64, &codes, &[0.25, 3.0]);
    let quantised = weights.quantised(&["w".into()]).unwrap();
    let values = quantised.dequantised();
    assert_eq!((values[0], values[1], values[2]), (-2.0, 1.75, 0.0));
    assert_eq!((values[32], values[33], values[34]), (3.0, -3.0, 0.0));
    assert_eq!(quantised.integers(0)[..2], [-8, 7]);
}

#[test]
fn nf4_has_the_even_column_in_the_high_half_and_blocks_across_rows() {
    let mut codes = vec![0x77; 64];
    codes[0] = 0x0f; // row 0, columns 0 and 1: −1 and 1
    codes[32] = 0xf7; // weight 64, the first of row 2: the second block
    let weights = quantised_file(Precision::Nf4, 4, 32, &codes, &[2.0, 4.0]);
    let values = weights.quantised(&["w".into()]).unwrap().dequantised();
    assert_eq!((values[0], values[1], values[2], values[64]), (-2.0, 2.0, 0.0, 4.0));
}
