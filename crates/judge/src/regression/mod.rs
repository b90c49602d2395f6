//! Decides whether a run is worse than another, significantly and by more than the threshold.

pub mod document;
mod finding;
pub mod machine;
pub mod pairing;
pub mod preflight;
pub mod since;
#[doc(hidden)]
pub mod testing;
pub mod thresholds;
pub mod verdicts;

pub use document::{Broken, Document, Kind, Side};
pub use finding::{Finding, Reason, Verdict};
pub use pairing::{Alone, Pair, Pairing};
pub use verdicts::{Bar, Subject};
