//! The A/A floor: how far one engine, under two labels, seems to differ from itself.

use serde::Serialize;

use crate::judge::metrics::Metric;
use crate::judge::verdicts::{Comparison, Verdict};
use crate::plan::Plan;

/// What this machine cannot tell apart, from one engine measured as two.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Floor {
    pub(crate) a: String,
    pub(crate) b: String,
    pub(crate) metric: Metric,
    /// The end of the 95 % interval that is farther from "no difference", as a share.
    pub(crate) share: f64,
    /// Whether a difference was found where there is none.
    pub(crate) false_alarm: bool,
}

pub(crate) fn floors(plan: &Plan, comparisons: &[Comparison]) -> Vec<Floor> {
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
