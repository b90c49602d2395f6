//! The computation of a comparison's requests, one file for each kind of work.

pub mod denoise;
pub mod encode;
pub(crate) mod generate;
pub mod graph;

use std::collections::BTreeMap;
use std::ops::Deref;

use bundle::{ModelConfig, Pooled};
pub use denoise::Denoise;
pub use encode::Encode;
pub use generate::{Generate, Lengths, Prompted, check_context};
pub use graph::Graph;
use protocol::{Arrivals, Input, KvCache, Load, Output, Sample, TextBatch};
use serde::{Deserialize, Serialize};

use crate::plan::chat::Written;
use crate::plan::{Failure, Prompt, Request, Result};

/// The computation of requests. All other code uses it through [`Describe`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    Generate(Generate),
    Denoise(Denoise),
    Encode(Encode),
    Graph(Graph),
}

impl Deref for Work {
    type Target = dyn Describe;

    fn deref(&self) -> &(dyn Describe + 'static) {
        match self {
            Work::Generate(work) => work,
            Work::Denoise(work) => work,
            Work::Encode(work) => work,
            Work::Graph(work) => work,
        }
    }
}

/// The kind of work. It determines the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    TokenByToken,
    /// Requests for one token, which decode nothing.
    OneToken,
    /// What is heard, token by token.
    Speech,
    /// Masked diffusion: a pass over all positions for each step.
    Denoising,
    /// Texts to vectors: single texts, and batches of several.
    Encoding,
    /// Only batches of several texts.
    ManyTexts,
    /// Only single texts.
    SingleText,
    /// Requests of several callers, for a text, a prompt or a run each.
    Callers,
    /// The same at a given rate.
    Arrivals,
    /// The same at the highest sustainable rate.
    Goodput,
    /// Runs of an ONNX file.
    Graph,
    /// Runs of an ONNX file that hears or speaks, of which it is known how much audio they are about.
    Audio,
}

/// The evidence that a request computed its output, and did not repeat data that it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Each request has other prompts of the same lengths, and is fed other tokens ([`Generate::other_tokens`]).
    OtherTokens,
    /// Each request has another input of the same size ([`Describe::other_input`]).
    OtherInputs,
    /// Nothing: requests are sent the reference's own output, for this reason.
    Nothing(&'static str),
}

/// The properties of a kind of work. A case is the computation of one request; its number counts from 0.
pub trait Describe {
    fn kind(&self) -> WorkKind;

    /// Number of cases: of prompts, unless the work defines others.
    fn cases(&self) -> usize {
        self.prompted().map_or(0, Prompted::cases)
    }

    fn case_name(&self, case: usize) -> &str {
        self.prompted().map_or("", |prompted| prompted.name(case))
    }

