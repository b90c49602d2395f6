//! Byte-level BPE.
//!
//! A GGUF has vocabulary and merges, but only a name for the way in which text is split before them. The
//! meaning of each name is taken from the tokenizer.json of the models with it.

use serde_json::{Value, json};

use super::parts::{Parts, Vocabulary};
use crate::gguf::metadata::Metadata;

/// Llama 3's and Qwen 2's splits differ in how many digits stay together.
macro_rules! split_pattern {
    ($digits:literal) => {
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

pub(super) fn parts(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Parts, String> {
    let said = metadata.text("tokenizer.ggml.pre")?;
    let name = match (said, metadata.text("general.architecture")?) {
        (Some(name), _) if name != "default" => name,
        // Older files have no such name, and some converters do not know it.
        (_, Some("qwen2" | "qwen3")) => "qwen2",
        _ => "gpt-2",
    };
    let plain = Parts {
        merges: vocabulary.merges(metadata)?,
        normalizer: Value::Null,
        pre_tokenizer: byte_level(true),
        decoder: json!({
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true
        }),
        model: Vec::new(),
        add_bos: false,
        derived: match said {
            Some(said) if said == name => format!("vocabulary and merges, pre-tokenizer {name:?}"),
            said => format!(
                "vocabulary and merges, pre-tokenizer {name:?} because the file says {:?}",
                said.unwrap_or("nothing")
            ),
        },
    };
    Ok(match name {
        "gpt-2" | "gpt2" => plain,
        "smollm" => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            Parts { pre_tokenizer: sequence(digits, byte_level(true)), ..plain }
        }
        "llama-bpe" | "llama3" | "llama-v3" => Parts {
            pre_tokenizer: sequence(split(split_pattern!(r"\p{N}{1,3}")), byte_level(false)),
            // A word that is a token as a whole is that token, whatever the merges would give.
            model: vec![("ignore_merges", json!(true))],
            add_bos: true,
            ..plain
        },
        "qwen2" => Parts {
            normalizer: json!({ "type": "NFC" }),
            pre_tokenizer: sequence(split(split_pattern!(r"\p{N}")), byte_level(false)),
            ..plain
        },
        other => {
            return Err(format!(
                "its pre-tokenizer {other:?} is not known; known are gpt-2, smollm, llama-bpe and qwen2"
            ));
        }
    })
}

fn byte_level(use_regex: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex })
}

fn sequence(first: Value, second: Value) -> Value {
    json!({ "type": "Sequence", "pretokenizers": [first, second] })
}

fn split(pattern: &str) -> Value {
    json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
}
