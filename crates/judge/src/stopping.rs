//! Whether the evidence is enough, after a round.

use plan::Plan;

use crate::report::crossed;
use crate::report::verdicts;
use facts::evidence::Evidence;

/// Whether what is asked needs no more rounds: every pair of contenders, or where switches are crossed what each is
/// worth.
pub fn are_clear(plan: &Plan, evidence: &Evidence) -> bool {
    if !plan.rounds.looks().is_look(evidence.rounds) {
        return false;
    }
    match crossed::decisions(plan, evidence) {
        Some(decisions) => statistics::settled(&decisions, plan.margin),
        None => verdicts::are_clear(plan, evidence),
    }
}

/// What is looked at first, with the half width of its interval so far: "candle/tch ± 2.1 %". `None` before there is one.
pub fn leading(plan: &Plan, evidence: &Evidence) -> Option<String> {
    match crossed::decisions(plan, evidence) {
        Some(decisions) => {
            let (low, high) = decisions.into_iter().next()??.interval;
            Some(format!("all on/all off ± {:.1} %", 50.0 * (high.ln() - low.ln())))
        }
        None => verdicts::leading(plan, evidence),
    }
}
