//! Comparisons that were measured, request by request and token by token, to be played again: what the statistics say of the
//! noise of real machines.
//!
//! One contender under two names does not differ from itself. Which of the two a figure belongs to is chance, so the two
//! change places at random in every round that is played.

mod estimator;
mod file;
mod replay;
mod work;

pub use estimator::{Estimator, Part};
pub use file::{Process, Recording, read, recorded, write};
pub(crate) use replay::Replay;
pub use work::Request;

/// The recordings, some of them. What was chosen on the first half is reported on the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    First,
    Second,
}

impl Half {
    /// Every other recording: they were made one after another on the same machine.
    fn has(self, index: usize) -> bool {
        (index.is_multiple_of(2)) == (self == Half::First)
    }
}
