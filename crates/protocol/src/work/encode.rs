//! Texts to vectors, or to scores.

use serde::{Deserialize, Serialize};

/// Requests that encode texts, a batch of them each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncodeWork {
    /// An iteration of warm-up runs each of these once, in this order.
    pub cases: Vec<TextBatch>,
    pub task: EncodeTask,
    /// What the worker computes from the vectors of `task`, in this order and after the last mark: it is the same code
    /// for all engines, and not timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
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
    /// The vectors of all tokens, one after the other: [`Step::Pool`] makes one of them. They are not normalised.
    Each,
}

/// A step from the vector of a text to the one that its model gives: a module of sentence-transformers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// One vector from those of all tokens but the first `skipped`: pooled in each of these ways, and joined.
    Pool {
        ways: Vec<Way>,
        #[serde(default)]
        skipped: usize,
    },
    /// `activation(weight · x + bias)`, to which x is added where it is residual.
    Dense(Dense),
    /// Its numbers less their mean, divided by their deviation, times a weight, plus a bias.
    LayerNorm { tensors: String, width: usize },
    /// Divided by its length, the root of the sum of squares.
    Normalise,
    /// The first numbers alone.
    Cut(usize),
}

/// A way to make one vector from those of tokens x_1 … x_n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    Cls,
    Max,
    Mean,
    /// Σ x / √n
    MeanSqrtLen,
    /// Σ i·x_i / Σ i; tokens that are skipped are counted.
    WeightedMean,
    Last,
}

/// A linear layer. `modules.safetensors` of the bundle has its tensors, in f32.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dense {
    /// Prefix of its tensors' names.
    pub tensors: String,
    pub inputs: usize,
    pub outputs: usize,
    pub bias: bool,
    pub activation: StepActivation,
    #[serde(default)]
    pub residual: Residual,
}

/// What a dense step adds to its result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residual {
    #[default]
    None,
    Itself,
    /// A product of x with a weight.
    Weighted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepActivation {
    Identity,
    Tanh,
    Relu,
    /// With the exact error function.
    Gelu,
    Sigmoid,
    Silu,
}

impl Step {
    /// Number of numbers of its result, of a vector of `width`.
    pub fn width(&self, width: usize) -> usize {
        match self {
            Step::Pool { ways, .. } => width * ways.len(),
            Step::Dense(dense) => dense.outputs,
            Step::Cut(most) => width.min(*most),
            Step::LayerNorm { .. } | Step::Normalise => width,
        }
    }
}

/// The output of a request that encodes texts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Vectors {
    /// `[text][hidden]`, or a text's scores: those of all its tokens where tokens have scores. A number that
    /// JSON cannot represent is `null`, and read as one that is not finite.
    #[serde(deserialize_with = "crate::finite::rows")]
    pub vectors: Vec<Vec<f32>>,
    /// Positions that were computed, padding included.
    pub positions: usize,
}
