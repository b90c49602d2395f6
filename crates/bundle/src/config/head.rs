//! Heads of encoders: scores for a text, or for each of its tokens, instead of a vector.

use super::activation::{Activation, activation};
use super::fields::Fields;
use super::form::{Dense, Head, HeadActivation, Scored};
use super::model::Architecture;
use crate::error::BundleError;
use crate::pooling::Pooling;

/// More labels than any model has: the output of a head must not fill memory.
const MOST_LABELS: usize = 1 << 20;

/// The head named by the first of `architectures`, such as `BertForSequenceClassification`.
pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<Option<Head>, BundleError> {
    use Architecture::{
        Bert, DistilBert, Llama, Mistral, ModernBert, Mpnet, NomicBert, Qwen2, Qwen3, Roberta,
    };
    let of_texts = match class(fields)? {
        Some(name) if name.ends_with("ForSequenceClassification") => true,
        Some(name) if name.ends_with("ForTokenClassification") => false,
        _ => return Ok(None),
    };
    let plain = |activation| Some(Dense { activation, bias: true, norm: false });
    let dense = match (architecture, of_texts) {
        (Bert | NomicBert | Roberta | Mpnet, true) => plain(HeadActivation::Tanh),
        (DistilBert, true) => plain(HeadActivation::Of(Activation::Relu)),
        (ModernBert, _) => {
            let name = fields.optional_text("classifier_activation")?.unwrap_or("gelu");
            let activation = HeadActivation::Of(activation(name)?);
            Some(Dense { activation, bias: fields.flag("classifier_bias", false)?, norm: true })
        }
        _ => None,
    };
    let pooling = match architecture {
        Llama | Mistral | Qwen2 | Qwen3 => Pooling::Last,
        ModernBert => match fields.optional_text("classifier_pooling")?.unwrap_or("cls") {
            "cls" => Pooling::Cls,
            "mean" => Pooling::Mean,
            other => {
                let reason = format!("classifier_pooling is {other:?}; supported are cls and mean");
                return Err(BundleError::Config(reason));
            }
        },
        _ => Pooling::Cls,
    };
    let labels = labels(fields)?;
    let of = if of_texts { Scored::Texts(pooling) } else { Scored::Tokens };
    Ok(Some(Head { of, labels, dense, bias: !(of_texts && pooling == Pooling::Last) }))
}

/// The first of `architectures`: transformers' name of the model's class.
pub(super) fn class<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>, BundleError> {
    Ok(fields.optional_texts("architectures")?.and_then(|names| names.first().copied()))
}

/// transformers writes a name for each label, and assumes two labels without names.
fn labels(fields: &Fields<'_>) -> Result<usize, BundleError> {
    let labels = match fields.object("id2label")? {
        Some(names) => names.len(),
        None => fields.optional_count("num_labels")?.unwrap_or(2),
    };
    if (1..=MOST_LABELS).contains(&labels) {
        return Ok(labels);
    }
    Err(BundleError::Config(format!("its head has {labels} labels, which no model has")))
}
