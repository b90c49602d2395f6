//! Continuation of prompts, token by token.

use serde::{Deserialize, Serialize};

use crate::finite;
use crate::untrusted::Foreign;

/// Requests that continue prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateWork {
    /// An iteration of warm-up runs each of these once, in this order.
    pub cases: Vec<Case>,
    pub new_tokens: usize,
    pub decode: Decode,
    pub kv_cache: KvCache,
    /// Tokens of a prompt that are read at once, one chunk after another; all of them if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_chunk: Option<usize>,
}

/// One prompt, or a batch of prompts. They may differ in length if there is no context and no
/// `prefill_chunk`: each is then continued after its own last token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// `[batch][context tokens]`, or empty: tokens in the KV cache before the clock starts. Without a cache
    /// they are computed with the prompt, timed.
    #[serde(default)]
    pub context: Vec<Vec<u32>>,
    /// `[batch][prompt tokens]`
    pub prompts: Vec<Vec<u32>>,
    /// `[batch][new tokens]`: the tokens fed in [`Decode::Forced`], for which parity is computed. Only an
    /// [`Answer`](crate::Answer) that feeds itself may leave it empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<Vec<u32>>,
    /// What a model that hears continues the prompt with: encoding it is part of the request. There is one prompt then,
    /// no context, and a KV cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<Heard>,
}

/// A spectrogram, of one time for every framework: the driver computed it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Heard {
    /// Its file: f32, little-endian, `[bands, frames]`.
    pub file: String,
    /// It begins with the frame of this number, and those before it come last: another input of the same size.
    #[serde(default)]
    pub turn: usize,
}

impl Case {
    /// `[batch][context + prompt tokens]`
    pub fn prefixes(&self) -> Vec<Vec<u32>> {
        let context = |row: usize| self.context.get(row).map_or(&[][..], Vec::as_slice);
        self.prompts.iter().enumerate().map(|(row, prompt)| [context(row), prompt].concat()).collect()
    }
}

/// Other tokens for a request that continues prompts. One that began with these feeds each further step the token that it is
/// sent for it, or the one that it chose itself where it is sent none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Continued {
    /// `[batch][prompt tokens]`, as long as the case's own, which they replace; left out after the first slice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<Vec<u32>>,
    /// `[batch][steps]`: what the steps are fed, one for each mark of the slice. For a whole request as many as its new
    /// tokens, of which the last is not fed. Left out where each step is fed the worker's own choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<Vec<u32>>,
    /// Replaces [`Heard::turn`] of the case's audio; with the prompts, where it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<usize>,
}

/// The token fed to a decode step.
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
    /// Divisor of the logits (Ackley, Hinton & Sejnowski 1985), above 0.
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

/// Whether keys and values of earlier tokens are kept, and how, observed after load. Fairness rule R13 compares these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvCachePolicy {
    /// One buffer of the asked capacity, written in place.
    Preallocated,
    /// Concatenated again with every token.
    Growing,
    /// There is no cache, because the job wants none: the whole prefix is computed again for every token.
    Recomputed,
    /// Nothing is kept: the model attends both ways, so that every pass computes everything.
    None,
}

impl KvCachePolicy {
    pub fn name(self) -> &'static str {
        match self {
            KvCachePolicy::Preallocated => "preallocated",
            KvCachePolicy::Growing => "growing",
            KvCachePolicy::Recomputed => "recomputed",
            KvCachePolicy::None => "none",
        }
    }
}

/// Usage of keys and values in the measured requests, and their hand-over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUsage {
    /// Keys and values of the last measured case, as allocated; `null` if the engine does not know it.
    #[serde(rename = "kv_cache_bytes", default)]
    pub bytes: Option<u64>,
    /// `null` if one engine computes everything, and if there was nothing to hand over: without a KV cache,
    /// and in requests for one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand_over: Option<HandOver>,
    /// How prompts of different lengths became one batch in the last measured case; `null` if they had one
    /// length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<Padding>,
}

/// Padding of sequences that are shorter than others of their batch, observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Padding {
    pub side: Side,
    /// Positions of padding that were computed with the prompts; 0 where padding takes room in the KV cache alone.
    pub computed: u64,
}

/// The side on which sequences of different lengths are padded to form one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Before their first token.
    Left,
    /// After their last token.
    Right,
}

/// Two engines in one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hybrid {
    /// The framework that reads prompts, and the one that computes steps of one token.
    pub prefill: Foreign,
    pub decode: Foreign,
    /// Why one of them computes everything: `falls back to candle alone: …`. Both names are then that
    /// engine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<Foreign>,
}

/// Keys and values that one engine of a hybrid handed to the other, in one request or in all measured ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// Number of times: once a request.
    pub times: u64,
    /// Bytes copied, all together; 0 where both engines keep keys and values in the same memory.
    pub bytes: u64,
    /// Time that they took, all together. It is part of each request's first gap.
    pub ns: u64,
    /// Address of the first layer's keys in the last request, in the engine that read the prompt.
    pub prefill_address: u64,
    /// The same in the engine that decoded.
    pub decode_address: u64,
    /// Why they were copied; `null` if they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Foreign>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_is_fed_is_a_name_or_a_name_with_its_settings() {
        let sampling = Sampling { temperature: 0.5, top_k: None, top_p: None, seed: 42 };
        for (text, decode) in [
            (r#""forced""#, Decode::Forced),
            (r#"{"sampled": {"temperature": 0.5, "seed": 42}}"#, Decode::Sampled(sampling)),
        ] {
            assert_eq!(serde_json::from_str::<Decode>(text).unwrap(), decode);
        }
    }

    #[test]
    fn a_context_comes_before_its_prompt() {
        let case = r#"{"context": [[1, 2], [3, 4]], "prompts": [[5], [6]], "trace": []}"#;
        let case: Case = serde_json::from_str(case).unwrap();
        assert_eq!(case.prefixes(), [[1, 2, 5], [3, 4, 6]]);
        let case: Case = serde_json::from_str(r#"{"prompts": [[5], [6]], "trace": []}"#).unwrap();
        assert_eq!(case.prefixes(), [[5], [6]]);
    }
}
