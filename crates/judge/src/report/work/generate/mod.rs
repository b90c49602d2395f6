//! The report's parts for requests that go token by token.

pub mod curve;
pub mod first_runs;
mod gaps;
pub mod steady;
pub mod variation;

use std::collections::BTreeMap;

use facts::evidence::Evidence;

/// The times of single requests: reports hold only their medians.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times {
    /// Every time between two tokens, in milliseconds, by framework.
    pub gaps_ms: BTreeMap<String, Vec<f64>>,
    /// The iterations of every process, by framework.
    pub curves: BTreeMap<String, Vec<curve::ProcessCurve>>,
}

impl Times {
    pub fn new(evidence: &Evidence) -> Times {
        Times { gaps_ms: gaps::gaps_ms(evidence), curves: curve::by_process(evidence) }
    }
}
