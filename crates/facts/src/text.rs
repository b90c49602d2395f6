//! How well a model predicts a text, and how well an encoder searches.

use serde::{Deserialize, Serialize};

/// The score of one engine on a text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TextScore {
    /// Number of predicted tokens: all but the first of each window.
    pub predicted: usize,
    /// Mean negative log-likelihood of the text's tokens, nats.
    pub nll: f64,
    /// Perplexity: exp(nll) (Jelinek and others 1977), the number of equally likely tokens that would be as uncertain.
    /// It depends on the tokenizer.
    pub perplexity: f64,
    /// Kullback–Leibler divergence from the reference's distribution, nats per token; `None` without a
    /// reference.
    pub mean_kl: Option<f64>,
    /// Share of positions whose most likely token is the reference's, exactly.
    pub top1: Option<f64>,
}

/// The quality of one engine at its precision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum QualityScore {
    Text(TextScore),
    Retrieval(RetrievalScore),
}

impl QualityScore {
    /// The score of a model that continues texts.
    pub fn text(self) -> Option<TextScore> {
        match self {
            QualityScore::Text(score) => Some(score),
            QualityScore::Retrieval(_) => None,
        }
    }

    /// The score of an encoder.
    pub fn retrieval(self) -> Option<RetrievalScore> {
        match self {
            QualityScore::Text(_) => None,
            QualityScore::Retrieval(score) => Some(score),
        }
    }
}

/// The vectors or scores of one engine compared with those of the reference in f32, on the bundled queries
/// and documents.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrievalScore {
    /// Number of vectors that were compared. For a reranker, a query's scores of all documents are one
    /// vector.
    pub compared: usize,
    /// Mean cosine of a vector with the reference's.
    pub mean_cosine: f64,
    /// Least cosine of a vector with the reference's.
    pub min_cosine: f64,
    /// Share of the ten best documents of the reference that are among the engine's ten best, mean over
    /// queries. `None` without a search.
    pub top10: Option<f64>,
    /// Kendall's τ-b (Kendall 1945) between the orders of all documents, mean over queries. `None` without a
    /// search.
    pub kendall_tau: Option<f64>,
}
