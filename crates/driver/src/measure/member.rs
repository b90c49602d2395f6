//! A process of a round.

use comparison::facts::evidence::Process;
use protocol::Job;

use crate::measure::live::Live;

/// A process that is warm and waits for its turns.
pub(crate) struct Member {
    /// Its contender's place in the plan.
    pub(crate) index: usize,
    pub(crate) live: Live,
    pub(crate) job: Job,
    pub(crate) process: Process,
    /// Number of its events up to the end of warm-up.
    pub(crate) said: usize,
    /// Whether it failed in a turn.
    pub(crate) is_over: bool,
}
