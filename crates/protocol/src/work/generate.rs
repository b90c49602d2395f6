//! Continuation of prompts, token by token.

use serde::{Deserialize, Serialize};

use crate::finite;

/// Requests that continue prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateWork {
    /// An iteration of warm-up runs each of these once, in this order.
    pub cases: Vec<Case>,
    pub new_tokens: usize,
    pub decode: Decode,
    pub kv_cache: KvCache,
}

/// One prompt, or a batch of prompts of equal length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// `[batch][context tokens]`, or empty: what is in the KV cache already when the clock starts. With the
    /// cache off there is nothing to put it into, so it is computed with the prompt, timed.
    #[serde(default)]
    pub context: Vec<Vec<u32>>,
    /// `[batch][prompt tokens]`
    pub prompts: Vec<Vec<u32>>,
    /// `[batch][new tokens]`: what is fed in [`Decode::Forced`], and what parity is taken along. Only an
    /// [`Answer`](crate::Answer) that feeds itself may leave it empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<Vec<u32>>,
}

impl Case {
    /// `[batch][context + prompt tokens]`
    pub fn prefixes(&self) -> Vec<Vec<u32>> {
        let context = |row: usize| self.context.get(row).map_or(&[][..], Vec::as_slice);
        self.prompts.iter().enumerate().map(|(row, prompt)| [context(row), prompt].concat()).collect()
    }
}

/// What a decode step is fed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decode {
    /// The ids of the case's trace, whatever the logits say: equal work by construction.
    Forced,
    /// The engine's own most likely token.
    Greedy,
    /// A token drawn from the engine's own distribution, by the worker.
    Sampled(Sampling),
}

/// How tokens are drawn, the same for every engine: equal logits give equal tokens. A request draws the same random
/// numbers in every iteration; two requests of one iteration draw different ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// What logits are divided by (Ackley, Hinton & Sejnowski 1985), above 0.
    #[serde(deserialize_with = "finite::number")]
    pub temperature: f32,
    /// Draw only among this number of most likely tokens (Fan, Lewis & Dauphin 2018), 1 or more.
    #[serde(default)]
    pub top_k: Option<usize>,
    /// Draw among the fewest most likely tokens that have this share of the probability (nucleus sampling,
    /// Holtzman and others 2020), above 0 up to 1.
    #[serde(deserialize_with = "finite::optional", default)]
    pub top_p: Option<f32>,
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvCache {
    On,
    /// The whole prefix is computed again for every token.
    Off,
}
