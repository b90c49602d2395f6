//! The observations: the facts of a comparison's journal, and the evidence that they make up. No verdict is
//! drawn here; `judge` does that.

pub mod agreement;
pub mod arithmetic;
pub mod evidence;

pub mod impossible;

pub mod run;
// Facts made up for tests, here and in other crates. Not behind a feature, which would compile this crate twice.
#[doc(hidden)]
pub mod testing;

pub use evidence::{End, Evidence, Fact, Probe};
pub use run::Noise;
pub use run::{Ending, Outcome, Place, Purpose, Run, RunFailure};
pub use run::{Environment, Gpu};
