//! Information needed before trusting the figures, the gravest first.

use serde::{Deserialize, Serialize};

use super::{Facts, Row};
use crate::metrics::Metric;
use crate::report::fairness::{MACHINE, RuleState};
use facts::evidence::{End, Evidence};
use plan::{Contender, Plan};

/// Coefficient of variation above which the figures of one contender differ too much for a meaningful mean.
const VARIES: f64 = 0.10;
/// Share of a rate, in percent, below which a contender does not keep up with it. The last requests of a turn
/// are still in progress when the others are done.
const KEEPS_UP: f64 = 90.0;

/// One warning. Crate `render` writes them in words, also into files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Warning {
    /// The user interrupted the run.
    Interrupted,
    /// The run was ended before it could save its report.
    Killed,
    /// Why there is no reference for parity.
    NoReference(String),
    /// Noise that was accepted.
    AcceptedNoise { rule: String, finding: String },
    /// The machine was noisy so often, and disturbed parts were repeated where possible; so many starts
    /// stayed disturbed.
    Disturbed { times: usize, starts: usize, last: String },
    /// Throughput differs by more than the limit from process to process: the coefficient of variation of each contender.
    Varies { limit: f64, contenders: Vec<(String, f64)> },
    /// Most processes never settled or slowed down: how many of how many, for each contender.
    Unsteady(Vec<(String, usize, usize)>),
    /// Warm-up hit its limit in so many processes.
    Unsettled { contender: String, unsettled: usize, rounds: usize },
    /// More requests a second arrive than are answered; `kept` is in percent of the rate.
    Overloaded { contender: String, rate: f64, answered: f64, kept: f64 },
    /// Why the quality of a contender's text is unknown.
    QualityUnknown { contender: String, reason: String },
    /// Why the tokenizer was not timed in every round.
    TokenizerNotTimed(String),
    /// A departure from a rule that gives no advantage.
    Noted { rule: String, contender: String, finding: String, is_compared: bool },
    /// Why a rule could not be verified.
    Unverified { rule: String, reason: String },
    /// Why the machine was not probed.
    NoProbe(String),
    /// A file missing from the results directory, and the consequence.
    Missing(String),
    /// In the words of a report that was read.
    #[serde(untagged)]
    Told(String),
}

impl Warning {
    /// Whether it only states the subject of a study.
    pub(crate) fn is_of_study(&self) -> bool {
        matches!(self, Warning::Noted { is_compared: true, .. })
    }
}

impl From<String> for Warning {
    fn from(text: String) -> Warning {
        Warning::Told(text)
    }
}

pub(super) fn warnings(facts: &Facts, rows: &[Row], rules: &[RuleState]) -> Vec<Warning> {
    let Facts { plan, evidence, .. } = facts;
    let mut warnings: Vec<Warning> = match evidence.end {
        End::Interrupted => vec![Warning::Interrupted],
        End::Killed => vec![Warning::Killed],
        _ => Vec::new(),
    };
    warnings.extend(evidence.no_reference.clone().map(Warning::NoReference));
    warnings.extend(accepted_noise(plan, rules));
    warnings.extend(disturbed(plan, evidence));
    warnings.extend(varies(rows));
    warnings.extend(unsteady(rows));
    warnings.extend(unsettled(plan, evidence));
    warnings.extend(overloaded(plan, rows));
    for (label, score) in &evidence.texts {
        let unknown = score.as_ref().err();
        warnings.extend(
            unknown
                .map(|reason| Warning::QualityUnknown { contender: label.clone(), reason: reason.clone() }),
        );
    }
    let untimed = evidence.tokenised.iter().find_map(|round| round.as_ref().err());
    warnings.extend(untimed.cloned().map(Warning::TokenizerNotTimed));
    for rule in rules {
        warnings.extend(rule.notes.iter().map(|breach| Warning::Noted {
            rule: rule.id.clone(),
            contender: breach.framework.clone(),
            finding: breach.finding.clone(),
            is_compared: breach.is_compared,
        }));
    }
    let unverified = rules.iter().filter_map(|rule| Some((rule.id.clone(), rule.unverified.clone()?)));
    warnings.extend(unverified.map(|(rule, reason)| Warning::Unverified { rule, reason }));
    warnings.extend(evidence.no_probe.clone().map(Warning::NoProbe));
    warnings
}

