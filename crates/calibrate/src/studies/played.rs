//! The weather of a measured machine, replayed to the default comparison.

use statistics::geometric_mean;

use super::bandwidth::{BUDGET_S, setting, states, taken};
use crate::bandwidth_drift::PLAYED;
use crate::comparison::{Rounds, Scenario};
use crate::machine::Machine;
use crate::outcomes::{any_different, coverage, coverage_of, half_width, last_is_slower, size};
use crate::page::{Limit, Table, percent};
use crate::study::{Options, Share};
use crate::turns::Schedule;

/// Slices, in as many blocks as are chosen at the costs of that machine.
const SLICED: Schedule = Schedule::Interleaved { blocks: 2, slices: 8 };
/// σ between processes: that of each of two, if their ratio varies by 2.2 to 4 % from round to round.
const PROCESSES: [f64; 2] = [0.02, 0.03];
/// How much ort's tokens depended on the state, while candle's and tch's depended on it fully: ln 1.22 ÷ ln
/// 1.33.
const LESS: f64 = 0.7;
/// The place of the pair among those of three contenders.
const FIRST_AND_LAST: usize = 1;
/// The difference that has to be found.
const JUDGED_RATIO: f64 = 1.03;

fn scenario(contenders: usize, ratio: f64, last_depends: f64, process: f64) -> Scenario {
    let machine = Machine::Changing { climate: PLAYED, last_depends, process, schedule: SLICED };
    Scenario::new(contenders, ratio, machine, Rounds::Within(BUDGET_S))
}

pub(super) fn false_positives(options: &Options) -> Table {
    let text = format!(
        "As before, with the weather that was measured on a two-core virtual machine: {}. Requests alternate in slices, \
         and costs of starting and finishing are as measured there.",
        states(PLAYED)
    );
    let mut table = Table::new(
        "Weather as measured: false differences",
        text,
        &[
            "between processes",
            "schedule",
            "contenders",
            "family",
            "rounds taken",
            "seconds taken",
            "any different",
        ],
    );
    let mut index = 0;
    for process in PROCESSES {
        for contenders in [2, 3] {
            let scenario = scenario(contenders, 1.0, 1.0, process);
            let outcomes = options.fork(index).simulate(&scenario);
            index += 1;
            table.row(
                setting(process, SLICED).into_iter().chain(size(&scenario)).chain(taken(&outcomes)),
                Share::count(&outcomes, any_different),
                Limit::AtMost(0.05),
            );
        }
    }
    table
}

pub(super) fn intervals(options: &Options) -> Table {
    let text = "Two contenders; the 95 % interval of the ratio of their throughputs. Where the second depends less on \
                bandwidth than the first, the true ratio is that of this weather: the mean of as many comparisons without \
                differences between processes. The bias is the mean error of the ratio.";
    let mut table = Table::new(
        "Weather as measured: coverage of intervals",
        text,
        &[
            "between processes",
            "second depends",
            "true ratio",
            "rounds taken",
            "seconds taken",
            "bias",
            "held",
        ],
    );
    let mut index = 0;
    for process in PROCESSES {
        for last_depends in [1.0, LESS] {
            let truth = if last_depends == 1.0 { 1.0 } else { truth(&options.fork(index), last_depends) };
            let outcomes = options.fork(index + 1).simulate(&scenario(2, 1.0, last_depends, process));
            index += 2;
            let (bias, held) = coverage(&outcomes, truth);
            table.row(
                [percent(process, 1), last_depends.to_string(), format!("{truth:.3}")]
                    .into_iter()
                    .chain(taken(&outcomes))
                    .chain([percent(bias, 2)]),
                held,
                Limit::Within(0.93, 0.97),
            );
        }
    }
    table
}

pub(super) fn at_state(options: &Options) -> Table {
    let mut table = Table::new(
        "Weather as measured: coverage at the state of a run",
        "Three contenders; the ratio of the first and the last, with and without the second's speed as the state of a round. \
         The truth is the ratio that each comparison would have had in its own weather without noise. *Held over all \
         weather*: how often the interval held the mean of that ratio over all comparisons, which it does not promise \
         where the contenders depend on bandwidth differently. The half-width is the median.",
        &[
            "between processes",
            "third depends",
            "state",
            "rounds taken",
            "seconds taken",
            "half-width",
            "held over all weather",
            "held",
        ],
    );
    let mut index = 0;
    for process in PROCESSES {
        for last_depends in [1.0, LESS] {
            let truth = truth(&options.fork(index), last_depends);
            for by_state in [true, false] {
                let scenario = Scenario { by_state, ..scenario(3, 1.0, last_depends, process) };
                let outcomes = options.fork(index + 1).simulate(&scenario);
                let (_, everywhere) = coverage_of(&outcomes, FIRST_AND_LAST, |_| Some(truth));
                let (_, held) =
                    coverage_of(&outcomes, FIRST_AND_LAST, |outcome| outcome.truths[FIRST_AND_LAST]);
                let state = if by_state { "the second's speed" } else { "left out" };
                table.row(
                    [percent(process, 1), last_depends.to_string(), state.to_owned()]
                        .into_iter()
                        .chain(taken(&outcomes))
                        .chain([half_width(&outcomes, FIRST_AND_LAST), percent(everywhere.value(), 1)]),
                    held,
                    if by_state { Limit::Within(0.93, 0.97) } else { Limit::None },
                );
            }
            index += 2;
        }
    }
    table
}

/// The ratio that this weather gives to contenders that only differ in how much they depend on it.
fn truth(options: &Options, last_depends: f64) -> f64 {
    let outcomes = options.simulate(&scenario(2, 1.0, last_depends, 0.0));
    let ratios = outcomes.iter().filter_map(|outcome| Some(outcome.deciding()[0].as_ref()?.ratio));
    geometric_mean(&ratios.collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

pub(super) fn power(options: &Options) -> Table {
    let mut table = Table::new(
        "Weather as measured: real differences that are found",
        "Two contenders, of which one takes longer for a request. It is found if it is decided as *different* in \
         throughput, and slower.",
        &["between processes", "schedule", "slower by", "rounds taken", "seconds taken", "found"],
    );
    let mut index = 0;
    for process in PROCESSES {
        for ratio in [1.02, JUDGED_RATIO, 1.05] {
            let scenario = scenario(2, ratio, 1.0, process);
            let outcomes = options.fork(index).simulate(&scenario);
            index += 1;
            let is_judged = (process, ratio) == (PROCESSES[0], JUDGED_RATIO);
            table.row(
                setting(process, SLICED).into_iter().chain([percent(ratio - 1.0, 0)]).chain(taken(&outcomes)),
                Share::count(&outcomes, |outcome| last_is_slower(&scenario, outcome)),
                if is_judged { Limit::AtLeast(0.8) } else { Limit::None },
            );
        }
    }
    table
}
