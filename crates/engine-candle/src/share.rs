//! Partial results and working memory of one thread of decode's attention.

use bundle::ModelConfig;

/// Keys or values that are read at a time.
pub(crate) const KEY_BLOCK: usize = 64;

/// Partial results and working memory of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    /// Scores of the heads that share keys, and then their exponentials: `[group, capacity]`.
    pub(crate) scores: Vec<f32>,
    /// `[rows, heads, head_dim]`: Σ e^(score − highest) · value over this thread's keys.
    pub(crate) weighted: Vec<f32>,
    /// `[rows, heads]`: the highest score, and the sum of e^(score − highest).
    pub(crate) sums: Vec<(f32, f32)>,
}

impl Share {
    pub(crate) fn new(config: &ModelConfig, capacity: usize) -> Share {
        let group = config.heads / config.kv_heads;
        Share { scores: vec![0.0; group * capacity], weighted: Vec::new(), sums: Vec::new() }
    }

    /// Clears the results and makes room for `heads` heads of `width`, counted over all rows.
    pub(crate) fn clear(&mut self, heads: usize, width: usize) {
        self.weighted.clear();
        self.weighted.resize(heads * width, 0.0);
        self.sums.clear();
        self.sums.resize(heads, (f32::NEG_INFINITY, 0.0));
    }
}
