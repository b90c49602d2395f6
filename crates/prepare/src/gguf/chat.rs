//! `tokenizer.chat_template` and the tokens that it may name.

use super::metadata::Metadata;
use crate::chat;
use crate::model::Document;

/// The template's names for special tokens, and the metadata's.
const TOKENS: [(&str, &str); 4] =
    [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")];

/// The document, where the file holds a template. One that is not text is none.
pub(crate) fn build(metadata: &Metadata<'_>) -> Option<Document> {
    let template = metadata.text("tokenizer.chat_template").ok()??;
    let vocabulary = metadata.texts("tokenizer.ggml.tokens").ok().flatten().unwrap_or_default();
    let token = |&(name, key): &(&'static str, &str)| {
        let id = metadata.count(&format!("tokenizer.ggml.{key}_token_id")).ok()??;
        Some((name, *vocabulary.get(id)?))
    };
    let tokens = TOKENS.iter().filter_map(token);
    Some(chat::document(template, tokens, "built from the GGUF's chat template and special tokens".into()))
}
