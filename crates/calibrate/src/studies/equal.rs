//! Contenders that do not differ, and whose noise is the same.

use super::bandwidth::{self, MEASURED, PROCESSES, SLICED};
use super::noise::{BIMODAL, DRIFT, NORMAL, OUTLIERS, SPIKES, scenario};
use crate::comparison::{Rounds, Scenario};
use crate::outcomes::{any_different, joint_coverage, rounds_taken, size};
use crate::page::{Limit, Table, percent};
use crate::study::{Options, Share};
use crate::turns::Schedule;
use statistics::DEFAULT_MAX_ROUNDS;

/// Every setting with its name.
fn settings(contenders: usize) -> Vec<(String, Scenario)> {
    let automatic = Rounds::Automatic(DEFAULT_MAX_ROUNDS);
    let even = [
        ("2 % between processes", NORMAL, automatic),
        ("the same", NORMAL, Rounds::Fixed(6)),
        ("and 10 % drift across the run", DRIFT, automatic),
        ("a third of processes 20 % slower", BIMODAL, automatic),
        ("2 % of steps 3x as long", SPIKES, automatic),
        ("5 % of processes 50 % slower", OUTLIERS, automatic),
    ];
    let mut all: Vec<(String, Scenario)> = even
        .into_iter()
        .map(|(name, noise, rounds)| (name.to_owned(), scenario(contenders, 1.0, noise, rounds)))
        .collect();
    for (schedule, name) in [(SLICED, "slices"), (Schedule::Sequential, "one process after another")] {
        let process = PROCESSES[1];
        let name = format!("bandwidth halves, {} between processes, {name}", percent(process, 1));
        all.push((name, bandwidth::scenario(contenders, 1.0, process, schedule)));
    }
    let name = format!("bandwidth as measured, {} between processes, slices", percent(MEASURED, 1));
    all.push((name, bandwidth::measured(contenders, 1.0, 1.0, MEASURED)));
    all
}

pub(super) fn table(options: &Options) -> Table {
    let mut table = Table::new(
        "Equal contenders, equal noise",
        "A comparison counts as wrong if any hypothesis of its table is decided as *different*. *All held*: \
        all intervals of the table contain their ratios (limit: 95 % at least).",
        &["noise", "contenders (hypotheses)", "planned", "rounds taken", "all held", "any different"],
    );
    let mut index = 0;
    for contenders in [2, 3] {
        for (name, scenario) in settings(contenders) {
            let outcomes = options.fork(index).simulate(&scenario);
            index += 1;
            let all = table.judge(joint_coverage(&scenario, &outcomes), Limit::AtLeast(0.95));
            table.row(
                [name, size(&scenario), scenario.rounds.to_string(), rounds_taken(&outcomes), all],
                Share::count(&outcomes, any_different),
                Limit::AtMost(0.05),
            );
        }
    }
    table
}
