//! Gathers and stores facts: worker processes, rounds, the machine, provisioning, results directories.
//!
//! Nothing is judged here; crate `judge` does that.

pub mod apart;
pub mod arrays;
pub mod texts;

pub mod doctor;

pub mod footprint;

mod largest_batch;

mod layer_parity;
mod limit;
mod live;
pub mod logits;
pub mod machine;
mod member;

pub mod places;

pub mod process;
pub mod progress;

pub mod provision;

mod reference;
pub mod resolve;
pub mod results;
pub mod round;

mod session;

pub mod worker;

pub use places::Places;
pub use results::Results;
pub use session::{Session, finished, wrong_framework};
pub use setup::tooling::Scratch;
