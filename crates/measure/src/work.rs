//! What a round is, and what is done in it.

use std::time::Instant;

use judge::parity::Reference;
use protocol::Generated;

/// The work of every process of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundWork<'a> {
    /// Tokens that are fed in warm-up, and that logits are taken along; of masked diffusion, with the step that unmasks
    /// each.
    pub(crate) traces: &'a Generated,
    /// The outputs to compare with, along these traces.
    pub(crate) reference: Option<&'a Reference>,
    /// The outputs that the tokens of requests are compared with, along what requests are fed.
    pub(crate) of_requests: Option<&'a Reference>,
    /// Whether requests are fed tokens, and not those that they chose.
    pub(crate) is_fed: bool,
    /// Whether processes write logits in some rounds, to be compared with the reference.
    pub(crate) parity: bool,
    /// When the time budget of automatic rounds began.
    pub(crate) begun: Instant,
}

impl RoundWork<'_> {
    /// What a request of a case is fed, where that is not the case's own trace: `[sequence][token]`.
    pub(crate) fn fed(&self, case: usize) -> Vec<Vec<u32>> {
        let is_of_jobs = |fed: &&Reference| self.reference.is_some_and(|of_jobs| std::ptr::eq(of_jobs, *fed));
        let fed = self.of_requests.filter(|fed| self.is_fed && !is_of_jobs(fed));
        fed.and_then(|fed| fed.generated.tokens.get(case).cloned()).unwrap_or_default()
    }
}

/// One round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    /// Its number, from 0.
    pub(crate) number: usize,
    /// Number of its blocks that count; where there are groups, of each of them.
    pub(crate) blocks: usize,
    /// Number of the first block of the group that is measured.
    pub(crate) first: usize,
    /// Whether its first blocks choose how many there are.
    pub(crate) has_pilot: bool,
}

/// The user interrupted, and the round was broken off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupted;
