//! Heads of encoders: scores of a text, or of each of its tokens, in place of a vector.

use serde::{Deserialize, Serialize};

use super::fields::Fields;
use super::model::{Activation, Architecture};
use super::parts::activation;
use crate::error::BundleError;
use crate::pooling::Pooling;

/// Labels that no model has more of: what a head computes must not fill memory.
const MOST_LABELS: usize = 1 << 20;

/// What turns the vectors of tokens into scores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub of: Scored,
    /// Numbers of a score, one for each label.
    pub labels: usize,
    /// A linear layer, an activation and a norm before the scores; the vector itself is scored where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<Dense>,
    /// Whether a bias is added to the scores.
    pub bias: bool,
}

/// What a head gives a score to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scored {
    /// Each text, by this vector of it.
    Texts(Pooling),
    /// Each token of a text.
    Tokens,
}

/// A square linear layer, an activation, and a LayerNorm where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dense {
    pub activation: HeadActivation,
    pub bias: bool,
    pub norm: bool,
}

/// What follows the linear layer of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadActivation {
    Tanh,
    /// One of those that MLPs have.
    Of(Activation),
}

/// The head that the first of `architectures` names, such as `BertForSequenceClassification`.
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

/// transformers writes a name for each label, and reads two labels where it finds none.
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
