//! The chat template of a source as the bundle keeps it: `tokenizer_config.json` with the template, the special tokens
//! that it may name, and nothing else.

use serde_json::{Map, Value};

use crate::error::PrepareError;
use crate::model::{Document, SourceFile};

pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Where newer models have their template; it overrides the one in `tokenizer_config.json`.
pub(crate) const TEMPLATE: &str = "chat_template.jinja";

const FIELD: &str = "chat_template";

/// The document of a Hugging Face directory's files, if one of them has a template.
pub(crate) fn of_files(
    config: Option<&SourceFile>,
    template: Option<&SourceFile>,
) -> Result<Option<Document>, PrepareError> {
    let damaged = |file: &SourceFile, reason: String| PrepareError::damaged(file.path(), reason);
    let config_json = match config {
        None => Value::Null,
        Some(file) => serde_json::from_slice(file.bytes())
            .map_err(|e| damaged(file, format!("it does not parse: {e}")))?,
    };
    let (text, name) = match (template, default_template(&config_json)) {
        (Some(file), _) => {
            let text = std::str::from_utf8(file.bytes());
            let text = text.map_err(|_| damaged(file, "it is not UTF-8".into()))?;
            (text, TEMPLATE)
        }
        (None, Some(text)) => (text, TOKENIZER_CONFIG),
        (None, None) => return Ok(None),
    };
    let tokens = config_json.as_object().into_iter().flatten();
    let tokens = tokens.filter_map(|(name, value)| Some((name.as_str(), content(value)?)));
    Ok(Some(document(text, tokens, format!("the template of the source's {name}, with its special tokens"))))
}

/// `tokens` are names and texts; only those called `…_token` are kept.
pub(crate) fn document<'a>(
    template: &str,
    tokens: impl Iterator<Item = (&'a str, &'a str)>,
    derived: String,
) -> Document {
    let tokens = tokens.filter(|(name, _)| name.ends_with("_token"));
    let mut fields: Map<_, _> = tokens.map(|(name, text)| (name.to_owned(), Value::from(text))).collect();
    fields.insert(FIELD.to_owned(), template.into());
    let mut bytes = serde_json::to_vec_pretty(&fields).expect("a value is valid JSON");
    bytes.push(b'\n');
    Document { bytes, derived }
}

/// The template, or of several the one for chats without tools.
fn default_template(config: &Value) -> Option<&str> {
    match &config[FIELD] {
        Value::String(text) => Some(text),
        Value::Array(named) => named.iter().find(|one| one["name"] == "default")?["template"].as_str(),
        _ => None,
    }
}

/// A special token is a text, or an object with a text.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}
