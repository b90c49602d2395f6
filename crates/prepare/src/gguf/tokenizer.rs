//! `tokenizer.ggml.*` to tokenizer.json.
//!
//! A GGUF keeps vocabulary and merges, but of the way in which text is split before them only a name.
//! What each name stands for is taken from the tokenizer.json of the models that bear it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::metadata::{Metadata, missing};
use crate::model::Document;

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

/// Values of `tokenizer.ggml.token_type`.
mod token_type {
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
    /// A placeholder for an id that no text has.
    pub(super) const UNUSED: i64 = 5;
}

/// The tokenizer, or the reason why none can be built. That is no error: token ids can still be fed to
/// the model.
pub(crate) fn build(metadata: &Metadata<'_>, vocab_size: usize) -> Result<Document, String> {
    match metadata.text("tokenizer.ggml.model")? {
        None => return Err("the GGUF holds no tokenizer".into()),
        Some("gpt2") => {}
        Some(other) => {
            return Err(format!(
                "its tokenizer is of the kind {other:?}; byte-level BPE (\"gpt2\") is supported"
            ));
        }
    }
    let vocabulary = Vocabulary::read(metadata, vocab_size)?;
    let split = Split::of(metadata)?;
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": split.normalizer,
        "pre_tokenizer": split.pre_tokenizer,
        "post_processor": post_processor(metadata, &vocabulary, split.add_bos)?,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": split.ignore_merges,
            "vocab": vocabulary.ids,
            "merges": vocabulary.merges,
        },
    });
    let bytes = serde_json::to_vec(&tokenizer).expect("a value is valid JSON");
    let derived = format!("built from the GGUF's vocabulary and merges, pre-tokenizer {}", split.name);
    Ok(Document { bytes, derived })
}

struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<i64>,
    ids: BTreeMap<&'a str, usize>,
    merges: Vec<(&'a str, &'a str)>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &Metadata<'a>, vocab_size: usize) -> Result<Vocabulary<'a>, String> {
        let key = "tokenizer.ggml.tokens";
        let tokens = metadata.texts(key)?.ok_or_else(|| missing(key))?;
        let count = tokens.len();
        if count > vocab_size {
            return Err(format!("it has {count} tokens, but the embedding has {vocab_size} rows"));
        }
        let types = match metadata.integers("tokenizer.ggml.token_type")? {
            None => vec![1; count],
            Some(types) if types.len() == count => types,
            Some(types) => return Err(format!("it has {count} tokens, but {} token types", types.len())),
        };
        let mut ids = BTreeMap::new();
        for (id, (&token, &kind)) in tokens.iter().zip(&types).enumerate() {
            if kind == token_type::UNUSED {
                continue;
            }
            if let Some(first) = ids.insert(token, id) {
                return Err(format!("tokens {first} and {id} are both {token:?}"));
            }
        }
        let key = "tokenizer.ggml.merges";
        let mut merges = Vec::new();
        for merge in metadata.texts(key)?.ok_or_else(|| missing(key))? {
            let (left, right) =
                merge.split_once(' ').ok_or_else(|| format!("merge {merge:?} is not a pair of tokens"))?;
            let whole = format!("{left}{right}");
            if let Some(unknown) = [left, right, &whole].into_iter().find(|token| !ids.contains_key(token)) {
                return Err(format!("merge {merge:?} needs the token {unknown:?}, which there is not"));
            }
            merges.push((left, right));
        }
        Ok(Vocabulary { tokens, types, ids, merges })
    }

    /// Tokens that are recognised in the text before it is split.
    fn added(&self) -> Vec<Value> {
        let added = self.tokens.iter().zip(&self.types).enumerate();
        let added = added.filter_map(|(id, (token, &kind))| {
            let special = match kind {
                token_type::CONTROL | token_type::UNKNOWN => true,
                token_type::USER_DEFINED => false,
                _ => return None,
            };
            Some(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special
            }))
        });
        added.collect()
    }
}

/// What `tokenizer.ggml.pre` stands for.
struct Split {
    name: String,
    normalizer: Value,
    pre_tokenizer: Value,
    /// Whether a word that is a token as a whole is that token, whatever the merges make of it.
    ignore_merges: bool,
    /// Whether a text begins with the beginning-of-sequence token where the file does not say.
    add_bos: bool,
}

impl Split {
    fn of(metadata: &Metadata<'_>) -> Result<Split, String> {
        let said = metadata.text("tokenizer.ggml.pre")?;
        let name = match (said, metadata.text("general.architecture")?) {
            (Some(name), _) if name != "default" => name,
            // Files from before there was such a name, or by a converter that did not know it.
            (_, Some("qwen2" | "qwen3")) => "qwen2",
            _ => "gpt-2",
        };
        let byte_level = |use_regex: bool| {
            json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex
            })
        };
        let sequence =
            |first: Value, second: Value| json!({ "type": "Sequence", "pretokenizers": [first, second] });
        let split = |pattern: &str| {
            json!({
                "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false
            })
        };
        let plain = Split {
            name: match said {
                Some(said) if said == name => format!("{name:?}"),
                Some(said) => format!("{name:?} (the file says {said:?})"),
                None => format!("{name:?} (the file does not say)"),
            },
            normalizer: Value::Null,
            pre_tokenizer: byte_level(true),
            ignore_merges: false,
            add_bos: false,
        };
        Ok(match name {
            "gpt-2" | "gpt2" => plain,
            "smollm" => {
                let digits = json!({ "type": "Digits", "individual_digits": true });
                Split { pre_tokenizer: sequence(digits, byte_level(true)), ..plain }
            }
            "llama-bpe" | "llama3" | "llama-v3" => Split {
                pre_tokenizer: sequence(split(split_pattern!(r"\p{N}{1,3}")), byte_level(false)),
                ignore_merges: true,
                add_bos: true,
                ..plain
            },
            "qwen2" => Split {
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
}

/// Puts the beginning- and end-of-sequence tokens around a text, where the file asks for them.
fn post_processor(
    metadata: &Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
    add_bos: bool,
) -> Result<Value, String> {
    let asked = |name: &str, default: bool| {
        Ok::<_, String>(metadata.flag(&format!("tokenizer.ggml.add_{name}_token"))?.unwrap_or(default))
    };
    let token = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let id = metadata.count(&key)?.ok_or_else(|| missing(&key))?;
        let token = vocabulary.tokens.get(id);
        token.map(|&token| (id, token)).ok_or_else(|| format!("metadata {key:?} is {id}, which is no token"))
    };
    let bos = if asked("bos", add_bos)? { Some(token("bos")?) } else { None };
    let eos = if asked("eos", false)? { Some(token("eos")?) } else { None };
    if bos.is_none() && eos.is_none() {
        return Ok(Value::Null);
    }
    let piece = |(_, token): (usize, &str), sequence: usize| json!({ "SpecialToken": { "id": token, "type_id": sequence } });
    let text = |name: &str, sequence: usize| -> Vec<Value> {
        let whole = json!({ "Sequence": { "id": name, "type_id": sequence } });
        let bos = bos.map(|token| piece(token, sequence));
        let eos = eos.map(|token| piece(token, sequence));
        bos.into_iter().chain([whole]).chain(eos).collect()
    };
    let pair = [text("A", 0), text("B", 1)].concat();
    let special: serde_json::Map<_, _> = [bos, eos]
        .into_iter()
        .flatten()
        .map(|(id, token)| (token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] })))
        .collect();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": pair,
        "special_tokens": special,
    }))
}
