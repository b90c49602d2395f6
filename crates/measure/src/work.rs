//! What a round is, and what is done in it.

use std::time::Instant;

use judge::parity::Reference;
use protocol::Generated;

/// The work of every process of every round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundWork<'a> {
    /// Tokens that are fed; of masked diffusion, with the step that unmasks each.
    pub(crate) traces: &'a Generated,
    /// The outputs to compare with.
    pub(crate) reference: Option<&'a Reference>,
    /// Whether processes write logits in some rounds, to be compared with the reference.
    pub(crate) parity: bool,
    /// When the time budget of automatic rounds began.
    pub(crate) begun: Instant,
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
