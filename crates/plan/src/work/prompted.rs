//! Prompts with new tokens behind them: what continuation and masked diffusion have in common.

use bundle::ModelConfig;
use configs::Suite;
use serde::{Deserialize, Serialize};

use crate::{Failure, Prompt, Request, Result};

/// Most logits of one case that parity compares: 256 MB in each process's file, and in this program for each of the two
/// sides. A position's logits depend on all positions before it, so the last position reflects all of them.
const MOST_LOGITS: usize = 1 << 26;

/// New tokens where neither the request nor its suite names a number.
const USUAL: u32 = 32;

/// Lengths in tokens, as far as they are known without the model's tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// In the KV cache before each prompt.
    pub context: usize,
    /// What every prompt is cut or extended to.
    pub prompt: Option<usize>,
    /// What is added to each.
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

    /// Whether nothing is added to prompts.
    pub(crate) fn adds_none(&self) -> bool {
        self.new_tokens == 0
    }

    /// The least length of a sequence, with prompts of these lengths if all of them are not of one.
    pub fn capacity(&self, prompts: &[u32]) -> usize {
        let longest = prompts.iter().max().map(|&tokens| tokens as usize);
        self.context + self.prompt.or(longest).unwrap_or(0) + self.new_tokens
    }
}

/// Prompts, each a case, and a number of new tokens behind each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prompted {
    /// Number of sequences that are computed together.
    pub batch: usize,
    /// Whether parity compares only the last position of each prompt, and every new token.
    pub prompt_last_only: bool,
    /// New tokens for each prompt.
    pub new_tokens: usize,
    pub prompts: Vec<Prompt>,
}

impl Prompted {
    /// Refuses prompts that exceed the model's context.
    pub(super) fn new(
        request: &Request,
        config: &ModelConfig,
        (prompts, lengths): (Vec<Prompt>, &Lengths),
    ) -> Result<Prompted> {
        let Lengths { context, new_tokens, .. } = *lengths;
        let batch = request.batch.first().map_or(1, |&batch| batch as usize);
        let mut longest = new_tokens;
        for prompt in &prompts {
            let read = context + prompt.tokens.len();
            check_context(read, new_tokens, config)?;
            longest = longest.max(read + new_tokens);
        }
        let prompt_last_only = batch * longest * config.vocab_size > MOST_LOGITS;
        Ok(Prompted { batch, prompt_last_only, new_tokens, prompts })
    }

    /// The prompts of each case: one prompt, or a batch of rotations of it. Rotations differ in content and have the
    /// same length.
    pub fn case_prompts(&self) -> Vec<Vec<Vec<u32>>> {
        let batch = |prompt: &Prompt| {
            let rotated = |by: usize| {
                let mut tokens = prompt.tokens.clone();
                let length = tokens.len();
                tokens.rotate_left(by % length);
                tokens
            };
            (0..self.batch).map(rotated).collect()
        };
        self.prompts.iter().map(batch).collect()
    }

    /// Number of tokens that a request adds, in all sequences.
    pub fn added(&self) -> usize {
        self.new_tokens * self.batch
    }

    /// Length of a prompt in tokens.
    pub(super) fn length(&self, case: usize) -> usize {
        self.prompts.get(case).map_or(0, |prompt| prompt.tokens.len())
    }

    pub(super) fn name(&self, case: usize) -> &str {
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
        let batch = if self.batch > 1 { format!(", batch {}", self.batch) } else { String::new() };
        format!(
            "prompts of {} tokens, {} new tokens each{how}{batch}",
            lengths.join(" and "),
            self.new_tokens
        )
    }

    /// Whether there is a token for each that was asked for, in every sequence.
    pub(super) fn has_all(&self, rows: &[Vec<u32>]) -> bool {
        rows.len() == self.batch && rows.iter().all(|row| row.len() == self.new_tokens)
    }

    /// The prompts' own tokens, repeated: for each case what is fed where there is no reference.
    pub(super) fn repeated(&self) -> Vec<Vec<Vec<u32>>> {
        let repeated =
            |prompt: Vec<u32>| -> Vec<u32> { prompt.iter().copied().cycle().take(self.new_tokens).collect() };
        let cases = self.case_prompts().into_iter();
        cases.map(|rows| rows.into_iter().map(repeated).collect()).collect()
    }
}

/// Refuses a sequence that is longer than the model's context. Lengths are in tokens.
pub fn check_context(prompt: usize, new_tokens: usize, config: &ModelConfig) -> Result<()> {
    let context = config.max_positions;
    if prompt + new_tokens > context {
        return Err(Failure::usage(format!(
            "a prompt of {prompt} tokens and {new_tokens} new ones exceed the model's context of {context} tokens"
        )));
    }
    Ok(())
}
