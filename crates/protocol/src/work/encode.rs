//! Texts to vectors, or to scores.

use serde::{Deserialize, Deserializer, Serialize};

/// Requests that encode texts, a batch of them each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncodeWork {
    /// An iteration of warm-up runs each of these once, in this order.
    pub cases: Vec<TextBatch>,
    pub task: EncodeTask,
}

/// The output for texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncodeTask {
    Embed {
        pooling: Pooling,
        /// Whether each vector is divided by its length, the root of the sum of squares.
        normalise: bool,
    },
    /// The output of the model's head for a text, or for each of its tokens.
    Score,
}

/// Texts that are encoded together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextBatch {
    /// The token ids of each text, with the special tokens that the model wants.
    pub texts: Vec<Vec<u32>>,
    /// The type of each token; 0 for all where it is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<Vec<u32>>,
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

/// The output of a request that encodes texts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Vectors {
    /// `[text][hidden]`, or a text's scores: those of all its tokens where tokens have scores. A number that
    /// JSON cannot represent is `null`, and read as one that is not finite.
    #[serde(deserialize_with = "numbers")]
    pub vectors: Vec<Vec<f32>>,
    /// Positions that were computed, padding included.
    pub positions: usize,
}

fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<f32>>, D::Error> {
    let read = Vec::<Vec<Option<f32>>>::deserialize(from)?;
    let number = |number: Option<f32>| number.unwrap_or(f32::NAN);
    Ok(read.into_iter().map(|row| row.into_iter().map(number).collect()).collect())
}
