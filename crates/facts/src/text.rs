//! How well a model predicts a text.

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
