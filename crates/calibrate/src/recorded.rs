//! Comparisons that were measured, request by request and token by token, to be replayed: a test of the
//! statistics on the noise of real machines.
//!
//! One contender under two names does not differ from itself. It is chance to which of the two a figure
//! belongs, so that the two swap places at random in every replayed round.

mod estimator;
mod file;
mod replay;
mod work;

pub use estimator::{Estimator, Part};
pub use file::{Process, Recording, read, recorded, write};
pub(crate) use replay::Replay;
pub use work::Request;

/// Half of the recordings. The second half tests the choices made on the first.
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
