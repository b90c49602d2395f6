//! Differences of a model from llama: norms, windows, rotations, multipliers, caps.

use serde::{Deserialize, Serialize};

use super::activation::Activation;
use super::position::Rotary;
use crate::pooling::Pooling;

/// Where the norms of a block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// x + block(norm(x))
    #[default]
    Before,
    /// x + norm(block(x))
    After,
    /// x + norm(block(norm(x)))
    Both,
    /// norm(x + block(x))
    OfSum,
}

/// The form of a model. The default of every field is llama's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Form {
    pub norms: NormPlacement,
    /// LayerNorms have no biases, like RMSNorms.
    #[serde(skip_serializing_if = "is_false")]
    pub norm_without_bias: bool,
    /// Added to the weights of every RMSNorm: gemma's files store them less 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub norm_offset: f32,
    /// The norms of q and k, if any, go over all heads together.
    #[serde(skip_serializing_if = "is_false")]
    pub whole_qk_norm: bool,
    /// Factor of the scores; 1/√head_dim if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<f64>,
    /// Scores are c · tanh(score / c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_cap: Option<f64>,
    /// A query of a sliding layer sees its own key and those less than so many positions away: earlier ones,
    /// and in a model that attends both ways later ones, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Which layers have the window, one entry for each; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sliding: Vec<bool>,
    /// The rotation of sliding layers, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_rotary: Option<Rotary>,
    /// Which layers do not rotate, one entry for each; all rotate if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unrotated: Vec<bool>,
    /// Leading dimensions of a head that are rotated; all if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotated: Option<usize>,
    /// Factor of the embeddings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_multiplier: Option<f64>,
    /// Factor of a block's result before it is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residual_multiplier: Option<f64>,
    /// Factor of the logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_multiplier: Option<f64>,
    /// Logits are c · tanh(logit / c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_cap: Option<f64>,
}

/// Parts that an encoder has and a decoder does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoder {
    /// Rows of the table of token types, which is added to the embeddings; 0 without one.
    pub token_types: usize,
    /// Row of the first token of a text in the table of positions.
    pub first_position: usize,
    /// The token that pads texts to the length of the longest.
    pub pad_token: u32,
    /// Whether the sum of the embeddings is normed.
    pub embedding_norm: bool,
    /// Whether the vectors after the last layer are normed.
    pub final_norm: bool,
    /// Bias added to scores of attention by the distance of two tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<RelativePositions>,
    /// Turns the vectors of tokens into scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
}

/// Turns the vectors of tokens into scores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub of: Scored,
    /// Numbers per score, one for each label.
    pub labels: usize,
    /// A linear layer, an activation and a norm before the scores; without it the vector itself is scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<Dense>,
    /// Whether a bias is added to the scores.
    pub bias: bool,
}

impl Head {
    /// Number of numbers for a text of so many tokens.
    pub fn numbers(&self, tokens: usize) -> usize {
        match self.of {
            Scored::Texts(_) => self.labels,
            Scored::Tokens => self.labels * tokens,
        }
    }
}

/// The unit that a head scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scored {
    /// Each text, by this vector of it.
    Texts(Pooling),
    /// Each token of a text.
    Tokens,
}

/// A square linear layer, an activation, and an optional LayerNorm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dense {
    pub activation: HeadActivation,
    pub bias: bool,
    pub norm: bool,
}

/// The activation after the linear layer of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadActivation {
    Tanh,
    /// One of the MLP activations.
    Of(Activation),
}

/// Rows of a table that has, for each head, the bias added to the score of a query and a key, by their
/// distance. T5's formula (Raffel and others 2020), as in MPNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelativePositions {
    /// Rows of the table.
    pub buckets: usize,
    /// Keys at least so far away share a row, on each side.
    pub distance: usize,
}

impl RelativePositions {
    /// The row of a key at position `key` for the query at position `query`.
    pub fn bucket(&self, query: usize, key: usize) -> usize {
        let half = self.buckets / 2;
        let side = if key > query { half } else { 0 };
        let (apart, exact) = (query.abs_diff(key), half / 2);
        if apart < exact {
            return side + apart;
        }
        // In f32, as PyTorch computes it.
        let share = (apart as f32 / exact as f32).ln() / (self.distance as f32 / exact as f32).ln();
        side + (exact + (share * (half - exact) as f32) as usize).min(half - 1)
    }
}

fn is_zero(number: &f32) -> bool {
    *number == 0.0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Form {
    /// Whether everything is as in llama.
    pub fn is_plain(&self) -> bool {
        *self == Form::default()
    }
}
