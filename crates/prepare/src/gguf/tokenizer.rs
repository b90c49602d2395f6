//! `tokenizer.ggml.*` to tokenizer.json.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::reader::{Metadata, missing};
use crate::model::Document;

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
        "gpt2" => self::parts(metadata, &vocabulary)?,
        _ => sentencepiece_parts(metadata, &vocabulary)?,
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

// Byte-level BPE.
//
// A GGUF has vocabulary and merges, but only a name for the way in which text is split before them. The
// meaning of each name is taken from the tokenizer.json of the models with it.

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

fn parts(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Parts, String> {
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

// Common parts of both schemes of tokenizers: tokens with their types, and the parts of a tokenizer.json.

/// Values of `tokenizer.ggml.token_type`.
mod token_type {
    pub(crate) const NORMAL: i64 = 1;
    pub(crate) const UNKNOWN: i64 = 2;
    pub(crate) const CONTROL: i64 = 3;
    pub(crate) const USER_DEFINED: i64 = 4;
    /// A placeholder for an id that no text has.
    pub(crate) const UNUSED: i64 = 5;
}

/// The differences of the two schemes.
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
    /// Ids of all tokens but placeholders.
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

    /// `tokenizer.ggml.merges`; both parts of each merge, and its result, must be tokens.
    fn merges(&self, metadata: &Metadata<'_>) -> Result<Vec<(String, String)>, String> {
        let key = "tokenizer.ggml.merges";
        let pair = |merge: &str| {
            let (left, right) =
                merge.split_once(' ').ok_or_else(|| format!("merge {merge:?} is not a pair of tokens"))?;
            let whole = format!("{left}{right}");
            match [left, right, &whole].into_iter().find(|token| !self.ids.contains_key(token)) {
                Some(unknown) => {
                    Err(format!("merge {merge:?} needs the token {unknown:?}, which the vocabulary lacks"))
                }
                None => Ok((left.to_owned(), right.to_owned())),
            }
        };
        metadata.texts(key)?.ok_or_else(|| missing(key))?.into_iter().map(pair).collect()
    }
}

// SentencePiece's BPE, as Llama 2, Mistral and TinyLlama have it.
//
// SentencePiece joins the two neighbours with the best-scored union; tokenizers needs a list of merges. The
// list is made as in Hugging Face's own conversion: every way to put a piece together from two others, the
// piece with the best score first.

/// Replaces a space within pieces.
const SPACE: &str = "\u{2581}";

fn sentencepiece_parts(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Parts, String> {
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
