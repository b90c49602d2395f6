//! What each kind of work makes of the table of metrics, one file each, and the work behind figures.

mod denoise;
mod generate;

use plan::{Generation, Plan};

use super::Metric;

/// A kind of work, as the table of metrics sees it.
pub(super) struct Kind {
    /// Metrics that another takes the place of, in questions and verdicts.
    replaced: &'static [(Metric, Metric)],
    /// Whether it takes their place in tables, too.
    pub(super) replaces_in_tables: bool,
    /// Metrics that such requests do not have.
    pub(super) absent: &'static [Metric],
    /// Metrics that are another form of one, and share its verdict.
    follows: &'static [(Metric, Metric)],
}

impl Kind {
    pub(super) fn new(generation: Generation) -> &'static Kind {
        match generation {
            Generation::TokenByToken => &generate::TOKENS,
            Generation::OneToken => &generate::ONE_TOKEN,
            Generation::Denoising => &denoise::STEPS,
        }
    }

    /// The metric in the place of this one.
    pub(super) fn in_place_of(&self, metric: Metric) -> Metric {
        other(self.replaced, metric).unwrap_or(metric)
    }

    /// The metric of which this is another form.
    pub(super) fn followed_by(&self, metric: Metric) -> Option<Metric> {
        other(self.follows, metric)
    }
}

fn other(pairs: &[(Metric, Metric)], metric: Metric) -> Option<Metric> {
    pairs.iter().find(|(one, _)| *one == metric).map(|(_, other)| *other)
}

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
