//! The work behind figures.

use plan::Plan;

/// The work of a request, or of a process: what figures of work per time and per sequence are computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Number of sequences that are computed together.
    pub batch: usize,
    /// Number of prompt tokens in all sequences.
    pub prompt_tokens: usize,
}

impl Work {
    /// The work of one request: a prompt in all sequences of the batch.
    pub fn request(plan: &Plan, case: usize) -> Work {
        let tokens = plan.prompts.get(case).map_or(0, |prompt| prompt.tokens.len());
        Work { batch: plan.batch, prompt_tokens: tokens * plan.batch }
    }
}
