//! How the vector of a text comes from those of its tokens.

use serde::{Deserialize, Serialize};

/// The file of a bundle that says so, of an encoder whose source does.
pub const POOLING: &str = "pooling.json";

/// What becomes of the vectors of a text's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooled {
    pub pooling: Pooling,
    /// Whether each vector is divided by its length, the root of the sum of squares.
    pub normalise: bool,
    /// The longest text in tokens that the source was made for.
    #[serde(default)]
    pub max_tokens: Option<usize>,
}

/// How the vector of a text comes from those of its tokens.
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
