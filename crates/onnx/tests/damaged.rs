//! Damaged ONNX files: reading succeeds or fails with an error, and nothing else happens.

use onnx::read::{Unreadable, described};

/// Number of damages, over all files.
const PLACES: usize = 1000;

#[test]
fn a_file_with_a_changed_byte_or_cut_off_is_read_or_refused_in_words() {
    let files: Vec<Vec<u8>> =
        conformance::graph_files().iter().map(|file| std::fs::read(file).expect("readable")).collect();
    let mut read = 0;
    for number in 0..PLACES {
        let mut bytes = files[number % files.len()].clone();
        let at = number.wrapping_mul(2_654_435_761) % bytes.len();
        match number / files.len() % 4 {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << (number % 8),
            2 => bytes[at] = 0xff,
            _ => drop(bytes.remove(at)),
        }
        match described(&bytes) {
            Ok(found) => {
                assert_eq!(found.graph.bytes, bytes.len() as u64);
                assert!(!found.graph.outputs.is_empty());
                read += 1;
            }
            Err(Unreadable::NotOnnx(reason) | Unreadable::Unsupported(reason)) => {
                assert!(!reason.is_empty(), "byte {at} of file {}", number % files.len());
            }
        }
    }
    // Many bytes belong to names and weights.
    assert!(read > 0 && read < PLACES, "{read} of {PLACES} were read");
}

#[test]
fn the_files_themselves_are_read() {
    for file in conformance::graph_files() {
        let found = described(&std::fs::read(&file).expect("readable")).expect("it is whole");
        let is_external = file.file_stem().is_some_and(|name| name == "external");
        assert_eq!(!found.external.is_empty(), is_external, "{}", file.display());
    }
}
