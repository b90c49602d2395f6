//! Turns facts into judgements: metrics, parity, fairness, sanity, verdicts, and the report with all of them.
//!
//! The input is [`report::Facts`], the output [`Report`]; serde reads and writes both. Nothing here opens a
//! file, reads a clock or starts a process: `measure` has recorded everything that a rule needs.

pub(crate) mod clocks;
pub mod combined;
pub mod metrics;
pub mod parity;
pub mod power;
pub mod records;
pub mod regression;
pub mod report;
pub mod study;
pub mod work;

pub use metrics::Metric;
pub use report::Report;
pub use report::verdicts::leading;

use crate::facts::evidence::Evidence;
use crate::judge::report::verdicts;
use crate::plan::Plan;
pub use crate::plan::WorkKind;

// Whether the evidence suffices, after a round.

/// Whether the request needs no more rounds, for every pair of contenders.
pub fn are_clear(plan: &Plan, evidence: &Evidence) -> bool {
    evidence.looks(plan).is_look(evidence.rounds) && verdicts::are_clear(plan, evidence)
}
