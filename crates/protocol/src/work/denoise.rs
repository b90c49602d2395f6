//! Generation by masked diffusion: tokens are unmasked step by step, each step a pass over all positions.

use serde::{Deserialize, Serialize};

use crate::finite;

/// Requests that fill in masks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenoiseWork {
    /// An iteration of warm-up runs each of these once, in this order.
    pub cases: Vec<MaskedCase>,
    /// Masks after each prompt.
    pub new_tokens: usize,
    /// Whether each step is fed the state of the case's trace, not the worker's own.
    pub forced: bool,
    pub how: Denoise,
}

/// One prompt, or a batch of prompts of equal length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskedCase {
    /// `[batch][prompt tokens]`
    pub prompts: Vec<Vec<u32>>,
    /// `[batch][new tokens]`: the tokens of the states that a forced request is fed, and for which parity is
    /// computed. Only an [`Answer`](crate::Answer) that feeds itself may leave it empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<Vec<u32>>,
    /// `[batch][new tokens]`: the step, from 0, that unmasks each token of the trace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmasked: Vec<Vec<u32>>,
}

/// The output of a request that fills in masks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// `[batch][new tokens]`
    pub tokens: Vec<Vec<u32>>,
    /// `[batch][new tokens]`: the step, from 0, in which the worker itself would have unmasked each token. If
    /// it is fed given states, the number of steps marks a token that it would not have unmasked in the
    /// trace's step.
    pub unmasked: Vec<Vec<u32>>,
    /// When the pass of each step was done, on the clock of the request's marks. The rest of a step chooses tokens.
    pub passes_ns: Vec<u64>,
}

/// How masked tokens are filled in. The method is that of Dream (Ye and others 2025); see
/// `docs/reference/protocol.md`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Denoise {
    /// Passes over all positions, 1 or more.
    pub steps: usize,
    pub algorithm: Algorithm,
    /// Divisor of the logits before a token is drawn; 0 takes the most likely token.
    #[serde(deserialize_with = "finite::number", default)]
    pub temperature: f32,
    /// The fewest most likely tokens that have this share of the probability, above 0 up to 1.
    #[serde(deserialize_with = "finite::optional", default)]
    pub top_p: Option<f32>,
    /// Number of most likely tokens to keep of these, 1 or more.
    #[serde(default)]
    pub top_k: Option<usize>,
    /// At 0 the surest positions are unmasked; above, they are drawn by softmax(confidence / `alg_temp`).
    #[serde(deserialize_with = "finite::number", default)]
    pub alg_temp: f32,
    /// The time at which the last step ends, from 0 up to less than 1: steps begin at 1.
    #[serde(deserialize_with = "finite::number", default = "eps")]
    pub eps: f32,
    #[serde(default)]
    pub seed: u64,
}

/// The value of Dream's demonstration.
fn eps() -> f32 {
    1e-3
}

impl Denoise {
    /// Whether random numbers decide which positions are unmasked, or which tokens they get.
    pub fn is_random(&self) -> bool {
        self.temperature > 0.0 || self.alg_temp > 0.0 || self.algorithm == Algorithm::Origin
    }
}

/// Which masked positions a step unmasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Each by itself, with the probability that the step's share of the time gives (Austin and others 2021).
    Origin,
    /// Those with the likeliest token (MaskGIT: Chang and others 2022).
    MaskgitPlus,
    /// Those with the largest margin between the likeliest token and the next.
    TopkMargin,
    /// Those with the least entropy of the distribution.
    Entropy,
}

impl Algorithm {
    pub const ALL: [Algorithm; 4] =
        [Algorithm::Origin, Algorithm::MaskgitPlus, Algorithm::TopkMargin, Algorithm::Entropy];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Origin => "origin",
            Algorithm::MaskgitPlus => "maskgit_plus",
            Algorithm::TopkMargin => "topk_margin",
            Algorithm::Entropy => "entropy",
        }
    }
}

/// The states of one sequence: after each step its `prompt`, followed by `tokens`, with those masked that are
/// unmasked in a later step. `unmasked[i]` is the step, from 0, that gives `tokens[i]`.
pub fn states(prompt: &[u32], tokens: &[u32], unmasked: &[u32], mask: u32, steps: usize) -> Vec<Vec<u32>> {
    let after = |step: usize| {
        let shown =
            tokens.iter().zip(unmasked).map(|(&token, &at)| if at as usize <= step { token } else { mask });
        prompt.iter().copied().chain(shown).collect()
    };
    (0..steps).map(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_denoising_are_the_tokens_unmasked_so_far() {
        assert_eq!(states(&[1], &[7, 8], &[1, 0], 9, 2), [[1, 9, 8], [1, 7, 8]]);
        let text = r#"{"steps": 4, "algorithm": "maskgit_plus"}"#;
        let denoise: Denoise = serde_json::from_str(text).unwrap();
        assert_eq!((denoise.temperature, denoise.eps, denoise.is_random()), (0.0, 1e-3, false));
    }
}
