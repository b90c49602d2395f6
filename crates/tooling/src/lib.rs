//! What the repository's tools share: starting other programs, showing long work, and exit codes.

mod failure;
pub mod process;
mod report;

pub use failure::{BadInput, exit_code, is_bad_input};
pub use report::{Reporter, Transfer, megabytes};
