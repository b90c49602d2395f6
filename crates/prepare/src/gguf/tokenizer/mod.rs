//! `tokenizer.ggml.*` to tokenizer.json.

mod byte_level;
mod parts;
mod sentencepiece;

use serde_json::{Value, json};

use super::metadata::{Metadata, missing};
use crate::model::Document;
use parts::Vocabulary;

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

/// Puts the beginning- and end-of-sequence tokens around a text, if the file says so.
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
        token
            .map(|&token| (id, token))
            .ok_or_else(|| format!("metadata {key:?} is {id}, but there is no such token"))
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
