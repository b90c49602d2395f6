//! Gathers and stores facts: worker processes, rounds, the machine, provisioning, results directories.
//!
//! Nothing is judged here; crate `comparison` does that.

pub(crate) mod arithmetic;
pub mod arrays;
pub mod bundles;
mod crew;
pub mod doctor;
mod finish;
pub mod footprint;
mod largest_batch;
mod layer_parity;
mod limit;
pub mod logits;
pub mod machine;
mod media;
mod own_code;
pub(crate) mod perf;
pub mod places;
pub(crate) mod presets;
pub mod process;
pub mod progress;
mod proof;
pub mod provision;
mod reference;
pub mod resolve;
pub mod results;
pub mod round;
pub(crate) mod running_worker;
mod session;
mod slices;
pub(crate) mod speech;
pub mod texts;
pub mod tokenizer;
pub mod worker;

pub use places::Places;
pub use results::Results;
pub use session::{Session, finished, wrong_framework};
pub use setup::tooling::Scratch;
