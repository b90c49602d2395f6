//! The part of the answer on several versions of one column.

use judge::Metric;
use judge::report::verdicts::{Comparison, Verdict};
use judge::report::{Report, Row};
use statistics::MIN_ROUNDS;

use super::{MOST, Standing, capital, listed, rounds};
use crate::words::amount::Differences;

/// The verdicts between versions of one column, where there are other columns as well.
pub(super) fn beside_others(report: &Report, compared: usize) -> Option<String> {
    if compared < 3 || report.noise().is_some() || rounds(report) < MIN_ROUNDS {
        return None;
    }
    let deciding = Metric::deciding(report.plan.work.kind());
    let engine = |label: &str| Some(&report.plan.contender(label)?.engine);
    if are_of_one(report) {
        // Then all that follows is of versions.
        return None;
    }
    let is_of_versions = |found: &&Comparison| {
        let (Some(a), Some(b)) = (engine(&found.a), engine(&found.b)) else { return false };
        found.metric == deciding && a.base() == b.base() && a.version != b.version
    };
    let clause = |found: &Comparison| {
        let pair = Standing { metric: deciding, compared: vec![found] };
        match found.verdict {
            Verdict::Faster => {
                format!("{} {} {}", found.a, deciding.does(), pair.than(&[found], Metric::than))
            }
            _ => pair.of_leaders(report, &pair.leaders()),
        }
    };
    let clauses: Vec<String> = report
        .comparisons
        .iter()
        .filter(is_of_versions)
        .take(MOST)
        .map(|found| clause(found) + outputs(report, &found.a, &found.b))
        .collect();
    let sentence = format!("{}.", clauses.join("; "));
    (!clauses.is_empty()).then(|| capital(&sentence))
}

/// Whether all contenders are one column at several versions.
fn are_of_one(report: &Report) -> bool {
    let engines: Vec<_> = report.plan.contenders.iter().map(|contender| &contender.engine).collect();
    engines.iter().all(|engine| engine.base() == engines[0].base())
        && engines.iter().any(|engine| engine.version != engines[0].version)
}

/// Compares the outputs of the versions of one column, if there is no other column.
pub(super) fn alone(report: &Report, compared: &[&Row]) -> Option<String> {
    let first = compared.first().filter(|row| row.outputs.is_some() && are_of_one(report))?;
    let others: Vec<&str> = compared
        .iter()
        .filter(|row| row.outputs != first.outputs)
        .map(|row| row.framework.as_str())
        .collect();
    Some(match others.as_slice() {
        [] => "Their outputs are identical.".to_owned(),
        others => format!(
            "The outputs of {} differ from those of {}, within the tolerance.",
            listed(others),
            first.framework
        ),
    })
}

/// Whether two versions computed the same bits, where that is known.
fn outputs(report: &Report, a: &str, b: &str) -> &'static str {
    let of = |label: &str| report.rows.iter().find(|row| row.framework == label)?.outputs.as_ref();
    match (of(a), of(b)) {
        (Some(ours), Some(theirs)) if ours == theirs => ", with identical outputs",
        (Some(_), Some(_)) => ", with other outputs, within the tolerance",
        _ => "",
    }
}
