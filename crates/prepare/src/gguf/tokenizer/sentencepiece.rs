//! SentencePiece's BPE, as Llama 2, Mistral and TinyLlama have it.
//!
//! SentencePiece joins the two neighbours with the best-scored union; tokenizers needs a list of merges. The
//! list is made as in Hugging Face's own conversion: every way to put a piece together from two others, the
//! piece with the best score first.

use serde_json::{Value, json};

use super::parts::{Parts, Vocabulary, token_type};
use crate::gguf::metadata::{Metadata, missing};

/// Replaces a space within pieces.
const SPACE: &str = "\u{2581}";

pub(super) fn parts(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Parts, String> {
    if metadata.contains("tokenizer.ggml.precompiled_charsmap")
        || metadata.flag("tokenizer.ggml.remove_extra_whitespaces")? == Some(true)
    {
        return Err("its tokenizer normalises text in a way that is not supported".into());
    }
    let merges = merges(metadata, vocabulary)?;
    let add_prefix = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut normalizers = vec![json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE })];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if add_prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let unknown = vocabulary.types.iter().position(|&kind| kind == token_type::UNKNOWN);
    let has_bytes = (0..=u8::MAX).all(|byte| vocabulary.ids.contains_key(&*format!("<0x{byte:02X}>")));
    Ok(Parts {
        merges,
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        pre_tokenizer: Value::Null,
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        model: vec![
            ("unk_token", json!(unknown.map(|id| vocabulary.tokens[id]))),
            ("fuse_unk", json!(true)),
            ("byte_fallback", json!(has_bytes)),
        ],
        add_bos: true,
        derived: "SentencePiece vocabulary and scores".into(),
    })
}

fn merges(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Vec<(String, String)>, String> {
    let key = "tokenizer.ggml.scores";
    let scores = metadata.floats(key)?.ok_or_else(|| missing(key))?;
    let count = vocabulary.tokens.len();
    if scores.len() != count {
        return Err(format!("it has {count} tokens, but {} scores", scores.len()));
    }
    let is_normal = |id: &usize| vocabulary.types[*id] == token_type::NORMAL;
    let piece_id = |token: &str| vocabulary.ids.get(token).copied().filter(is_normal);
    let pieces: Vec<_> = (0..count).filter(is_normal).collect();
    if pieces.windows(2).all(|pair| scores[pair[0]] == scores[pair[1]]) {
        return Err("its scores are all the same and do not say what is joined first".into());
    }
    let mut merges = Vec::new();
    for id in pieces {
        let token = vocabulary.tokens[id];
        let splits = token.char_indices().map(|(at, _)| token.split_at(at));
        let mut splits: Vec<_> =
            splits.filter_map(|(left, right)| Some((piece_id(left)?, piece_id(right)?))).collect();
        splits.sort_unstable();
        merges.extend(splits.into_iter().map(|split| (scores[id], split)));
    }
    // Stable: of equal scores, such as those of runs of spaces, the piece with the smaller id is first.
    merges.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let text = |id: usize| vocabulary.tokens[id].to_owned();
    Ok(merges.into_iter().map(|(_, (left, right))| (text(left), text(right))).collect())
}
