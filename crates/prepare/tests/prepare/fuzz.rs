//! Whatever is done to a file, reading it ends in a bundle or in one sentence: never in a panic, and never
//! in memory that only a lying header claims.

use std::path::Path;

use bundle::Precision;
use prepare::{PrepareError, Source, prepare};

use crate::common::{Model, request, safetensors_file};
use crate::gguf::Gguf;
use crate::tokenizer::with_tokenizer;

/// Cuts the file off and changes a bit, at every `step`-th byte of the header and at some of the data.
fn mutations(original: &[u8], header: usize, step: usize, mut attempt: impl FnMut(&[u8])) {
    let data = (header..original.len()).step_by(original.len() / 20);
    let spots: Vec<_> = (0..header).step_by(step).chain(data).collect();
    for &length in &spots {
        attempt(&original[..length]);
    }
    let mut changed = original.to_vec();
    for (index, &at) in spots.iter().enumerate() {
        let bit = 1 << (index % 8);
        changed[at] ^= bit;
        attempt(&changed);
        changed[at] ^= bit;
    }
}

fn survives(source: &Source, bundles: &Path) {
    match prepare(&request(source.clone(), &[Precision::F16], bundles)) {
        Ok(_) => {}
        Err(PrepareError::Read { .. } | PrepareError::Write { .. }) => panic!("the machine is not at fault"),
        Err(e) => assert!(!e.to_string().is_empty() && !e.to_string().contains('\n'), "{e}"),
    }
}

/// Asserts that `work` claims no memory on a header's word: that would be terabytes, while all tests
/// at once take less than this.
#[cfg(target_os = "linux")]
fn claims_little(work: impl FnOnce()) {
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmPeak:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    let before = peak();
    work();
    let claimed = peak() - before;
    assert!(claimed < 4096, "{claimed} MiB were claimed");
}

#[cfg(not(target_os = "linux"))]
fn claims_little(work: impl FnOnce()) {
    work();
}

#[test]
fn any_damage_to_a_gguf_is_survived() {
    let gguf = with_tokenizer(Gguf::from_tiny("llama-gqa-tied"), "llama-bpe");
    let original = gguf.bytes();
    let (directory, path) = gguf.write();
    let source = Source::Gguf(path.clone());
    claims_little(|| {
        mutations(&original, 9000, 5, |bytes| {
            std::fs::write(&path, bytes).unwrap();
            survives(&source, &directory.path().join("bundles"));
            let _ = std::fs::remove_dir_all(directory.path().join("bundles"));
        });
    });
}

#[test]
fn any_damage_to_a_safetensors_file_is_survived() {
    let model = Model::tiny("gpt2");
    let original = safetensors_file(model.tensors.iter());
    let directory = model.write();
    let source = Source::Directory(directory.path().into());
    claims_little(|| {
        mutations(&original, 4000, 5, |bytes| {
            std::fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
            survives(&source, &directory.path().join("bundles"));
            let _ = std::fs::remove_dir_all(directory.path().join("bundles"));
        });
    });
}
