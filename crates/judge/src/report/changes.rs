//! Differences between two judgements of one run.

use super::{Report, Row, State};
use crate::report::verdicts::{Comparison, Verdict};

/// One decision that differs between two reports of one run.
#[derive(Debug)]
pub enum Change<'a> {
    /// The state of a row.
    State { was: State, now: &'a Row },
    /// A pair that was not compared before.
    New(&'a Comparison),
    /// Another verdict.
    Verdict { was: &'a Comparison, now: &'a Comparison },
    /// A pair that is no longer compared.
    Gone(&'a Comparison),
}

/// The decisions that differ between two reports of one run.
pub fn changes<'a>(before: &'a Report, now: &'a Report) -> Vec<Change<'a>> {
    let mut changes = Vec::new();
    for row in &now.rows {
        let earlier = before.rows.iter().find(|earlier| earlier.framework == row.framework);
        if let Some(earlier) = earlier.filter(|earlier| earlier.state != row.state) {
            changes.push(Change::State { was: earlier.state, now: row });
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
        match earlier {
            None => changes.push(Change::New(found)),
            Some(was) if is_other(&was) => changes.push(Change::Verdict { was, now: found }),
            Some(_) => {}
        }
    }
    let gone =
        before.comparisons.iter().filter(|earlier| !now.comparisons.iter().any(|it| same(earlier, it)));
    changes.extend(gone.map(Change::Gone));
    changes
}
