//! What a run that is judged again is judged otherwise.

use super::Report;
use crate::report::verdicts::{Comparison, Verdict};

/// The decisions that differ between two reports of one run, one sentence each.
pub fn changes(before: &Report, now: &Report) -> Vec<String> {
    let mut changes = Vec::new();
    for row in &now.rows {
        let earlier = before.rows.iter().find(|earlier| earlier.framework == row.framework);
        if let Some(earlier) = earlier.filter(|earlier| earlier.state != row.state) {
            let (was, is) = (earlier.state.name(), row.state.name());
            let why = row.reasons.first().map_or(String::new(), |reason| format!(": {reason}"));
            changes.push(format!("{} was {was} and is {is}{why}", row.framework));
        }
    }
    let same = |a: &Comparison, b: &Comparison| {
        a.metric == b.metric && ((a.a == b.a && a.b == b.b) || (a.a == b.b && a.b == b.a))
    };
    for found in &now.comparisons {
        let earlier = before.comparisons.iter().find(|earlier| same(earlier, found));
        let is_other = |earlier: &&Comparison| {
            earlier.verdict != found.verdict || (found.verdict == Verdict::Faster && earlier.a != found.a)
        };
        let title = found.metric.title();
        match earlier {
            None => changes.push(format!("{title}: new: {}", found.sentence)),
            Some(earlier) if is_other(&earlier) => changes.push(format!(
                "{title}: {} and {} were {}: {}; now {}: {}",
                found.a,
                found.b,
                earlier.verdict.words(),
                earlier.sentence,
                found.verdict.words(),
                found.sentence
            )),
            Some(_) => {}
        }
    }
    for earlier in &before.comparisons {
        if !now.comparisons.iter().any(|found| same(earlier, found)) {
            changes.push(format!("{}: no longer compared: {}", earlier.metric.title(), earlier.sentence));
        }
    }
    changes
}
