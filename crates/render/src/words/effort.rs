//! The cost of a comparison: why its rounds ended, how contenders took turns, and where its time went.

use facts::evidence::{End, Slices, Stage, Stages};
use judge::report::Report;
use plan::{Plan, Rounds, Schedule};

/// The stages of rounds. All others happen once in a run.
const OF_ROUNDS: [Stage; 6] =
    [Stage::Starts, Stage::Probes, Stage::Requests, Stage::Turns, Stage::Finishing, Stage::Judging];

/// The lines for people.
pub(super) fn details(report: &Report) -> Vec<String> {
    let lines = [Some(ended(report)), slices(report), time(&report.time)];
    lines.into_iter().flatten().collect()
}

/// A schedule that does not interleave all contenders, with the reason.
pub(crate) fn schedule(plan: &Plan) -> Option<String> {
    let reason = plan.schedule_reason.as_ref()?;
    match plan.schedule {
        Schedule::Interleaved => None,
        Schedule::Sequential => {
            Some(format!("sequential: one framework after another in each round ({reason})"))
        }
        Schedule::Grouped => {
            let (count, anchor) = (plan.groups.len(), plan.anchor()?);
            Some(format!(
                "{count} groups, one after another in each round, with {anchor} in each: frameworks of two groups are \
                 compared by way of it ({reason})"
            ))
        }
    }
}

/// Why there were no more rounds.
fn ended(report: &Report) -> String {
    let why = match (&report.end, report.plan.rounds) {
        (End::Clear, _) => "no question of the answer needed more",
        (End::Budget, _) => "the time budget was used",
        (End::Noisy { .. }, _) => "the machine was too noisy for more",
        (End::Interrupted | End::Killed, _) => "the run was ended",
        (End::Planned, Rounds::Auto { .. }) => "the most there are",
        _ => "as planned",
    };
    format!("rounds: {} ({why})", report.rounds)
}

fn slices(report: &Report) -> Option<String> {
    Some(match report.slices.as_ref()? {
        Slices::Tokens { tokens, lead_in } => {
            let what = report.plan.work.mark_noun();
            let figures = report.plan.work.steps_noun();
            let first = if *lead_in == 1 { what.to_owned() } else { format!("{lead_in} {what}s") };
            let verb = if *lead_in == 1 { "counts" } else { "count" };
            format!(
                "frameworks alternate within requests, after {tokens} {what}s each; the first {first} after a pause {verb} \
                 for the whole request, and not for {figures}"
            )
        }
        Slices::Whole { reason } => format!("each turn is a whole request: {reason}"),
    })
}

fn time(stages: &Stages) -> Option<String> {
    let of = |stage: Stage| stages.get(&stage).copied().unwrap_or(0.0);
    let all: f64 = stages.values().sum();
    let rounds: f64 = OF_ROUNDS.into_iter().map(of).sum();
    if all <= 0.0 || rounds <= 0.0 {
        return None;
    }
    let share = |stage: Stage| format!("{} {:.0} %", words(stage), 100.0 * of(stage) / rounds);
    let of_rounds = OF_ROUNDS.into_iter().filter(|&stage| of(stage) >= 0.005 * rounds).map(share);
    let of_rounds: Vec<String> = of_rounds.collect();
    let once = stages.iter().filter(|(stage, seconds)| !OF_ROUNDS.contains(stage) && **seconds >= 0.05);
    let once: Vec<String> =
        once.map(|(&stage, seconds)| format!("{} {seconds:.1} s", words(stage))).collect();
    let before = if once.is_empty() { String::new() } else { format!("; in addition: {}", once.join(", ")) };
    Some(format!("time: {all:.0} s, of which rounds {rounds:.0} s: {}{before}", of_rounds.join(", ")))
}

fn words(stage: Stage) -> &'static str {
    match stage {
        Stage::Before => "greeting workers and waiting for a quiet machine",
        Stage::Reference => "the reference",
        Stage::ColdLoads => "loads from a cold page cache",
        Stage::Pilot => "the pilot",
        Stage::Starts => "starting processes",
        Stage::Probes => "probing the machine",
        Stage::Requests => "timed requests",
        Stage::Turns => "untimed passes and handing over",
        Stage::Finishing => "readings and outputs after the last request",
        Stage::Judging => "deciding",
    }
}
