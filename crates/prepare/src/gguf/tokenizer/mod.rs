//! `tokenizer.ggml.*` to tokenizer.json.

mod byte_level;
mod sentencepiece;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::metadata::{Metadata, missing};
use crate::model::Document;

/// Values of `tokenizer.ggml.token_type`.
mod token_type {
    pub(super) const NORMAL: i64 = 1;
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
    /// A placeholder for an id that no text has.
    pub(super) const UNUSED: i64 = 5;
}

/// The tokenizer, or the reason why none can be built. That is no error: token ids can still be fed to
/// the model.
pub(crate) fn build(metadata: &Metadata<'_>, vocab_size: usize) -> Result<Document, String> {
    let scheme = match metadata.text("tokenizer.ggml.model")? {
        None => return Err("the GGUF holds no tokenizer".into()),
        Some(name @ ("gpt2" | "llama")) => name,
        Some(other) => {
            return Err(format!(
                "its tokenizer is of the kind {other:?}; supported are \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece)"
            ));
        }
    };
    let vocabulary = Vocabulary::read(metadata, vocab_size)?;
    let parts = match scheme {
        "gpt2" => byte_level::parts(metadata, &vocabulary)?,
        _ => sentencepiece::parts(metadata, &vocabulary)?,
    };
    let mut model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": false,
        "vocab": vocabulary.ids,
        "merges": parts.merges,
    });
    for (field, value) in parts.model {
        model[field] = value;
    }
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor(metadata, &vocabulary, parts.add_bos)?,
        "decoder": parts.decoder,
        "model": model,
    });
    let bytes = serde_json::to_vec(&tokenizer).expect("a value is valid JSON");
    Ok(Document { bytes, derived: format!("built from the GGUF's {}", parts.derived) })
}

/// What the two schemes differ in.
struct Parts {
    merges: Vec<(String, String)>,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    /// Fields of the BPE model that are not at their defaults.
    model: Vec<(&'static str, Value)>,
    /// Whether a text begins with the beginning-of-sequence token where the file does not say.
    add_bos: bool,
    derived: String,
}

struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<i64>,
    /// Of all but placeholders.
    ids: BTreeMap<&'a str, usize>,
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
            None => vec![token_type::NORMAL; count],
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
        Ok(Vocabulary { tokens, types, ids })
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

    /// `tokenizer.ggml.merges`, whose every part and outcome is a token.
    fn merges(&self, metadata: &Metadata<'_>) -> Result<Vec<(String, String)>, String> {
        let key = "tokenizer.ggml.merges";
        let pair = |merge: &str| {
            let (left, right) =
                merge.split_once(' ').ok_or_else(|| format!("merge {merge:?} is not a pair of tokens"))?;
            let whole = format!("{left}{right}");
            match [left, right, &whole].into_iter().find(|token| !self.ids.contains_key(token)) {
                Some(unknown) => {
                    Err(format!("merge {merge:?} needs the token {unknown:?}, which there is not"))
                }
                None => Ok((left.to_owned(), right.to_owned())),
            }
        };
        metadata.texts(key)?.ok_or_else(|| missing(key))?.into_iter().map(pair).collect()
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
