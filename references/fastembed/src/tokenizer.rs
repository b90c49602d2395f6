//! A tokenizer for fastembed, which takes texts: its words are token ids.

use std::fmt::Write;

use bundle::ModelConfig;
use fastembed::TokenizerFiles;
use serde_json::{Value, json};

/// The files of a tokenizer that splits a text at its spaces and takes each word for the id that it spells. It adds no
/// special tokens, for ids have them already.
pub(crate) fn files(config: &ModelConfig) -> TokenizerFiles {
    let pad_token = config.encoder.as_ref().map_or(0, |encoder| encoder.pad_token);
    let word = pad_token.to_string();
    let vocabulary: serde_json::Map<String, Value> =
        (0..config.vocab_size).map(|id| (id.to_string(), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": null,
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": word },
    });
    let file = |document: Value| document.to_string().into_bytes();
    TokenizerFiles {
        tokenizer_file: file(tokenizer),
        config_file: file(json!({ "pad_token_id": pad_token })),
        special_tokens_map_file: file(json!({})),
        tokenizer_config_file: file(json!({ "model_max_length": config.max_positions, "pad_token": word })),
    }
}

/// A text of that tokenizer.
pub(crate) fn words(tokens: &[u32]) -> String {
    let mut text = String::new();
    for token in tokens {
        // Writing to a string does not fail.
        let _ = write!(text, "{token} ");
    }
    text
}
