//! Continuation, token by token.

use protocol::{Case, Decode, GenerateWork, KvCache, Load, Output, Sample};
use serde::{Deserialize, Serialize};

use super::{Describe, Prompted, Proof, WorkKind, serving};
use crate::serving_asked::Usual;
use crate::{DecodeAsked, Failure, Request, Result};

/// Requests of several callers.
const USUAL: Usual = Usual { each: 2, least: 8 };
/// Different prompts of several callers.
const DIFFERENT: usize = 8;

/// Prompts that are continued token by token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generate {
    #[serde(flatten)]
    pub prompted: Prompted,
    /// Tokens in the KV cache before each prompt.
    pub context: usize,
    pub decode: Decode,
    /// Whether a masked-diffusion model's body is used as a token-by-token decoder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub autoregressive: bool,
    /// Tokens of a prompt that are read at once, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_chunk: Option<usize>,
    /// If given, one of several callers makes each request, for a rotation of the prompt each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

impl Generate {
    pub(super) fn new(request: &Request, mut prompted: Prompted, seed: u64) -> Result<Generate> {
        let decode = match (request.sampling.sampling(|| seed), request.decode) {
            (Some(sampling), _) => Decode::Sampled(sampling),
            (None, DecodeAsked::Forced) => Decode::Forced,
            (None, DecodeAsked::Greedy) => Decode::Greedy,
        };
        let context = request.context.first().map_or(0, |&tokens| tokens as usize);
        let load = request.serving.load(USUAL, seed)?;
        if let Some(load) = load {
            refuse_with_callers(request, decode)?;
            let different = load.requests.min(DIFFERENT);
            if request.prompt_lengths.len() > 1 {
                // Each caller has a prompt of one of the lengths.
                if load.requests < prompted.prompts.len() {
                    let (requests, lengths) = (load.requests, prompted.prompts.len());
                    return Err(Failure::usage(format!(
                        "a turn of {requests} requests cannot have prompts of {lengths} lengths: raise --requests"
                    )));
                }
                prompted.mix(different);
            } else {
                prompted.prompts.truncate(1);
                prompted.batch = different;
            }
        }
        let prefill_chunk =
            request.prefill_chunk.first().map(|&tokens| tokens as usize).filter(|&tokens| tokens > 0);
        let arms = &request.study.arms;
        let is_off = |kv_cache: Option<KvCache>| kv_cache == Some(KvCache::Off);
        if prefill_chunk.is_some()
            && (is_off(Some(request.kv_cache)) || arms.iter().any(|arm| is_off(arm.kv_cache)))
        {
            return Err(Failure::usage(
                "--prefill-chunk reads a prompt into the KV cache piece by piece: leave --kv-cache off out",
            ));
        }
        let autoregressive = request.autoregressive;
        Ok(Generate { prompted, context, decode, autoregressive, prefill_chunk, load })
    }

    /// The prompt's own tokens, repeated: the amount of work does not depend on them.
    fn context_of(&self, prompt: &[u32]) -> Vec<u32> {
        prompt.iter().copied().cycle().take(self.context).collect()
    }

    /// The prompt tokens with their context, `[case][batch][context + prompt tokens]`.
    pub fn prefixes(&self) -> Vec<Vec<Vec<u32>>> {
        let with_context = |prompt: Vec<u32>| [self.context_of(&prompt), prompt].concat();
        let cases = self.prompted.case_prompts().into_iter();
        cases.map(|rows| rows.into_iter().map(with_context).collect()).collect()
    }

    /// The work of requests that continue these prompts of each case by the most likely tokens.
    pub fn greedy(&self, prompts: Vec<Vec<Vec<u32>>>) -> protocol::Work {
        protocol::Work::Generate(GenerateWork {
            cases: prompts.into_iter().map(|prompts| Case { prompts, ..Case::default() }).collect(),
            new_tokens: self.prompted.new_tokens,
            decode: Decode::Greedy,
            kv_cache: KvCache::On,
            prefill_chunk: None,
        })
    }
}

