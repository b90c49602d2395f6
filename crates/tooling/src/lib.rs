//! Functions that the repository's tools share: starting other programs, ending them when the user
//! interrupts, showing long work, reading pages and the files of a checkout, and exit codes.

mod failure;
pub mod interrupt;
mod markers;
pub mod pages;
pub mod process;
mod report;
mod scratch;
mod texts;

pub use failure::{BadInput, Interrupted, exit_code, is_bad_input};
pub use markers::splice;
pub use report::{Reporter, Transfer, megabytes};
pub use scratch::Scratch;
pub use texts::{files, texts};
