//! How a sentence encoder pools its tokens' vectors, from sentence-transformers' files in the model's
//! directory.

use std::path::Path;

use bundle::{Pooled, Pooling};
use serde_json::Value;

use crate::error::PrepareError;
use crate::model::{Document, SourceFile};

pub(crate) const POOLING: &str = "1_Pooling/config.json";
const MODULES: &str = "modules.json";
const LENGTHS: &str = "sentence_bert_config.json";
/// Each way's field in the pooling file, and its word in that of newer versions.
const WAYS: [(&str, &str, Pooling); 4] = [
    ("pooling_mode_cls_token", "cls", Pooling::Cls),
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_max_tokens", "max", Pooling::Max),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
];

/// The bundle's document; `None` if the source does not say. Files that were read are added to `files`.
pub(crate) fn of_directory(
    directory: &Path,
    files: &mut Vec<SourceFile>,
) -> Result<Option<Document>, PrepareError> {
    let Some(file) = SourceFile::optional(directory, POOLING)? else { return Ok(None) };
    let modules = SourceFile::optional(directory, MODULES)?;
    let lengths = SourceFile::optional(directory, LENGTHS)?;
    let (of_pooling, of_modules) = (parse(&file)?, modules.as_ref().map(parse).transpose()?);
    let of_lengths = lengths.as_ref().map(parse).transpose()?;
    let has = |module: &Value, end: &str| {
        module.get("type").and_then(Value::as_str).is_some_and(|kind| kind.ends_with(end))
    };
    let listed = of_modules.as_ref().and_then(Value::as_array);
    let mut modules_listed = listed.into_iter().flatten();
    let known = ["Transformer", "Pooling", "Normalize"];
    if let Some(module) = modules_listed.find(|module| !known.iter().any(|end| has(module, end))) {
        let kind = module.get("type").and_then(Value::as_str).unwrap_or("without a type");
        let reason = format!(
            "its vectors go through a module {kind:?}; supported are Transformer, Pooling and Normalize"
        );
        return Err(PrepareError::Unsupported { path: directory.join(MODULES), reason });
    }
    let named = of_pooling.get("pooling_mode").and_then(Value::as_str);
    let is_on = |name: &str| of_pooling.get(name).and_then(Value::as_bool).unwrap_or(false);
    let is_way = |name: &str, word: &str| named.map_or_else(|| is_on(name), |named| named == word);
    let on: Vec<Pooling> =
        WAYS.iter().filter(|(name, word, _)| is_way(name, word)).map(|(_, _, way)| *way).collect();
    let others = of_pooling.as_object().into_iter().flatten().filter(|(name, value)| {
        let is_known = WAYS.iter().any(|(known, _, _)| known == name);
        name.starts_with("pooling_mode_") && !is_known && value.as_bool() == Some(true)
    });
    let (&[pooling], 0) = (&on[..], others.count()) else {
        let reason = "only one of cls, mean, max and last token is supported".to_owned();
        return Err(PrepareError::Unsupported { path: file.path().to_path_buf(), reason });
    };
    let normalise = listed.into_iter().flatten().any(|module| has(module, "Normalize"));
    let max_tokens = of_lengths.as_ref().and_then(|value| value.get("max_seq_length")?.as_u64());
    let pooled = Pooled { pooling, normalise, max_tokens: max_tokens.map(|tokens| tokens as usize) };
    files.extend([Some(file), modules, lengths].into_iter().flatten());
    Ok(Some(document(&pooled, format!("from the source's {POOLING} and what is beside it"))))
}

/// The most common pooling, for an encoder that is only a shape.
pub(crate) fn usual() -> Document {
    document(
        &Pooled { pooling: Pooling::Mean, normalise: true, max_tokens: None },
        "as most sentence encoders do".into(),
    )
}

fn document(pooled: &Pooled, derived: String) -> Document {
    let mut bytes = serde_json::to_vec_pretty(pooled).expect("it is plain data");
    bytes.push(b'\n');
    Document { bytes, derived }
}

fn parse(file: &SourceFile) -> Result<Value, PrepareError> {
    serde_json::from_slice(file.bytes())
        .map_err(|e| PrepareError::damaged(file.path(), format!("it does not parse: {e}")))
}
