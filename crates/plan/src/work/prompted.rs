//! Prompts followed by new tokens: common to continuation and masked diffusion.

use bundle::ModelConfig;
use configs::Suite;
use serde::{Deserialize, Serialize};

use crate::{Failure, Prompt, Request, Result};

/// Most logits of one case that parity compares: 32 MB in each process's file, and in this program for each of the two
/// sides. A position's logits depend on all positions before it, so the last position of a prompt reflects all of them.
/// With more, computing and comparing them took longer than the timed requests.
const MOST_LOGITS: usize = 1 << 23;

/// The same for the first sequences of a batch that fills the memory: 64 MB.
const FEW_LOGITS: usize = 1 << 24;

/// New tokens if neither the request nor its suite has a number.
const USUAL: u32 = 32;

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
            new_tokens: first(&request.new_tokens).unwrap_or(suite.new_tokens.unwrap_or(USUAL) as usize),
        }
    }

    /// Whether prompts get no new tokens.
    pub(crate) fn adds_none(&self) -> bool {
        self.new_tokens == 0
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
}

impl Prompted {
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
        let prompt_last_only = mixed.is_some() || batch * longest * config.vocab_size > MOST_LOGITS;
        let judged =
            request.batch_max.then(|| judged(new_tokens, config.vocab_size)).filter(|&few| few < batch);
        let prompt_last_only = prompt_last_only || judged.is_some();
        Ok(Prompted { batch, prompt_last_only, new_tokens, prompts, judged, mixed })
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
        let rotated = |prompt: &Prompt, by: usize| {
            let mut tokens = prompt.tokens.clone();
            let length = tokens.len();
            tokens.rotate_left(by % length);
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
        let lengths: Vec<String> =
            self.prompts.iter().map(|prompt| prompt.tokens.len().to_string()).collect();
        let together = if self.mixed.is_some() { "one batch of" } else { "batch" };
        let batch = if self.batch > 1 { format!(", {together} {}", self.batch) } else { String::new() };
        format!(
            "prompts of {} tokens, {} new tokens each{how}{batch}",
            lengths.join(" and "),
            self.new_tokens
        )
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
    (FEW_LOGITS / ((1 + new_tokens) * vocabulary)).max(1)
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
    if request.context.iter().any(|&tokens| tokens > 0) {
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
