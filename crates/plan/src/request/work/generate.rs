//! Settings of continuation, token by token.

use protocol::finite;
use serde::{Deserialize, Serialize};

use crate::Request;

/// The tokens that a decode step is fed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecodeAsked {
    /// Given tokens, whatever the logits say: equal work by construction.
    #[default]
    Forced,
    /// Each engine's own most likely token.
    Greedy,
}

/// Sampling settings, if tokens are drawn. The worker draws them, in the same way for every engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingAsked {
    /// Divisor of the logits; `None` and 0 take the most likely token.
    #[serde(deserialize_with = "finite::optional")]
    pub temperature: Option<f32>,
    /// Number of the most likely tokens to draw among; `None` for all.
    pub top_k: Option<u32>,
    #[serde(deserialize_with = "finite::optional")]
    pub top_p: Option<f32>,
}

impl SamplingAsked {
    /// The sampler, if tokens are drawn.
    pub fn sampling(&self, seed: impl FnOnce() -> u64) -> Option<protocol::Sampling> {
        let temperature = self.temperature.filter(|&temperature| temperature > 0.0)?;
        let top_k = self.top_k.map(|count| count as usize);
        Some(protocol::Sampling { temperature, top_k, top_p: self.top_p, seed: seed() })
    }
}

impl Request {
    /// Fills in the length of prompts and the number of new tokens, unless these were asked for.
    pub(crate) fn usual_lengths(&mut self, (prompt, tokens): (u32, u32)) {
        if self.prompt_tokens.is_empty() && self.context.is_empty() {
            self.prompt_tokens = vec![prompt];
        }
        self.usual_tokens(tokens);
    }

    /// Fills in the number of new tokens, unless that was asked for.
    pub(crate) fn usual_tokens(&mut self, tokens: u32) {
        if self.new_tokens.is_empty() {
            self.new_tokens = vec![tokens];
        }
    }
}
