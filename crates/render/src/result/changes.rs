//! The changes of a run that is judged again, in words.

use comparison::judge::report::verdicts::Comparison;
use comparison::judge::report::{Change, Report, changes as found};

use super::verdict;
use crate::words::verdicts::word;

/// The decisions that differ between two reports of one run, one sentence each.
pub fn changes(before: &Report, now: &Report) -> Vec<String> {
    let was = |found: &Comparison| verdict(before, found);
    let is = |found: &Comparison| verdict(now, found);
    let sentence = |change: Change<'_>| match change {
        Change::State { was, now: row } => {
            let why = row.reasons.first().map_or(String::new(), |reason| format!(": {reason}"));
            format!("{} was {} and is {}{why}", row.framework, was.name(), row.state.name())
        }
        Change::New(found) => format!("{}: new: {}", found.metric.title(), is(found)),
        Change::Verdict { was: earlier, now: found } => format!(
            "{}: {} and {} were {}: {}; now {}: {}",
            found.metric.title(),
            found.a,
            found.b,
            word(earlier.verdict),
            was(earlier),
            word(found.verdict),
            is(found)
        ),
        Change::Gone(earlier) => {
            format!("{}: no longer compared: {}", earlier.metric.title(), was(earlier))
        }
    };
    found(before, now).into_iter().map(sentence).collect()
}
