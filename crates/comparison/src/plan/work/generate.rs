//! Continuation, token by token.

use std::collections::BTreeMap;

use bundle::ModelConfig;
use configs::Suite;
use protocol::{Case, Continued, Decode, GenerateWork, Heard, KvCache, Load, Output, Sample};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{Describe, Proof, WorkKind};
use crate::plan::serving::UsualRequests;
use crate::plan::sweep::{SweepKind, usual};
use crate::plan::{DecodeAsked, Failure, GraphAsked, Prompt, Request, Result, work};

/// Requests of several callers.
const USUAL_REQUESTS: UsualRequests = UsualRequests { each: 2, least: 8 };

/// Different prompts of several callers.
const DISTINCT_PROMPTS: usize = 8;

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
        let decode = match (request.sampling.sampling(|| seed), request.decode()) {
            (Some(sampling), _) => Decode::Sampled(sampling),
            (None, DecodeAsked::Forced) => Decode::Forced,
            (None, DecodeAsked::Greedy) => Decode::Greedy,
        };
        prompted.share(request.shared_prefix)?;
        let context = request.context.first().map_or(0, |&tokens| tokens as usize);
        let load = request.serving.load(USUAL_REQUESTS, seed)?;
        if let Some(load) = load {
            refuse_with_callers(request, decode)?;
            let different = load.requests.min(DISTINCT_PROMPTS);
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
        if prefill_chunk.is_some() && request.has_cache_off() {
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

    /// Other tokens for a request of a case, drawn from `pool`: in its prompts, whose special tokens stay, and for its steps if
    /// it `is_fed`.
    pub fn other_tokens(&self, case: usize, pool: &[u32], (seed, is_fed): (u64, bool)) -> Continued {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut drawn = || pool[random.random_range(0..pool.len())];
        let mut prompts = self.prompted.case_prompts().swap_remove(case);
        for (row, tokens) in prompts.iter_mut().enumerate() {
            let [before, after] = self.prompted.of_row(case, row).special;
            let end = tokens.len().saturating_sub(after);
            let kept = before.max(self.prompted.shared_prefix).min(end);
            tokens[kept..end].iter_mut().for_each(|token| *token = drawn());
        }
        let mut row = || (0..self.prompted.new_tokens).map(|_| drawn()).collect();
        let trace = if is_fed { prompts.iter().map(|_| row()).collect() } else { Vec::new() };
        let audio = self.prompted.prompts.get(case).and_then(|prompt| prompt.audio.as_ref());
        let turn = audio.map(|audio| random.random_range(0..audio.frames.max(1)));
        Continued { prompts, trace, turn }
    }

    /// What a request of a case hears, if the model hears: turned, if its input says so.
    pub fn heard(&self, case: usize, turn: Option<usize>) -> Option<Heard> {
        let audio = self.prompted.prompts.get(case)?.audio.as_ref()?;
        Some(Heard { file: audio.file.clone(), turn: turn.unwrap_or(0) })
    }

    /// A case's context and these prompts, for each of its sequences.
    pub fn behind_context(&self, case: usize, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
        let own = self.prompted.case_prompts().swap_remove(case);
        own.iter().zip(prompts).map(|(own, prompt)| [&self.context_of(own)[..], prompt].concat()).collect()
    }

    /// The work of requests that continue these prompts of each case by the most likely tokens.
    pub fn greedy(&self, prompts: Vec<Vec<Vec<u32>>>) -> protocol::Work {
        protocol::Work::Generate(GenerateWork {
            cases: prompts
                .into_iter()
                .enumerate()
                .map(|(case, prompts)| Case { prompts, audio: self.heard(case, None), ..Case::default() })
                .collect(),
            new_tokens: self.prompted.new_tokens,
            decode: Decode::Greedy,
            kv_cache: KvCache::On,
            prefill_chunk: None,
        })
    }
}

/// Rejects flags that are not for models that hear.
pub(super) fn refuse_with_audio(request: &Request) -> Result<()> {
    let others = GraphAsked { inputs: BTreeMap::new(), ..request.graph.clone() };
    let flags = [
        ("--context", request.has_context()),
        ("--kv-cache off", request.has_cache_off()),
        ("--batch", !request.batch.is_empty() || request.batch_max),
        ("--mixed", request.mixed),
        ("--prefill-chunk", request.prefill_chunk.iter().any(|&tokens| tokens > 0)),
        ("--shared-prefix", request.shared_prefix > 0),
        ("--prompt-tokens", !request.prompt_tokens.is_empty() || !request.prompt_lengths.is_empty()),
        ("--chat", request.chat),
        ("--callers, --rate, --slo and --serve", !request.serving.is_default()),
        ("--dim, --state, --runs, --audio and --artefact", !others.is_default()),
    ];
    match flags.into_iter().find(|(_, is_asked)| *is_asked) {
        None => Ok(()),
        Some((flag, _)) => Err(Failure::usage(format!(
            "{} hears one recording at a time, which --input NAME=FILE.wav names: leave {flag} out",
            request.model()
        ))),
    }
}

/// Rejects flags that are not for several callers.
fn refuse_with_callers(request: &Request, decode: Decode) -> Result<()> {
    let flags = [
        ("--context", request.has_context()),
        ("--kv-cache off", request.has_cache_off()),
        ("--batch", !request.batch.is_empty()),
        ("--temperature", matches!(decode, Decode::Sampled(_))),
        ("--decode greedy", decode == Decode::Greedy && request.decode.is_some()),
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
    fn phases(&self) -> [&'static str; 2] {
        ["steps", "a prompt"]
    }

    fn kind(&self) -> WorkKind {
        if let Some(load) = self.load {
            return work::kind(load);
        }
        if self.prompted.hears() {
            return WorkKind::Speech;
        }
        if self.prompted.new_tokens <= 1 { WorkKind::OneToken } else { WorkKind::TokenByToken }
    }

    fn cache_positions(&self, case: usize) -> usize {
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
        let (words, tokens, shared) = (work::words(load), self.prompted.longest(), self.prompted.shared());
        match &self.prompted.mixed {
            Some(lengths) => {
                format!("{words} for {new_tokens} new tokens each, behind prompts of {lengths}{shared}")
            }
            None => format!(
                "{words} for {new_tokens} new tokens each, behind a prompt of {tokens} tokens{shared}"
            ),
        }
    }

    fn mark_noun(&self) -> &'static str {
        "token"
    }

    fn asked(&self, kv_cache: KvCache, outputs: &[Output]) -> protocol::Work {
        let cases = self.prompted.case_prompts().into_iter().zip(outputs).enumerate();
        let cases = cases.map(|(case, (prompts, output))| {
            let context = match self.context {
                0 => Vec::new(),
                _ => prompts.iter().map(|prompt| self.context_of(prompt)).collect(),
            };
            Case { context, prompts, trace: output.tokens().to_vec(), audio: self.heard(case, None) }
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
        let has_calls = work::has_all(self.load, sample);
        sample.marks_ns.len() == self.marks() && has_calls && tokens.iter().all(is_whole)
    }

    fn fallback_outputs(&self) -> Vec<Output> {
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
        Proof::OtherTokens
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

// The axes of a study of texts that are continued.

/// Fewest new tokens for the test after a short warm-up.
const TESTED_TOKENS: u32 = 21;

/// Published model shapes with seeded weights: see docs/how-to/your-model.md.
const SIZES: [&str; 3] = ["synthetic:gpt2-124m", "synthetic:llama-160m", "synthetic:llama-360m"];

/// Fills in the axes of a study of texts that are continued.
pub(crate) fn complete(kind: SweepKind, request: &mut Request) -> Result<()> {
    match kind {
        SweepKind::Forward => {
            if request.new_tokens.iter().any(|&tokens| tokens != 1) {
                return Err(Failure::usage(
                    "a forward pass yields one token: leave --new-tokens out, or `photofinish sweep generate`",
                ));
            }
            request.new_tokens = vec![1];
            usual(&mut request.batch, &[1, 2, 4, 8]);
            usual(&mut request.prompt_tokens, &[128, 256, 512]);
        }
        SweepKind::Generate => {
            usual(&mut request.prompt_tokens, &[16, 64, 256]);
            usual(&mut request.new_tokens, &[32]);
        }
        SweepKind::Warmup | SweepKind::ShortWarmup => {
            // Without its JIT, a framework may need a second for a token.
            let (iterations, new_tokens) = if kind == SweepKind::Warmup { (6, 16) } else { (10, 32) };
            request.iterations = request.iterations.filter(|&count| count > 1).or(Some(iterations));
            if request.prompt_lengths.is_empty() {
                usual(&mut request.prompt_tokens, &[16]);
            }
            usual(&mut request.new_tokens, &[new_tokens]);
            if kind == SweepKind::ShortWarmup {
                check_tested(&request.new_tokens)?;
            }
        }
        SweepKind::Memory => {
            usual(&mut request.batch, &[1, 2, 4, 8]);
            usual(&mut request.prompt_tokens, &[128]);
            usual(&mut request.new_tokens, &[16]);
            // Memory is the same on a noisy machine.
            request.accept_noise = true;
        }
        SweepKind::Precision => {
            usual(&mut request.precisions, &bundle::Precision::MADE);
            usual(&mut request.prompt_tokens, &[16]);
            usual(&mut request.new_tokens, &[64]);
            request.study.text = true;
        }
        SweepKind::Size => {
            if request.models.len() < 2 {
                request.models = SIZES.map(str::to_owned).to_vec();
            }
            usual(&mut request.prompt_tokens, &[16]);
            usual(&mut request.new_tokens, &[32]);
        }
        SweepKind::Denoise | SweepKind::Embed | SweepKind::Callers => {}
    }
    Ok(())
}

/// Rejects requests that end before the test after a short warm-up does.
fn check_tested(new_tokens: &[u32]) -> Result<()> {
    let Some(few) = new_tokens.iter().find(|&&tokens| tokens < TESTED_TOKENS) else { return Ok(()) };
    Err(Failure::usage(format!(
        "the short warm-up is 5 tokens and its test 15, behind the first of prefill: --new-tokens {few} is too few, \
         give {TESTED_TOKENS} or more"
    )))
}

// Prompts followed by new tokens: common to continuation and masked diffusion.

/// Most logits of one case that parity compares: 32 MB in each process's file, and in this program for each of the two
/// sides. A position's logits depend on all positions before it, so the last position of a prompt reflects all of them.
/// With more, computing and comparing them took longer than the timed requests.
const MAX_LOGITS: usize = 1 << 23;

/// The same for the first sequences of a batch that fills the memory: 64 MB.
const MAX_LOGITS_OF_FULL_BATCH: usize = 1 << 24;

/// New tokens if neither the request nor its suite has a number.
const USUAL_NEW_TOKENS: u32 = 32;

/// Lengths in tokens, as far as they are known without the model's tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// In the KV cache before each prompt.
    pub context: usize,
    /// The length that every prompt is cut or extended to.
    pub prompt: Option<usize>,
    /// New tokens for each.
    pub new_tokens: usize,
}

impl Lengths {
    pub(crate) fn new(request: &Request, suite: &Suite) -> Lengths {
        let first = |values: &[u32]| values.first().map(|&tokens| tokens as usize);
        Lengths {
            context: first(&request.context).unwrap_or(0),
            prompt: first(&request.prompt_tokens),
            new_tokens: first(&request.new_tokens)
                .unwrap_or(suite.new_tokens.unwrap_or(USUAL_NEW_TOKENS) as usize),
        }
    }

    /// The least length of a sequence; `prompts` are the prompts' lengths if they have no common one.
    pub fn capacity(&self, prompts: &[u32]) -> usize {
        let longest = prompts.iter().max().map(|&tokens| tokens as usize);
        self.context + self.prompt.or(longest).unwrap_or(0) + self.new_tokens
    }
}

/// Prompts, each a case or all one, followed by a number of new tokens each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prompted {
    /// Number of sequences that are computed together.
    pub batch: usize,
    /// Whether parity compares only the last position of each prompt, and every new token.
    pub prompt_last_only: bool,
    /// New tokens for each prompt.
    pub new_tokens: usize,
    pub prompts: Vec<Prompt>,
    /// Number of sequences of a batch with logits that parity compares, the first ones; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<usize>,
    /// The name of the one case with all prompts in its batch; `None` if each is a case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed: Option<String>,
    /// Number of tokens at the beginning that all prompts have in common.
    #[serde(default, skip_serializing_if = "crate::plan::plan::is_zero")]
    pub shared_prefix: usize,
}

impl Prompted {
    /// Gives all prompts the beginning of the first.
    fn share(&mut self, tokens: usize) -> Result<()> {
        let own = |prompt: &Prompt| prompt.tokens.len().saturating_sub(prompt.special[1]);
        if let Some(short) = self.prompts.iter().find(|prompt| tokens > 0 && own(prompt) <= tokens) {
            let (name, length) = (&short.name, short.tokens.len());
            return Err(Failure::usage(format!(
                "--shared-prefix {tokens} leaves prompt {name:?}, of {length} tokens, none of its own: take fewer, or longer \
                 prompts (--prompt-tokens N)"
            )));
        }
        self.shared_prefix = tokens;
        Ok(())
    }

    /// Rejects prompts that exceed the model's context.
    pub(super) fn new(
        request: &Request,
        config: &ModelConfig,
        (prompts, lengths): (Vec<Prompt>, &Lengths),
    ) -> Result<Prompted> {
        let Lengths { context, new_tokens, .. } = *lengths;
        let asked = request.batch.first().map(|&batch| batch as usize);
        let mixed = request.mixed.then(|| mixed(request, &prompts)).transpose()?;
        let batch = asked.unwrap_or(if mixed.is_some() { prompts.len() } else { 1 });
        let mut longest = new_tokens;
        for prompt in &prompts {
            let read = context + prompt.tokens.len();
            check_context(read, new_tokens, config)?;
            longest = longest.max(read + new_tokens);
        }
        // Prompts of different lengths have only the last position in common.
        let prompt_last_only = mixed.is_some() || batch * longest * config.vocab_size > MAX_LOGITS;
        let judged =
            request.batch_max.then(|| judged(new_tokens, config.vocab_size)).filter(|&few| few < batch);
        let prompt_last_only = prompt_last_only || judged.is_some();
        Ok(Prompted { batch, prompt_last_only, new_tokens, prompts, judged, mixed, shared_prefix: 0 })
    }

    /// Makes one case of all prompts, with `batch` sequences or one for each prompt.
    pub(super) fn mix(&mut self, batch: usize) {
        self.mixed = Some(mixed_name(&self.prompts));
        self.batch = batch.max(self.prompts.len());
        self.prompt_last_only = true;
    }

    /// The prompts of each case: one prompt, or a batch of rotations of it, which differ in content and have the same
    /// length. A mixed batch has every prompt before any is rotated.
    pub fn case_prompts(&self) -> Vec<Vec<Vec<u32>>> {
        let shared = self.prompts.first().map_or(&[][..], |first| &first.tokens[..self.shared_prefix]);
        let rotated = |prompt: &Prompt, by: usize| {
            let mut tokens = prompt.tokens.clone();
            // Special tokens stay at their ends.
            let [before, after] = prompt.special;
            let end = tokens.len().saturating_sub(after);
            let inner = &mut tokens[before.min(end)..end];
            inner.rotate_left(by % inner.len().max(1));
            tokens[..shared.len()].copy_from_slice(shared);
            tokens
        };
        if self.mixed.is_some() {
            let count = self.prompts.len();
            let row = |row: usize| rotated(&self.prompts[row % count], row / count);
            return vec![(0..self.batch).map(row).collect()];
        }
        let batch = |prompt: &Prompt| (0..self.batch).map(|by| rotated(prompt, by)).collect();
        self.prompts.iter().map(batch).collect()
    }

    /// The prompt of a sequence of a case.
    fn of_row(&self, case: usize, row: usize) -> &Prompt {
        if self.mixed.is_some() { &self.prompts[row % self.prompts.len()] } else { &self.prompts[case] }
    }

    /// Whether the model hears.
    pub fn hears(&self) -> bool {
        self.prompts.iter().any(|prompt| prompt.audio.is_some())
    }

    /// Number of cases.
    pub(super) fn cases(&self) -> usize {
        if self.mixed.is_some() { 1 } else { self.prompts.len() }
    }

    /// Number of prompt tokens of all sequences of a case, without padding.
    pub(super) fn all_tokens(&self, case: usize) -> usize {
        match self.mixed {
            Some(_) => {
                let lengths = self.prompts.iter().map(|prompt| prompt.tokens.len());
                lengths.cycle().take(self.batch).sum()
            }
            None => self.batch * self.length(case),
        }
    }

    /// Number of tokens that a request adds, in all sequences.
    pub fn added(&self) -> usize {
        self.new_tokens * self.batch
    }

    /// Length of a case's prompts in tokens, the mean if they differ.
    pub(super) fn length(&self, case: usize) -> usize {
        if self.mixed.is_some() {
            return self.all_tokens(case) / self.batch;
        }
        self.prompts.get(case).map_or(0, |prompt| prompt.tokens.len())
    }

    /// Length of the longest prompt of a case in tokens.
    pub(super) fn longest_of(&self, case: usize) -> usize {
        if self.mixed.is_some() { self.longest() } else { self.length(case) }
    }

    pub(super) fn name(&self, case: usize) -> &str {
        if let Some(name) = &self.mixed {
            return name;
        }
        self.prompts.get(case).map_or("", |prompt| &prompt.name)
    }

    /// Length of the longest prompt in tokens.
    pub(super) fn longest(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0)
    }

    /// For people: "prompts of 16 and 18 tokens, 32 new tokens each", and `how` they come.
    pub(super) fn words(&self, how: &str) -> String {
        if self.hears() {
            let seconds = self.prompts.iter().filter_map(|prompt| prompt.audio.as_ref());
            let seconds: Vec<String> = seconds.map(|audio| format!("{:.1}", audio.seconds)).collect();
            let (seconds, tokens) = (seconds.join(" and "), self.new_tokens);
            return format!("{seconds} s of audio, {tokens} new tokens each");
        }
        let lengths: Vec<String> =
            self.prompts.iter().map(|prompt| prompt.tokens.len().to_string()).collect();
        let together = if self.mixed.is_some() { "one batch of" } else { "batch" };
        let batch = if self.batch > 1 { format!(", {together} {}", self.batch) } else { String::new() };
        format!(
            "prompts of {} tokens{}, {} new tokens each{how}{batch}",
            lengths.join(" and "),
            self.shared(),
            self.new_tokens
        )
    }

    fn shared(&self) -> String {
        match self.shared_prefix {
            0 => String::new(),
            tokens => format!(", the first {tokens} the same in all"),
        }
    }

    /// Whether every sequence has as many tokens as were asked for.
    pub(super) fn has_all(&self, rows: &[Vec<u32>]) -> bool {
        rows.len() == self.batch && rows.iter().all(|row| row.len() == self.new_tokens)
    }

    /// The prompts' own tokens, repeated: the tokens fed in each case without a reference.
    pub(super) fn repeated(&self) -> Vec<Vec<Vec<u32>>> {
        let repeated =
            |prompt: Vec<u32>| -> Vec<u32> { prompt.iter().copied().cycle().take(self.new_tokens).collect() };
        let cases = self.case_prompts().into_iter();
        cases.map(|rows| rows.into_iter().map(repeated).collect()).collect()
    }
}

/// Number of sequences with logits that parity compares if a batch fills the memory.
fn judged(new_tokens: usize, vocabulary: usize) -> usize {
    (MAX_LOGITS_OF_FULL_BATCH / ((1 + new_tokens) * vocabulary)).max(1)
}

/// The name of the case of all prompts, if they can be one.
fn mixed(request: &Request, prompts: &[Prompt]) -> Result<String> {
    let count = prompts.len();
    let refused = |why: String| Err(Failure::usage(why));
    if count < 2 {
        return refused(
            "--mixed joins prompts of different lengths in one batch, and there is one prompt: name lengths, such as \
             --prompt-lengths 16,64,256"
                .into(),
        );
    }
    if let Some(&batch) = request.batch.first().filter(|&&batch| (batch as usize) < count) {
        return refused(format!("--mixed joins {count} prompts, which a batch of {batch} cannot hold"));
    }
    if request.has_context() {
        return refused("--mixed has no context before its prompts: leave --context out".into());
    }
    if request.prefill_chunk.iter().any(|&tokens| tokens > 0) {
        return refused(
            "--prefill-chunk cuts prompts of one length, and those of --mixed have several: leave one of both out"
                .into(),
        );
    }
    Ok(mixed_name(prompts))
}

fn mixed_name(prompts: &[Prompt]) -> String {
    let lengths: Vec<String> = prompts.iter().map(|prompt| prompt.tokens.len().to_string()).collect();
    format!("{} tokens", lengths.join(" + "))
}

/// Rejects a sequence that is longer than the model's context. Lengths are in tokens.
pub fn check_context(prompt: usize, new_tokens: usize, config: &ModelConfig) -> Result<()> {
    let context = config.max_positions;
    if prompt + new_tokens > context {
        return Err(Failure::usage(format!(
            "a prompt of {prompt} tokens and {new_tokens} new ones exceed the model's context of {context} tokens"
        )));
    }
    Ok(())
}
