//! A machine with memory bandwidth that changes during the comparison.

use crate::bandwidth_drift::{Climate, HARSH};
use crate::comparison::{Comparison, Rounds, Scenario};
use crate::machine::Machine;
use crate::outcomes::{any_different, coverage, last_is_slower, rounds_taken, seconds_taken, size};
use crate::page::{Limit, Table, percent};
use crate::study::{Options, Share};
use crate::turns::Schedule;

/// Simulated seconds that a comparison may take.
pub const BUDGET_S: f64 = 180.0;
/// All processes of a round at once, with as many blocks as are usual.
pub const INTERLEAVED: Schedule = Schedule::Interleaved { blocks: 8, slices: 1 };
/// The same with turns within requests, as many as 31 tokens in slices of 8 make.
pub const SLICED: Schedule = Schedule::Interleaved { blocks: 8, slices: 4 };
/// σ between processes: as measured of candle, and of tch without huge pages.
pub const PROCESSES: [f64; 2] = [0.015, 0.03];
/// The difference that interleaved slices have to find.
const JUDGED_RATIO: f64 = 1.10;

/// Contenders of which the last takes `ratio` times as long for a request as the others; `process` is σ between
/// processes.
pub fn scenario(contenders: usize, ratio: f64, process: f64, schedule: Schedule) -> Scenario {
    let machine = Machine::Changing { climate: HARSH, last_depends: 1.0, process, schedule };
    Scenario::new(contenders, ratio, machine, Rounds::Within(BUDGET_S))
}

/// The states of a climate in words.
pub(super) fn states(climate: Climate) -> String {
    let Climate { speeds: [first, second], holds_s: [of_first, of_second] } = climate;
    let holds = if of_first == of_second {
        format!("A state holds for {} to {} s", of_first.0, of_first.1)
    } else {
        format!(
            "The first holds for {} to {} s and the second for {} to {} s",
            of_first.0, of_first.1, of_second.0, of_second.1
        )
    };
    format!(
        "two states of memory bandwidth that take turns: work is done at a speed of {first} or {second}. {holds}, drawn \
         log-uniformly"
    )
}

pub(super) fn false_positives(options: &Options) -> Table {
    let text = format!(
        "The machine has a clock, and {}. What differs between processes and the 2 % between the \
         requests of one come on top. A comparison ends before {BUDGET_S} simulated seconds have passed, after six \
         rounds at the least. Under the sequential schedule each process of a round runs from start to end before the \
         next; under the interleaved one all start, and then answer one request each in every block, or alternate \
         within these requests, slice by slice. Here contenders do not differ; a comparison counts if any hypothesis of its \
         table is decided as *different*.",
        states(HARSH),
    );
    let mut table = Table::new(
        "Bandwidth that changes: false differences",
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
        for schedule in [SLICED, INTERLEAVED, Schedule::Sequential] {
            for contenders in [2, 3] {
                let scenario = scenario(contenders, 1.0, process, schedule);
                let outcomes = options.fork(index).simulate(&scenario);
                index += 1;
                table.row(
                    setting(process, schedule).into_iter().chain(size(&scenario)).chain(taken(&outcomes)),
                    Share::count(&outcomes, any_different),
                    Limit::AtMost(0.05),
                );
            }
        }
    }
    table
}

pub(super) fn intervals(options: &Options) -> Table {
    let mut table = Table::new(
        "Bandwidth that changes: coverage of intervals",
        "Two contenders; the 95 % interval of the ratio of their throughputs. The bias is the mean error of the ratio.",
        &["between processes", "schedule", "true ratio", "rounds taken", "seconds taken", "bias", "held"],
    );
    let mut index = 0;
    for process in PROCESSES {
        for (schedule, ratio) in [(SLICED, 1.0), (SLICED, 1.03), (INTERLEAVED, 1.0), (INTERLEAVED, 1.03)] {
            let outcomes = options.fork(index).simulate(&scenario(2, ratio, process, schedule));
            index += 1;
            let (bias, held) = coverage(&outcomes, ratio);
            table.row(
                setting(process, schedule)
                    .into_iter()
                    .chain([ratio.to_string()])
                    .chain(taken(&outcomes))
                    .chain([percent(bias, 2)]),
                held,
                Limit::Within(0.93, 0.97),
            );
        }
    }
    table
}

pub(super) fn power(options: &Options) -> Table {
    let mut table = Table::new(
        "Bandwidth that changes: real differences that are found",
        "Two contenders, of which one takes longer for a request. It is found if it is decided as *different* in \
         throughput, and slower. Where the bandwidth changes between the two requests of a block, one takes up to \
         twice as long as the other, whoever is faster: within the time there is, that hides small differences under \
         either schedule.",
        &["between processes", "schedule", "slower by", "rounds taken", "seconds taken", "found"],
    );
    let mut index = 0;
    for process in PROCESSES {
        for schedule in [SLICED, INTERLEAVED, Schedule::Sequential] {
            for ratio in [1.03, 1.05, JUDGED_RATIO] {
                let scenario = scenario(2, ratio, process, schedule);
                let outcomes = options.fork(index).simulate(&scenario);
                index += 1;
                let judged = (process, schedule, ratio) == (PROCESSES[0], SLICED, JUDGED_RATIO);
                table.row(
                    setting(process, schedule)
                        .into_iter()
                        .chain([percent(ratio - 1.0, 0)])
                        .chain(taken(&outcomes)),
                    Share::count(&outcomes, |outcome| last_is_slower(&scenario, outcome)),
                    if judged { Limit::AtLeast(0.9) } else { Limit::None },
                );
            }
        }
    }
    table
}

pub(super) fn setting(process: f64, schedule: Schedule) -> [String; 2] {
    [percent(process, 1), schedule.to_string()]
}

/// Rounds and seconds taken.
pub(super) fn taken(outcomes: &[Comparison]) -> [String; 2] {
    [rounds_taken(outcomes), seconds_taken(outcomes)]
}
