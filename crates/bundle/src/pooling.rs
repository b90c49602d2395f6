//! How the vector of a text is computed from those of its tokens.

use serde::{Deserialize, Serialize};

/// The file of a bundle that says how to pool, if the encoder's source does.
pub const POOLING: &str = "pooling.json";

/// The processing of the vectors of a text's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooled {
    pub pooling: Pooling,
    /// Whether each vector is divided by its length, the root of the sum of squares.
    pub normalise: bool,
    /// The longest text in tokens that the model was made for, according to its source.
    #[serde(default)]
    pub max_tokens: Option<usize>,
}

/// How the vector of a text is computed from those of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The first token's.
    Cls,
    Mean,
    /// The largest of each component.
    Max,
    /// The last token's.
    Last,
}
