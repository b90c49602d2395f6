//! The named sweeps, and the axes that each varies by default.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::{Axis, Failure, PromptSource, Request, Result, RoundsAsked};

/// Default rounds of a cell: there are many cells, and the first question is the shape of the curve. Six rounds are the
/// fewest for a verdict.
const ROUNDS: u32 = 3;
const QUICK_ROUNDS: u32 = 1;
/// Published model shapes with seeded weights: see docs/models.md.
const SIZES: [&str; 3] = ["synthetic:gpt2-124m", "synthetic:llama-160m", "synthetic:llama-360m"];

/// A named sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum SweepKind {
    /// One pass over --batch sequences of --seq tokens each
    Forward,
    /// Prefill and decoding over --prompt-tokens, --new-tokens, --context, --threads, --batch
    Generate,
    /// Iteration 1, 2, 3 …: the cost of the first, when times settle, and the error of a warm-up that is too short
    Warmup,
    /// Memory by part, over --batch
    Memory,
    /// Costs and savings of each --precision: speed, memory, perplexity, agreement with f32
    Precision,
    /// Cost against the size of the --model
    Size,
}

impl SweepKind {
    /// The kind with this name.
    pub fn named(name: &str) -> Option<SweepKind> {
        SweepKind::VARIANTS.iter().copied().find(|kind| kind.name() == name)
    }

    /// The word after `sweep`.
    pub fn name(self) -> &'static str {
        match self {
            SweepKind::Forward => "forward",
            SweepKind::Generate => "generate",
            SweepKind::Warmup => "warmup",
            SweepKind::Memory => "memory",
            SweepKind::Precision => "precision",
            SweepKind::Size => "size",
        }
    }

    /// Fills in the axes that were not given.
    fn complete(self, request: &mut Request) -> Result<()> {
        fn usual<T: Clone>(values: &mut Vec<T>, usual: &[T]) {
            if values.is_empty() {
                *values = usual.to_vec();
            }
        }
        if !request.quantize.is_empty() {
            return Err(Failure::usage("--quantize is for `compare`; a sweep takes --precision"));
        }
        // A single prompt, so that its length can be the axis.
        if !request.names_prompts() {
            request.prompts = PromptSource::Texts(vec![crate::prompts::STUDY_PROMPT.to_owned()]);
        }
        match self {
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
            SweepKind::Warmup => {
                request.iterations = request.iterations.filter(|&iterations| iterations > 1).or(Some(10));
                usual(&mut request.prompt_tokens, &[16]);
                usual(&mut request.new_tokens, &[32]);
            }
            SweepKind::Memory => {
                usual(&mut request.batch, &[1, 2, 4, 8]);
                usual(&mut request.prompt_tokens, &[128]);
                usual(&mut request.new_tokens, &[16]);
                // Memory is the same on a noisy machine.
                request.accept_noise = true;
            }
            SweepKind::Precision => {
                usual(&mut request.precisions, &bundle::Precision::ALL);
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
        }
        Ok(())
    }

    /// The axes that have a column even if they have one value.
    pub fn own_axes(self) -> &'static [Axis] {
        match self {
            SweepKind::Forward => &[Axis::Batch, Axis::PromptTokens],
            SweepKind::Generate => &[Axis::PromptTokens, Axis::NewTokens],
            SweepKind::Warmup => &[],
            SweepKind::Memory => &[Axis::Batch],
            SweepKind::Precision => &[Axis::Precision],
            SweepKind::Size => &[Axis::Model],
        }
    }
}

/// The request of a sweep of this kind: `asked`, with every open setting filled in.
pub(crate) fn completed(kind: SweepKind, asked: &Request) -> Result<Request> {
    let mut request = asked.clone();
    let rounds = if request.quick { QUICK_ROUNDS } else { ROUNDS };
    request.rounds.get_or_insert(RoundsAsked::Fixed(rounds));
    request.iterations.get_or_insert(1);
    request.cold_load.get_or_insert(false);
    kind.complete(&mut request)?;
    Ok(request)
}
