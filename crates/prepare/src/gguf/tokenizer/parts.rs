//! Common parts of both schemes of tokenizers: tokens with their types, and the parts of a tokenizer.json.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::gguf::metadata::{Metadata, missing};

/// Values of `tokenizer.ggml.token_type`.
pub(super) mod token_type {
    pub(crate) const NORMAL: i64 = 1;
    pub(crate) const UNKNOWN: i64 = 2;
    pub(crate) const CONTROL: i64 = 3;
    pub(crate) const USER_DEFINED: i64 = 4;
    /// A placeholder for an id that no text has.
    pub(crate) const UNUSED: i64 = 5;
}

/// The differences of the two schemes.
pub(super) struct Parts {
    pub(super) merges: Vec<(String, String)>,
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) decoder: Value,
    /// Fields of the BPE model that are not at their defaults.
    pub(super) model: Vec<(&'static str, Value)>,
    /// Whether a text begins with the beginning-of-sequence token where the file does not say.
    pub(super) add_bos: bool,
    pub(super) derived: String,
}

pub(super) struct Vocabulary<'a> {
    pub(super) tokens: Vec<&'a str>,
    pub(super) types: Vec<i64>,
    /// Ids of all tokens but placeholders.
    pub(super) ids: BTreeMap<&'a str, usize>,
}

impl<'a> Vocabulary<'a> {
    pub(super) fn read(metadata: &Metadata<'a>, vocab_size: usize) -> Result<Vocabulary<'a>, String> {
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
    pub(super) fn added(&self) -> Vec<Value> {
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
    pub(super) fn merges(&self, metadata: &Metadata<'_>) -> Result<Vec<(String, String)>, String> {
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
