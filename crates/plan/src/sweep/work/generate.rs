//! Continuation, token by token.

use crate::sweep::{SweepKind, usual};
use crate::{Failure, Request, Result};

/// Fewest new tokens for the test after a short warm-up.
const TESTED_TOKENS: u32 = 21;
/// Published model shapes with seeded weights: see docs/how-to/your-model.md.
const SIZES: [&str; 3] = ["synthetic:gpt2-124m", "synthetic:llama-160m", "synthetic:llama-360m"];

/// Fills in the axes of a study of texts that are continued.
pub(in super::super) fn complete(kind: SweepKind, request: &mut Request) -> Result<()> {
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
            request.usual_tokens(32);
        }
        SweepKind::Warmup | SweepKind::ShortWarmup => {
            // Without its JIT, a framework may need a second for a token.
            let (iterations, new_tokens) = if kind == SweepKind::Warmup { (6, 16) } else { (10, 32) };
            request.iterations = request.iterations.filter(|&count| count > 1).or(Some(iterations));
            if request.prompt_lengths.is_empty() {
                usual(&mut request.prompt_tokens, &[16]);
            }
            request.usual_tokens(new_tokens);
            if kind == SweepKind::ShortWarmup {
                check_tested(&request.new_tokens)?;
            }
        }
        SweepKind::Memory => {
            usual(&mut request.batch, &[1, 2, 4, 8]);
            usual(&mut request.prompt_tokens, &[128]);
            request.usual_tokens(16);
            // Memory is the same on a noisy machine.
            request.accept_noise = true;
        }
        SweepKind::Precision => {
            usual(&mut request.precisions, &bundle::Precision::ALL);
            usual(&mut request.prompt_tokens, &[16]);
            request.usual_tokens(64);
            request.study.text = true;
        }
        SweepKind::Size => {
            if request.models.len() < 2 {
                request.models = SIZES.map(str::to_owned).to_vec();
            }
            usual(&mut request.prompt_tokens, &[16]);
            request.usual_tokens(32);
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
