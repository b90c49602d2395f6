//! The work behind figures.

use plan::Plan;

/// The work behind figures of work per time: the work of one iteration, or of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Number of sequences that are computed together.
    pub batch: usize,
    /// Number of prompt tokens of all cases and all sequences.
    pub prompt_tokens: usize,
}

impl Work {
    /// The work of one iteration of a plan.
    pub fn new(plan: &Plan) -> Work {
        let prompt_tokens = plan.prompts.iter().map(|prompt| prompt.tokens.len()).sum::<usize>();
        Work { batch: plan.batch, prompt_tokens: prompt_tokens * plan.batch }
    }

    /// The work of one request: a prompt in all sequences of the batch.
    pub fn request(plan: &Plan, case: usize) -> Work {
        let tokens = plan.prompts.get(case).map_or(0, |prompt| prompt.tokens.len());
        Work { batch: plan.batch, prompt_tokens: tokens * plan.batch }
    }
}