    /// The word for a case: "prompt".
    fn case_noun(&self) -> &'static str {
        "prompt"
    }

    /// The two requests, or parts of one, in which an engine's own arithmetic is looked for.
    fn phases(&self) -> [&'static str; 2] {
        ["the smallest request", "the largest request"]
    }

    /// Tokens of one sequence of a case before its continuation.
    fn case_tokens(&self, case: usize) -> usize {
        self.prompted().map_or(0, |prompted| prompted.length(case))
    }

    /// Most sequences that are computed together.
    fn batch(&self) -> usize {
        self.prompted().map_or(1, |prompted| prompted.batch)
    }

    /// Number of sequences that a request of a case computes, and of their tokens.
    fn size(&self, case: usize) -> (usize, usize) {
        let tokens = || self.batch() * self.case_tokens(case);
        (self.batch(), self.prompted().map_or_else(tokens, |prompted| prompted.all_tokens(case)))
    }

    /// Number of sequences of a case with logits that parity compares, the first ones.
    fn judged_sequences(&self) -> usize {
        self.prompted().and_then(|prompted| prompted.judged).unwrap_or(self.batch())
    }

    /// Whether the reference computes each sequence of a case as a case of its own.
    fn is_mixed(&self) -> bool {
        self.prompted().is_some_and(|prompted| prompted.mixed.is_some())
    }

    /// Positions of a sequence of a case with keys and values that are kept.
    fn cache_positions(&self, _case: usize) -> usize {
        0
    }

    /// Least bytes of a layer's numbers, in f32, for work with batches of any number of tokens.
    fn least_activations(&self, _config: &ModelConfig) -> u64 {
        0
    }

    /// Number of numbers in the output of a request of a case, if there are many.
    fn numbers(&self, _case: usize) -> usize {
        0
    }

    /// Values that a worker draws or reads before a request of a case, untimed, if there are many.
    fn drawn(&self, _case: usize) -> usize {
        0
    }

    /// Marks of a request.
    fn marks(&self) -> usize {
        1
    }

    /// The size of requests, for people: "prompts of 16 and 18 tokens, 32 new tokens each".
    fn words(&self) -> String;

    /// The word for a mark: "token".
    fn mark_noun(&self) -> &'static str;

    /// The word for the steps between marks: "decoding".
    fn steps_noun(&self) -> &'static str {
        "decoding"
    }

    /// Other settings to describe a run's environment, for people: names with values.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let new_tokens = self.prompted().map(|prompted| ("new tokens", prompted.new_tokens.to_string()));
        new_tokens.into_iter().collect()
    }

    /// The work of requests along an output for each case.
    fn asked(&self, kv_cache: KvCache, outputs: &[Output]) -> protocol::Work;

    /// The work of the reference; the others' outputs are compared with its output.
    fn of_reference(&self) -> protocol::Work;

    /// Whether an output of a case is everything that the reference was asked for.
    fn is_whole(&self, case: usize, output: &Output) -> bool;

    /// Whether there is such an output for each case.
    fn are_whole(&self, outputs: &[Output]) -> bool {
        outputs.len() == self.cases()
            && outputs.iter().enumerate().all(|(case, output)| self.is_whole(case, output))
    }

    /// Whether a request has an output for each sequence of its case.
    fn has_all_sequences(&self, sample: &Sample) -> bool {
        sample.output.tokens().len() == self.batch()
    }

    /// Whether a request is complete.
    fn is_done(&self, sample: &Sample) -> bool;

    /// Outputs that replace a reference's, if there is none, so that all do the same work.
    fn fallback_outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    /// Number of positions of a case with logits that parity compares; `None` for work without logits.
    fn judged_positions(&self, _case: usize) -> Option<usize> {
        None
    }

    /// Whether requests are fed given tokens, whatever they choose.
    fn is_forced(&self) -> bool {
        false
    }

    fn proof(&self) -> Proof;

    /// Another input of the same size for a request of a case. `None` if its requests have the case's own.
    fn other_input(&self, _seed: u64, _case: usize) -> Option<Input> {
        None
    }

    /// The work that computes the outputs of such requests, a case for each.
    fn computing(&self, _asked: &[(usize, &Input)]) -> Option<protocol::Work> {
        None
    }

    /// Whether the context before each request is longer than so many tokens of lead-in and the prompt.
    fn has_longer_context(&self, _lead_in: usize) -> bool {
        false
    }

    /// Fewest tokens that a request computes before its first mark, of all sequences together; 0 if unknown.
    fn shortest_pass(&self) -> usize {
        0
    }

    /// The sequences of each case along the outputs of requests, whose hidden states can be compared.
    fn fed(&self, outputs: &[Output]) -> Vec<TextBatch> {
        let prompts = self.prompted().map(Prompted::case_prompts).unwrap_or_default();
        let along = |(prompts, output): (Vec<Vec<u32>>, &Output)| {
            let texts =
                prompts.iter().zip(output.tokens()).map(|(prompt, trace)| [&prompt[..], trace].concat());
            TextBatch { texts: texts.collect(), types: Vec::new() }
        };
        prompts.into_iter().zip(outputs).map(along).collect()
    }

    /// The texts of each case in writing, if tokenising them is timed; `texts`: those that their ids were made from.
    fn tokenised(&self, _request: &Request, _texts: &[Prompt]) -> Result<Option<Vec<Vec<Written>>>> {
        Ok(None)
    }

    /// When requests come, if a turn holds many of several callers; the cold start is then the first of them.
    fn load(&self) -> Option<Load> {
        None
    }

    /// Whether something is computed before each request, untimed.
    fn has_context(&self) -> bool {
        false
    }

    /// Whether a masked-diffusion model's body is used as a token-by-token decoder.
    fn is_autoregressive(&self) -> bool {
        false
    }

    /// The prompts, if the work has any.
    fn prompted(&self) -> Option<&Prompted> {
        None
    }
}

