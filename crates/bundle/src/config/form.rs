//! What a model does otherwise than llama's: norms, windows, rotations, multipliers, caps.

use serde::{Deserialize, Serialize};

use super::activation::Activation;
use super::position::Rotary;
use crate::pooling::Pooling;

/// Where the norms of a block stand.
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

/// How a model is put together. The default of every field is llama's way.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Form {
    pub norms: NormPlacement,
    /// LayerNorms have no biases, as RMSNorms have none.
    #[serde(skip_serializing_if = "is_false")]
    pub norm_without_bias: bool,
    /// What is added to the weights of every RMSNorm: gemma's files hold them less 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub norm_offset: f32,
    /// The norms of q and k, where there are any, go over all heads together.
    #[serde(skip_serializing_if = "is_false")]
    pub whole_qk_norm: bool,
    /// What scores are multiplied by; 1/√head_dim where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<f64>,
    /// Scores are c · tanh(score / c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_cap: Option<f64>,
    /// A query of a sliding layer sees its own key and those less than so many positions away: those before it, and of a
    /// model that attends both ways those behind it, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Which layers have the window, one entry for each; all have it where the list is empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sliding: Vec<bool>,
    /// The rotation of sliding layers, where they have one of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_rotary: Option<Rotary>,
    /// Which layers do not rotate, one entry for each; all rotate where the list is empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unrotated: Vec<bool>,
    /// Leading dimensions of a head that are rotated; all where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotated: Option<usize>,
    /// What embeddings are multiplied by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_multiplier: Option<f64>,
    /// What the result of a block is multiplied by before it is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residual_multiplier: Option<f64>,
    /// What logits are multiplied by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_multiplier: Option<f64>,
    /// Logits are c · tanh(logit / c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_cap: Option<f64>,
}

/// What an encoder has and a decoder has not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoder {
    /// Rows of the table of token types, which is added to the embeddings; 0 where there is none.
    pub token_types: usize,
    /// Row of the table of positions that the first token of a text has.
    pub first_position: usize,
    /// The token that fills texts up to the length of the longest.
    pub pad_token: u32,
    /// Whether the sum of the embeddings is normed.
    pub embedding_norm: bool,
    /// Whether the vectors behind the last layer are normed.
    pub final_norm: bool,
    /// What is added to scores of attention, by how far apart two tokens are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<RelativePositions>,
    /// What turns the vectors of tokens into scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
}

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

impl Head {
    /// Numbers that a text of so many tokens becomes.
    pub fn numbers(&self, tokens: usize) -> usize {
        match self.of {
            Scored::Texts(_) => self.labels,
            Scored::Tokens => self.labels * tokens,
        }
    }
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

/// Rows of a table that has, for each head, what is added to the score of a query and a key: by the distance of the two.
/// T5's formula (Raffel and others 2020), as MPNet has it.
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
    /// Whether all is llama's way.
    pub fn is_plain(&self) -> bool {
        *self == Form::default()
    }
}