/// Contenders that could not keep up with the requested rate.
fn overloaded(plan: &Plan, rows: &[Row]) -> Vec<Warning> {
    let Some(arrivals) = plan.work.load().and_then(|load| load.arrivals) else { return Vec::new() };
    let found = |row: &Row| {
        let kept = row.typical(Metric::KeptUp).filter(|&kept| kept < KEEPS_UP)?;
        let answered = row.typical(Metric::RequestThroughput)?;
        Some(Warning::Overloaded { contender: row.framework.clone(), rate: arrivals.rate, answered, kept })
    };
    rows.iter().filter_map(found).collect()
}

fn accepted_noise(plan: &Plan, rules: &[RuleState]) -> Vec<Warning> {
    let broken = rules.iter().flat_map(|rule| rule.broken_by.iter().map(move |breach| (&rule.id, breach)));
    let accepted = broken.filter(|(_, breach)| breach.framework == MACHINE && plan.accept_noise);
    let of_rule = |(id, breach): (&String, &super::fairness::Breach)| Warning::AcceptedNoise {
        rule: id.clone(),
        finding: breach.finding.clone(),
    };
    accepted.map(of_rule).collect()
}

/// Disturbances that did not affect the reported figures.
fn disturbed(plan: &Plan, evidence: &Evidence) -> Option<Warning> {
    let last = evidence.complaints.last()?.clone();
    if plan.accept_noise || matches!(evidence.end, End::Noisy { .. }) {
        return None;
    }
    let starts = evidence.runs.iter().filter(|run| !run.is_quiet()).count();
    Some(Warning::Disturbed { times: evidence.complaints.len(), starts, last })
}

/// Contenders with throughput that differs much from process to process.
fn varies(rows: &[Row]) -> Option<Warning> {
    let share = |row: &Row| {
        let share = row.figure(Metric::Throughput)?.coefficient_of_variation?;
        (share > VARIES && row.state.takes_part()).then(|| (row.framework.clone(), share))
    };
    let contenders: Vec<(String, f64)> = rows.iter().filter_map(share).collect();
    (!contenders.is_empty()).then_some(Warning::Varies { limit: VARIES, contenders })
}

/// Contenders with a warm-up that ended before they had settled.
fn unsettled(plan: &Plan, evidence: &Evidence) -> Vec<Warning> {
    // With a fixed length, settling does not end warm-up.
    if plan.warmup.min_iterations == plan.warmup.max_iterations {
        return Vec::new();
    }
    let found = |contender: &Contender| {
        let runs = evidence.runs.iter().filter(|run| run.framework == contender.label);
        let unsettled = runs.filter(|run| run.warmup().is_some_and(|warmup| !warmup.settled)).count();
        let (contender, rounds) = (contender.label.clone(), evidence.rounds);
        (unsettled > 0).then_some(Warning::Unsettled { contender, unsettled, rounds })
    };
    plan.contenders.iter().filter_map(found).collect()
}

/// Contenders with a majority of processes that never settled: their latency is that of a speed that was
/// still changing.
fn unsteady(rows: &[Row]) -> Option<Warning> {
    let of_row = |row: &Row| {
        let unsteady = row.steadiness.no_steady_state + row.steadiness.slowdown;
        (2 * unsteady > row.rounds).then(|| (row.framework.clone(), unsteady, row.rounds))
    };
    let known: Vec<(String, usize, usize)> = rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then_some(Warning::Unsteady(known))
}