/// Rejects flags that are not for several callers.
fn refuse_with_callers(request: &Request, decode: Decode) -> Result<()> {
    let is_off = |kv_cache: Option<KvCache>| kv_cache == Some(KvCache::Off);
    let flags = [
        ("--context", request.context.iter().any(|&tokens| tokens > 0)),
        (
            "--kv-cache off",
            is_off(Some(request.kv_cache)) || request.study.arms.iter().any(|arm| is_off(arm.kv_cache)),
        ),
        ("--batch", !request.batch.is_empty()),
        ("--temperature and --decode greedy", decode != Decode::Forced),
        ("--mixed", request.mixed),
        ("--prefill-chunk", request.prefill_chunk.iter().any(|&tokens| tokens > 0)),
    ];
    match flags.into_iter().find(|(_, is_asked)| *is_asked) {
        None => Ok(()),
        Some((flag, _)) => Err(Failure::usage(format!(
            "callers have one prompt continued each, along the text of the reference: leave {flag} out"
        ))),
    }
}

impl Describe for Generate {
    fn kind(&self) -> WorkKind {
        if let Some(load) = self.load {
            return serving::kind(load);
        }
        if self.prompted.new_tokens <= 1 { WorkKind::OneToken } else { WorkKind::TokenByToken }
    }

    fn kept_positions(&self, case: usize) -> usize {
        self.context + self.prompted.longest_of(case) + self.prompted.new_tokens
    }

    fn marks(&self) -> usize {
        if self.load.is_some() { 1 } else { self.prompted.new_tokens }
    }

    fn load(&self) -> Option<Load> {
        self.load
    }

    fn words(&self) -> String {
        let Some(load) = self.load else {
            let how = self.prefill_chunk.map(|tokens| format!(", read in chunks of {tokens}"));
            return self.prompted.words(&how.unwrap_or_default());
        };
        let Prompted { new_tokens, .. } = self.prompted;
        let (words, tokens) = (serving::words(load), self.prompted.longest());
        match &self.prompted.mixed {
            Some(lengths) => format!("{words} for {new_tokens} new tokens each, behind prompts of {lengths}"),
            None => format!("{words} for {new_tokens} new tokens each, behind a prompt of {tokens} tokens"),
        }
    }

    fn mark_noun(&self) -> &'static str {
        "token"
    }

    fn asked(&self, kv_cache: KvCache, outputs: &[Output]) -> protocol::Work {
        let cases = self.prompted.case_prompts().into_iter().zip(outputs).map(|(prompts, output)| {
            let context = match self.context {
                0 => Vec::new(),
                _ => prompts.iter().map(|prompt| self.context_of(prompt)).collect(),
            };
            Case { context, prompts, trace: output.tokens().to_vec() }
        });
        protocol::Work::Generate(GenerateWork {
            cases: cases.collect(),
            new_tokens: self.prompted.new_tokens,
            decode: self.decode,
            kv_cache,
            prefill_chunk: self.prefill_chunk,
        })
    }

    fn of_reference(&self) -> protocol::Work {
        match self.is_mixed() {
            false => self.greedy(self.prefixes()),
            // Each alone: the outputs of a batch are compared with these.
            true => self.greedy(self.prefixes().into_iter().flatten().map(|row| vec![row]).collect()),
        }
    }

    fn is_whole(&self, _: usize, output: &Output) -> bool {
        matches!(output, Output::Tokens(tokens) if self.prompted.has_all(tokens))
    }

    fn is_done(&self, sample: &Sample) -> bool {
        let is_whole = |tokens: &Vec<u32>| tokens.len() == self.prompted.new_tokens;
        let Output::Tokens(tokens) = &sample.output else { return false };
        let has_calls = serving::has_all(self.load, sample);
        sample.marks_ns.len() == self.marks() && has_calls && tokens.iter().all(is_whole)
    }

    fn stand_ins(&self) -> Vec<Output> {
        self.prompted.repeated().into_iter().map(Output::Tokens).collect()
    }

    fn judged_positions(&self, case: usize) -> Option<usize> {
        let prompt =
            if self.prompted.prompt_last_only { 1 } else { self.context + self.prompted.length(case) };
        Some(prompt + self.prompted.new_tokens)
    }

    fn is_forced(&self) -> bool {
        self.decode == Decode::Forced
    }

    fn proof(&self) -> Proof {
        Proof::OtherTraces
    }

    fn has_longer_context(&self, lead_in: usize) -> bool {
        self.context > self.prompted.longest() + lead_in
    }

    fn shortest_pass(&self) -> usize {
        (0..self.prompted.cases()).map(|case| self.prompted.all_tokens(case)).min().unwrap_or(0)
    }

    fn has_context(&self) -> bool {
        self.context > 0
    }

    fn is_autoregressive(&self) -> bool {
        self.autoregressive
    }

    fn prompted(&self) -> Option<&Prompted> {
        Some(&self.prompted)
    }
}