impl Work {
    /// The most positions that a sequence has in any case.
    pub fn capacity(&self) -> usize {
        (0..self.cases()).map(|case| self.cache_positions(case)).max().unwrap_or(0)
    }

    /// The prompts, if the work has any, to change them.
    pub fn prompted_mut(&mut self) -> Option<&mut Prompted> {
        match self {
            Work::Generate(work) => Some(&mut work.prompted),
            Work::Denoise(work) => Some(&mut work.prompted),
            Work::Encode(_) | Work::Graph(_) => None,
        }
    }

    /// Continuation token by token, if it is that.
    pub fn generate(&self) -> Option<&Generate> {
        match self {
            Work::Generate(work) => Some(work),
            _ => None,
        }
    }

    /// Texts to encode, if it is that.
    pub fn encode(&self) -> Option<&Encode> {
        match self {
            Work::Encode(work) => Some(work),
            _ => None,
        }
    }

    /// Masked diffusion, if it is that.
    pub fn denoise(&self) -> Option<&Denoise> {
        match self {
            Work::Denoise(work) => Some(work),
            _ => None,
        }
    }
}

/// The work of a request with this model.
pub(crate) fn resolve(
    request: &Request,
    config: &ModelConfig,
    (prompts, lengths, pooled): (Vec<Prompt>, &Lengths, Option<Pooled>),
    arrays: &BTreeMap<String, graph::Given>,
    seed: u64,
) -> Result<Work> {
    if config.graph.is_some() || config.encodes() {
        refuse_mixed(request)?;
    }
    if let Some(graph) = &config.graph {
        return Ok(Work::Graph(graph::resolve(request, graph, arrays, seed)?));
    }
    if config.audio.is_some() {
        generate::refuse_with_audio(request)?;
    } else {
        graph::refuse(request)?;
    }
    if config.encodes() {
        return Ok(Work::Encode(encode::resolve(request, config, (prompts, pooled), seed)?));
    }
    encode::refuse(request)?;
    let is_denoised = config.mask_token.is_some() && !request.autoregressive;
    if is_denoised {
        refuse_mixed(request)?;
    }
    let prompted = Prompted::new(request, config, (prompts, lengths))?;
    match denoise::resolve(request, config, &prompted, seed)? {
        Some(_) if !request.serving.is_default() => Err(Failure::usage(format!(
            "{} fills in masks, which has one caller here: leave out --callers, --rate, --slo, --serve and --requests",
            request.model()
        ))),
        Some(work) => Ok(Work::Denoise(work)),
        None => Ok(Work::Generate(Generate::new(request, prompted, seed)?)),
    }
}

/// Rejects `--mixed` for work other than token-by-token continuation.
fn refuse_mixed(request: &Request) -> Result<()> {
    match request.mixed {
        false => Ok(()),
        true => Err(Failure::usage(format!(
            "--mixed joins prompts that are continued token by token, and requests of {} are none: leave it out",
            request.model()
        ))),
    }
}

// Common parts of several callers' requests, for all kinds of work.

/// The kind of work of requests that several callers make.
fn kind(load: Load) -> WorkKind {
    match load {
        Load { search: Some(_), .. } => WorkKind::Goodput,
        Load { arrivals: Some(_), .. } => WorkKind::Arrivals,
        _ => WorkKind::Callers,
    }
}

/// How requests come, for people: "8 callers, turns of 64 requests".
fn words(load: Load) -> String {
    let come = match load {
        Load { search: Some(_), .. } => "the highest rate at which answers come in time".to_owned(),
        Load { arrivals: Some(Arrivals { rate, .. }), .. } => format!("{rate} requests a second at random"),
        Load { callers, .. } => format!("{callers} callers"),
    };
    format!("{come}, turns of {} requests", load.requests)
}

/// Whether a turn has all its requests.
fn has_all(load: Option<Load>, sample: &Sample) -> bool {
    match load {
        None => true,
        // The search decides how many requests it makes.
        Some(Load { search: Some(_), .. }) => !sample.calls.is_empty(),
        Some(load) => sample.calls.len() == load.requests,
    }
}
