//! Processes that vary as those of the mock do.

use engine_mock::Noise;
use statistics::Outcome;

use crate::comparison::{Rounds, Scenario};
use crate::machine::Machine;
use crate::outcomes::{any_different, coverage, is, last_is_slower, rounds_taken, size};
use crate::page::{Limit, Table, percent};
use crate::processes::Order;
use crate::study::{Options, Share};

/// 2 % between processes, and between the steps of one.
pub const NORMAL: Noise = Noise {
    process: 0.02,
    step: 0.02,
    bimodal: 0.0,
    bimodal_factor: 1.0,
    spike_share: 0.0,
    spike: 1.0,
    drift: 0.0,
    ramp: 1.0,
    ramp_steps: 0,
};
/// A third of the processes is 20 % slower.
pub const BIMODAL: Noise = Noise { bimodal: 1.0 / 3.0, bimodal_factor: 1.2, ..NORMAL };
/// The machine slows down by 10 % in the course of the longest run.
pub const DRIFT: Noise = Noise { drift: 0.1, ..NORMAL };
/// One step in fifty takes three times as long.
const SPIKES: Noise = Noise { spike_share: 0.02, spike: 3.0, ..NORMAL };
/// One process in twenty is half as slow again.
const OUTLIERS: Noise = Noise { bimodal: 0.05, bimodal_factor: 1.5, ..NORMAL };
/// A quiet machine.
const QUIET: Noise = Noise { process: 0.005, ..NORMAL };

/// Contenders of which the last takes `ratio` times as long to decode as the others, in the driver's order.
pub fn scenario(contenders: usize, ratio: f64, noise: Noise, rounds: Rounds) -> Scenario {
    Scenario::new(contenders, ratio, Machine::Even { noise, order: Order::Balanced }, rounds)
}

pub(super) fn false_positives(options: &Options) -> Table {
    let mut table = Table::new(
        "False differences",
        "Contenders that do not differ; a comparison counts if any hypothesis of its table is decided as \
         *different*.",
        &["noise", "rounds", "contenders", "family", "rounds taken", "any different"],
    );
    let automatic = Rounds::Automatic;
    let settings = [
        ("2 % between processes", NORMAL, automatic),
        ("and 10 % drift across the run", DRIFT, automatic),
        ("a third of processes 20 % slower", BIMODAL, automatic),
        ("2 % of steps 3x as long", SPIKES, automatic),
        ("5 % of processes 50 % slower", OUTLIERS, automatic),
        ("2 % between processes", NORMAL, Rounds::Fixed(6)),
    ];
    for (index, (name, noise, rounds)) in (0..).zip(settings) {
        for contenders in [2, 3] {
            let scenario = scenario(contenders, 1.0, noise, rounds);
            let outcomes = options.fork(10 * index + contenders as u64).simulate(&scenario);
            table.row(
                [name.into(), rounds.to_string()]
                    .into_iter()
                    .chain(size(&scenario))
                    .chain([rounds_taken(&outcomes)]),
                Share::count(&outcomes, any_different),
                Limit::AtMost(0.05),
            );
        }
    }
    table
}

pub(super) fn power(options: &Options) -> Table {
    let mut table = Table::new(
        "Real differences that are found",
        "One contender takes longer to decode, at 2 % noise between processes. It is found if it is \
         decided as *different* in throughput, and slower, from every other contender.",
        &["slower by", "rounds", "contenders", "family", "rounds taken", "found"],
    );
    let settings = [(1.01, 2), (1.02, 2), (1.03, 2), (1.05, 2), (1.10, 2), (1.03, 3), (1.05, 3)];
    for (index, (ratio, contenders)) in (0..).zip(settings) {
        let scenario = scenario(contenders, ratio, NORMAL, Rounds::Automatic);
        let outcomes = options.fork(index).simulate(&scenario);
        table.row(
            [percent(ratio - 1.0, 0), scenario.rounds.to_string()]
                .into_iter()
                .chain(size(&scenario))
                .chain([rounds_taken(&outcomes)]),
            Share::count(&outcomes, |outcome| last_is_slower(&scenario, outcome)),
            if ratio == 1.03 { Limit::AtLeast(0.9) } else { Limit::None },
        );
    }
    table
}

pub(super) fn intervals(options: &Options) -> Table {
    let mut table = Table::new(
        "Coverage of intervals",
        "Two contenders; the 95 % interval of the ratio of their throughputs. The bias is the mean \
         error of the ratio.",
        &["noise", "rounds", "true ratio", "rounds taken", "bias", "held"],
    );
    let plans = [Rounds::Fixed(6), Rounds::Fixed(12), Rounds::Fixed(24), Rounds::Automatic];
    let noises = [("2 % between processes", NORMAL), ("a third of processes 20 % slower", BIMODAL)];
    let mut index = 0;
    for (name, noise) in noises {
        for rounds in plans {
            for ratio in [1.0, 1.02, 1.03] {
                let scenario = scenario(2, ratio, noise, rounds);
                let outcomes = options.fork(index).simulate(&scenario);
                index += 1;
                let (bias, held) = coverage(&outcomes, ratio);
                table.row(
                    [
                        name.into(),
                        rounds.to_string(),
                        ratio.to_string(),
                        rounds_taken(&outcomes),
                        percent(bias, 2),
                    ],
                    held,
                    Limit::Within(0.93, 0.97),
                );
            }
        }
    }
    table
}

pub(super) fn equivalence(options: &Options) -> Table {
    let mut table = Table::new(
        "Equivalence",
        "Two contenders; how often throughput is decided as *equivalent*. At a true ratio of 1.02, the \
         margin, that is wrong; at 1 it is right.",
        &["noise between processes", "rounds", "true ratio", "rounds taken", "equivalent"],
    );
    let noises = [("2 %", NORMAL), ("0.5 %", QUIET)];
    let mut index = 0;
    for (ratio, limit) in [(1.02, Limit::AtMost(0.05)), (1.0, Limit::None)] {
        for (name, noise) in noises {
            for rounds in [Rounds::Fixed(24), Rounds::Automatic] {
                let outcomes = options.fork(index).simulate(&scenario(2, ratio, noise, rounds));
                index += 1;
                table.row(
                    [name.into(), rounds.to_string(), ratio.to_string(), rounds_taken(&outcomes)],
                    Share::count(&outcomes, |outcome| is(&outcome.deciding()[0], Outcome::Equivalent)),
                    limit,
                );
            }
        }
    }
    table
}
