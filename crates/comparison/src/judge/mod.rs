//! Turns facts into judgements: metrics, parity, fairness, sanity, verdicts, and the report with all of them.
//!
//! The input is [`report::Facts`], the output [`Report`]; serde reads and writes both. Nothing here opens a
//! file, reads a clock or starts a process: `measure` has recorded everything that a rule needs.

pub mod metrics;
pub mod parity;
pub mod records;
pub mod regression;
pub mod report;
pub mod study;
pub mod work;

pub use metrics::Metric;
pub use report::Report;

use crate::facts::evidence::Evidence;
use crate::judge::report::{crossed, verdicts};
use crate::plan::Plan;
pub use crate::plan::WorkKind;

// Whether the evidence suffices, after a round.

/// Whether the request needs no more rounds: for every pair of contenders, or for the effects of crossed
/// switches.
pub fn are_clear(plan: &Plan, evidence: &Evidence) -> bool {
    if !evidence.looks(plan).is_look(evidence.rounds) {
        return false;
    }
    match crossed::decisions(plan, evidence) {
        Some(decisions) => statistics::settled(&decisions, plan.margin),
        None => verdicts::are_clear(plan, evidence),
    }
}

/// The first comparison, with the half width of its interval so far: "candle/tch ± 2.1 %". `None` if there is
/// none yet.
pub fn leading(plan: &Plan, evidence: &Evidence) -> Option<String> {
    match crossed::decisions(plan, evidence) {
        Some(decisions) => {
            let (low, high) = decisions.into_iter().next()??.interval;
            Some(format!("all on/all off ± {:.1} %", 50.0 * (high.ln() - low.ln())))
        }
        None => verdicts::leading(plan, evidence),
    }
}
