//! What a reader should know before trusting the figures, the gravest first, each with what to do about it.

use super::{Facts, Row};
use crate::metrics::Metric;
use crate::report::dependence::Dependence;
use crate::report::fairness::{Breach, MACHINE, RuleState};
use facts::evidence::{End, Evidence};
use facts::run::Run;
use plan::{Contender, Plan};

/// Coefficient of variation above which figures of one contender are too different for their mean to say much.
const VARIES: f64 = 0.10;

pub(super) fn warnings(
    facts: &Facts,
    rows: &[Row],
    rules: &[RuleState],
    dependences: &[Dependence],
) -> Vec<String> {
    let Facts { plan, evidence, .. } = facts;
    let mut warnings = ending(&evidence.end);
    if let Some(reason) = &evidence.no_reference {
        warnings.push(format!("no reference for parity: {reason}; name another with --reference"));
    }
    warnings.extend(accepted_noise(plan, rules));
    warnings.extend(disturbed(plan, evidence));
    warnings.extend(dependences.iter().map(Dependence::sentence));
    warnings.extend(varies(rows));
    warnings.extend(unsteady(rows));
    warnings.extend(unsettled(plan, evidence));
    warnings.extend(overloaded(plan, rows));
    for (label, score) in &evidence.texts {
        warnings
            .extend(score.as_ref().err().map(|reason| format!("{label}: its quality is unknown: {reason}")));
    }
    let untimed = evidence.tokenised.iter().find_map(|round| round.as_ref().err());
    warnings.extend(untimed.map(|reason| format!("the tokenizer was not timed in every round: {reason}")));
    let note = |rule: &RuleState| {
        let id = rule.id.clone();
        let of = move |breach: &Breach| format!("{}: {} ({id})", breach.framework, breach.finding);
        rule.notes.iter().map(of).collect::<Vec<_>>()
    };
    warnings.extend(rules.iter().flat_map(note));
    let unverified = rules.iter().filter_map(|rule| Some((&rule.id, rule.unverified.as_ref()?)));
    warnings.extend(unverified.map(|(id, reason)| format!("{id} could not be verified: {reason}")));
    warnings.extend(evidence.no_probe.clone());
    warnings
}

/// Share of a rate below which a contender does not keep up with it, in percent. Of the requests of a turn, those that came
/// last are under way when the others are done.
const KEEPS_UP: f64 = 90.0;

/// Contenders that more was asked of than they can do.
fn overloaded(plan: &Plan, rows: &[Row]) -> Vec<String> {
    let Some(arrivals) = plan.work.load().and_then(|load| load.arrivals) else { return Vec::new() };
    let told = |row: &Row| {
        let kept = row.typical(Metric::KeptUp).filter(|&kept| kept < KEEPS_UP)?;
        let done = row.typical(Metric::RequestThroughput)?;
        let (name, rate) = (&row.framework, arrivals.rate);
        Some(format!(
            "{name} is overloaded: of {rate} requests a second it answers {done:.1} ({kept:.0} % of the rate), so that latency \
             grows as long as they come"
        ))
    };
    rows.iter().filter_map(told).collect()
}

fn ending(end: &End) -> Vec<String> {
    let told = match end {
        End::Interrupted => {
            "interrupted: the figures are those of the rounds that were done; run it again for a verdict"
        }
        End::Killed => {
            "the run was ended before it could save its report: the figures are those of the processes that were saved; run it again for a verdict"
        }
        _ => return Vec::new(),
    };
    vec![told.to_owned()]
}

/// Noise that was accepted, and by which flag.
fn accepted_noise(plan: &Plan, rules: &[RuleState]) -> Vec<String> {
    let broken = rules.iter().flat_map(|rule| rule.broken_by.iter().map(move |breach| (&rule.id, breach)));
    let accepted = broken.filter(|(_, breach)| breach.framework == MACHINE && plan.accept_noise);
    let told = accepted.map(|(id, breach)| {
        format!("{id}: {}; on a quiet machine, leave out --accept-noise or --quick", breach.finding)
    });
    told.collect()
}

/// Disturbances of which the figures that stand are free.
fn disturbed(plan: &Plan, evidence: &Evidence) -> Option<String> {
    let last = evidence.complaints.last()?;
    if plan.accept_noise || matches!(evidence.end, End::Noisy { .. }) {
        return None;
    }
    let times = match evidence.complaints.len() {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    let quiet = |run: &&Run| run.noise.as_ref().is_none_or(|noise| noise.complaints().is_empty());
    let starts = match evidence.runs.iter().filter(|run| !quiet(run)).count() {
        0 => String::new(),
        1 => "; 1 start stayed disturbed, and its load and cold start are not compared".to_owned(),
        count => {
            format!("; {count} starts stayed disturbed, and their load and cold start are not compared")
        }
    };
    Some(format!(
        "the machine was noisy {times}; what could be measured again was{starts}; {last}; a quieter machine gives \
         narrower intervals"
    ))
}

/// Contenders whose throughput differs much from process to process.
fn varies(rows: &[Row]) -> Option<String> {
    let share = |row: &Row| {
        let share = row.figure(Metric::Throughput)?.coefficient_of_variation?;
        (share > VARIES && row.state.takes_part())
            .then(|| format!("{} {:.0} %", row.framework, 100.0 * share))
    };
    let known: Vec<String> = rows.iter().filter_map(share).collect();
    (!known.is_empty()).then(|| {
        format!(
            "throughput varies by more than {:.0} % from process to process: {}; trust the interval and not the figure, \
             and measure on a quieter machine",
            100.0 * VARIES,
            known.join(", ")
        )
    })
}

/// Contenders whose warm-up ended before they had settled.
fn unsettled(plan: &Plan, evidence: &Evidence) -> Vec<String> {
    // Where its length was fixed, settling was not what ended it.
    if plan.warmup.min_iterations == plan.warmup.max_iterations {
        return Vec::new();
    }
    let warning = |contender: &Contender| {
        let runs = evidence.runs.iter().filter(|run| run.framework == contender.label);
        let unsettled = runs.filter(|run| run.warmup().is_some_and(|warmup| !warmup.settled)).count();
        (unsettled > 0).then(|| {
            format!(
                "{}: warm-up hit its limit before it had settled in {unsettled} of {} processes; make it longer with --warmup",
                contender.label, evidence.rounds
            )
        })
    };
    plan.contenders.iter().filter_map(warning).collect()
}

/// Contenders most of whose processes never settled: their latency is that of a speed that was still changing.
fn unsteady(rows: &[Row]) -> Option<String> {
    let of_row = |row: &Row| {
        let unsteady = row.steadiness.no_steady_state + row.steadiness.slowdown;
        (2 * unsteady > row.rounds)
            .then(|| format!("{} ({unsteady} of {} processes)", row.framework, row.rounds))
    };
    let known: Vec<String> = rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| {
        format!(
            "still changing: {}; their {} is of processes that slowed down or never settled; measure longer with \
             --new-tokens",
            known.join(", "),
            Metric::Latency.plain_title()
        )
    })
}
