//! The cost of a comparison: where its time went, how many blocks its rounds had and why, and how throughput
//! varies within and between processes.

use facts::evidence::{Slices, Stage, Stages};
use judge::Metric;
use judge::report::{Report, Row};
use plan::{Plan, Schedule};
use statistics::Components;

/// The stages of rounds. All others happen once in a run.
const OF_ROUNDS: [Stage; 6] =
    [Stage::Starts, Stage::Probes, Stage::Requests, Stage::Turns, Stage::Finishing, Stage::Judging];

/// The lines for people.
pub(super) fn details(report: &Report) -> Vec<String> {
    let lines = [blocks(report), slices(report), components(report), time(&report.time)];
    lines.into_iter().flatten().collect()
}

/// A schedule that does not interleave all contenders, with the reason.
pub(super) fn schedule(plan: &Plan) -> Option<String> {
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

fn blocks(report: &Report) -> Option<String> {
    let chosen = report.blocks?;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let from = match chosen.from_round {
        0 => String::new(),
        round => format!(" from round {} on", round + 1),
    };
    Some(format!(
        "{} blocks a round{from}, chosen from costs and variances: starting its processes takes {:.1} s, a block {:.1} s; \
         a pair's ratio varies by {} from block to block and by {} from round to round, both pooled with a guess",
        chosen.blocks,
        chosen.process_s,
        chosen.block_s,
        percent(chosen.within),
        percent(chosen.between)
    ))
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

fn components(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let Components { within, between } = row.components?;
        let (within, between) = (100.0 * within, 100.0 * between);
        Some(format!("{} {within:.1} %, {between:.1} %", row.framework))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    let metric = Metric::deciding(report.plan.work.kind()).words();
    (!known.is_empty()).then(|| {
        format!(
            "{metric} varies from request to request and from process to process by: {}",
            known.join("; ")
        )
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
