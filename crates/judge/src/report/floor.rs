//! The A/A floor: how much one engine, under two labels, seems to differ from itself.

use serde::{Deserialize, Serialize};

use crate::metrics::Metric;
use crate::report::verdicts::{Comparison, Verdict};
use plan::Plan;

/// The smallest difference that this machine can show, from one engine measured as two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    pub a: String,
    pub b: String,
    pub metric: Metric,
    /// The end of the 95 % interval that is farther from "no difference", as a share.
    #[serde(deserialize_with = "facts::reading::number")]
    pub share: f64,
    /// Whether a difference was found although there is none.
    pub false_alarm: bool,
}

/// The floor of every metric, for every pair of contenders that are the same engine.
pub fn floors(plan: &Plan, comparisons: &[Comparison]) -> Vec<Floor> {
    let engine = |label: &str| {
        let contender = plan.contenders.iter().find(|contender| contender.label == label)?;
        Some(contender.engine.name.as_str())
    };
    let controls = comparisons.iter().filter(|c| engine(&c.a).is_some() && engine(&c.a) == engine(&c.b));
    let floor = |comparison: &Comparison| {
        let (low, high) = comparison.interval?;
        let share = high.ln().abs().max(low.ln().abs()).exp() - 1.0;
        Some(Floor {
            a: comparison.a.clone(),
            b: comparison.b.clone(),
            metric: comparison.metric,
            share,
            false_alarm: comparison.verdict == Verdict::Faster,
        })
    };
    controls.filter_map(floor).collect()
}
