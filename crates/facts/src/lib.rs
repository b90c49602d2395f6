//! The observations: the facts of a comparison's journal, and the evidence that they make up. No verdict is
//! drawn here; `judge` does that.

pub mod agreement;
pub mod environment;
pub mod evidence;
mod fact;
pub mod impossible;
pub mod noise;
pub mod reading;
pub mod run;
// Facts made up for tests, here and in other crates. Not behind a feature, which would compile this crate twice.
#[doc(hidden)]
pub mod testing;
pub mod text;

pub use environment::{Environment, Gpu};
pub use evidence::{End, Evidence, Fact, Probe};
pub use noise::Noise;
pub use run::{Ending, Outcome, Place, Purpose, Run, RunFailure};
