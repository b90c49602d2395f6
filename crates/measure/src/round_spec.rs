//! A round, and its work.

use std::time::Instant;

use judge::parity::Reference;
use protocol::{Input, Output};

/// The work of every process of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundWork<'a> {
    /// The traces that warm-up is fed, and along which logits are computed.
    pub(crate) traces: &'a [Output],
    /// The outputs to compare with, along these traces.
    pub(crate) reference: Option<&'a Reference>,
    /// The outputs to compare the tokens of requests with, along the traces of the requests.
    pub(crate) of_requests: Option<&'a Reference>,
    /// Whether requests are fed tokens, not those that they chose.
    pub(crate) is_fed: bool,
    /// Whether processes write logits in some rounds, to be compared with the reference.
    pub(crate) parity: bool,
    /// The prompts in the order in which the round's blocks have them, over and over.
    pub(crate) cases: &'a [usize],
    /// When the time budget of automatic rounds began.
    pub(crate) begun: Instant,
}

impl RoundWork<'_> {
    /// The input of a request of a case, if it is not the case's own.
    pub(crate) fn input(&self, case: usize) -> Option<Input> {
        if let Some(input) = self.of_requests.and_then(|reference| reference.inputs.get(case)) {
            return Some(input.clone());
        }
        let is_of_jobs = |fed: &&Reference| self.reference.is_some_and(|of_jobs| std::ptr::eq(of_jobs, *fed));
        let fed = self.of_requests.filter(|fed| self.is_fed && !is_of_jobs(fed));
        Some(Input::Trace(fed?.outputs.get(case)?.tokens().to_vec()))
    }
}

/// One round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    /// Its number, from 0.
    pub(crate) number: usize,
    /// Number of its blocks that count; with groups, of each group.
    pub(crate) blocks: usize,
    /// Number of the first block of the group that is measured.
    pub(crate) first: usize,
}

/// The user interrupted, and the round was broken off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupted;
