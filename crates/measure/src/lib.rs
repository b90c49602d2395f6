//! Gathers and stores facts: worker processes, rounds, the machine, provisioning, results directories.
//!
//! Nothing is judged here; crate `judge` does that.

pub mod apart;
pub mod arrays;
mod block_count;
mod blocks;
pub mod bundles;
pub mod clock;
pub mod collection;
pub mod command;
mod comparison;
mod crew;
pub mod device;
mod engines;
pub mod environment;
mod event;
mod fed;
mod finishing;
mod group;
pub mod groups;
pub mod interrupt;
pub mod launch;
mod layer_parity;
mod live;
pub mod logits;
pub mod machine;
mod member;
pub mod native;
mod pipes;
pub mod places;
mod prober;
mod probing;
pub mod process;
pub mod progress;
pub mod prompt_files;
pub mod protest;
pub mod provision;
mod quality;
mod quiet;
mod recorder;
mod reference;
pub mod resolve;
pub mod results;
mod round;
mod rounds;
pub mod saved;
mod session;
mod slices;
mod start;
pub mod text;
mod work;
pub mod worker;

pub use places::Places;
pub use results::Results;
pub use session::{Session, finished, wrong_framework};
pub use tooling::Scratch;
