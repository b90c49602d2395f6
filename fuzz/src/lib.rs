//! Fuzz targets: every reader of files and lines that others may have written, each as a function of bytes.
//!
//! A target may accept its input or refuse it with a sentence. Anything else is a finding: a panic, a hang,
//! memory beyond a bound, a refusal without a reason, accepted input that is read back differently.
//! `docs/evidence/fuzzing.md` says how they are run. The functions are the ones that the program calls, with
//! bytes in place of a path where they can.

mod files;
mod judged;
pub mod memory;
pub mod models;
pub mod mutate;
mod roundtrip;
mod settings;
mod talk;

use std::path::{Path, PathBuf};

use protocol::untrusted;

/// Most characters of a sentence on an input that is refused. Names from the input are in it.
const LONGEST: usize = 4000;

/// A reader, as a function of its input.
pub struct Target {
    pub name: &'static str,
    /// The form of the input, for mutations that keep it.
    pub form: Form,
    read: fn(&[u8]) -> Outcome,
    /// The most memory that reading may hold at once: bytes, and bytes for each byte of input.
    memory: (usize, usize),
}

/// `Err` is the sentence with which the input is refused.
type Outcome = Result<(), String>;

/// The form of a target's inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Bytes,
    Json,
    JsonLines,
    /// A JSON header after its length, and data.
    Safetensors,
}

const MIB: usize = 1 << 20;

/// Every target. Each has a directory of seeds, `corpus/NAME`.
pub const TARGETS: [Target; 19] = [
    Target { name: "gguf", form: Form::Bytes, read: files::gguf, memory: (64 * MIB, 256) },
    Target { name: "safetensors", form: Form::Safetensors, read: files::safetensors, memory: (8 * MIB, 64) },
    Target { name: "onnx", form: Form::Bytes, read: files::onnx, memory: (8 * MIB, 512) },
    Target { name: "index", form: Form::Json, read: files::index, memory: (MIB, 64) },
    Target { name: "config", form: Form::Json, read: files::config, memory: (64 * MIB, 64) },
    Target { name: "tokenizer", form: Form::Json, read: files::tokenizer, memory: (64 * MIB, 256) },
    Target { name: "vocabulary", form: Form::Bytes, read: files::vocabulary, memory: (64 * MIB, 512) },
    Target { name: "manifest", form: Form::Json, read: files::manifest, memory: (MIB, 64) },
    Target { name: "events", form: Form::JsonLines, read: talk::events, memory: (64 * MIB, 256) },
    Target { name: "job", form: Form::JsonLines, read: talk::job, memory: (MIB, 64) },
    Target { name: "journal", form: Form::JsonLines, read: judged::journal, memory: (64 * MIB, 256) },
    Target { name: "report", form: Form::Json, read: judged::report, memory: (64 * MIB, 256) },
    Target { name: "page", form: Form::Json, read: judged::page, memory: (64 * MIB, 256) },
    Target { name: "history", form: Form::JsonLines, read: judged::history, memory: (64 * MIB, 256) },
    Target { name: "plan", form: Form::Json, read: settings::plan, memory: (8 * MIB, 256) },
    Target { name: "configs", form: Form::Bytes, read: settings::configs, memory: (8 * MIB, 256) },
    Target { name: "prompts", form: Form::Bytes, read: settings::prompts, memory: (8 * MIB, 256) },
    // An archive may be a thousand times as large when it is unpacked.
    Target { name: "arrays", form: Form::Bytes, read: settings::arrays, memory: (8 * MIB, 4096) },
    Target { name: "text", form: Form::Bytes, read: settings::foreign_text, memory: (MIB, 64) },
];

impl Target {
    pub fn named(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Reads an input. `Err` is the sentence with which it is refused; a panic is a finding.
    pub fn run(&self, input: &[u8]) -> Outcome {
        let (outcome, peak) = memory::peak_of(|| (self.read)(input));
        let (fixed, each) = self.memory;
        let bound = fixed + each * input.len();
        assert!(peak <= bound, "an input of {} bytes took {peak} bytes of memory", input.len());
        if let Err(sentence) = &outcome {
            // As it is printed.
            check(&untrusted::line(sentence));
        }
        outcome
    }

    /// Inputs to begin with, including earlier findings.
    pub fn corpus(&self) -> std::io::Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(root().join("corpus").join(self.name))?;
        let mut files: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        files.sort();
        Ok(files)
    }
}

/// This crate's directory.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn check(sentence: &str) {
    assert!(!sentence.trim().is_empty(), "an input is refused without a word");
    assert!(!sentence.contains(char::is_control), "a refusal has more than one line: {sentence:?}");
    let length = sentence.chars().count();
    assert!(length <= LONGEST, "an input is refused in {length} characters");
}

/// The sentence of an error.
fn sentence(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// As text, which most inputs must be.
fn text(input: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(input).map_err(|error| format!("it is not UTF-8: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(read: fn(&[u8]) -> Outcome) -> Target {
        Target { name: "made up", form: Form::Bytes, read, memory: (1000, 0) }
    }

    #[test]
    fn a_refusal_has_words() {
        assert!(target(|_| Err("it is wrong".into())).run(b"").is_err());
        assert!(std::panic::catch_unwind(|| target(|_| Err(" ".into())).run(b"")).is_err());
    }

    #[test]
    fn every_target_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(names.len(), TARGETS.len());
        assert!(names.iter().all(|name| Target::named(name).is_some_and(|target| target.name == *name)));
    }
}
