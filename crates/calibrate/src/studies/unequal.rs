//! Contenders that differ: whether that is found, and whether intervals contain the true ratio.

use statistics::{DEFAULT_MAX_ROUNDS, Outcome, geometric_mean};

use super::bandwidth::{self, MEASURED, PROCESSES, SLICED};
use super::noise::{BIMODAL, NORMAL, QUIET, scenario};
use crate::comparison::{Rounds, Scenario};
use crate::outcomes::{coverage, is, joint_coverage, last_is_slower, rounds_taken};
use crate::page::{Limit, Table, percent};
use crate::study::{Options, Share};
use crate::turns::Schedule;

const AUTOMATIC: Rounds = Rounds::Automatic(DEFAULT_MAX_ROUNDS);
/// As many rounds as three minutes have room for with three contenders.
const THREE_MINUTES: Rounds = Rounds::Automatic(12);
/// How much ort's tokens depended on the measured state, while candle's and tch's depended on it fully: ln 1.22 ÷ ln 1.33.
const LESS: f64 = 0.7;

pub(super) fn power(options: &Options) -> Table {
    let mut table = Table::new(
        "Real differences that are found",
        "The last contender takes longer for its requests. It is found if it is decided as *different* in \
        throughput, and slower, from every other contender. Where bandwidth changes within a block, one \
        request takes up to twice as long as another, whichever framework is faster; processes that run one \
        after another have that noise in full.",
        &["noise", "slower by", "contenders", "planned", "rounds taken", "found"],
    );
    let even = [
        (1.02, 2, AUTOMATIC, Limit::None),
        (1.03, 2, AUTOMATIC, Limit::AtLeast(0.9)),
        (1.03, 2, Rounds::Fixed(10), Limit::None),
        (1.05, 2, AUTOMATIC, Limit::None),
        (1.05, 2, Rounds::Fixed(10), Limit::AtLeast(0.9)),
        (1.03, 3, AUTOMATIC, Limit::AtLeast(0.9)),
        (1.03, 3, THREE_MINUTES, Limit::None),
        (1.05, 3, THREE_MINUTES, Limit::AtLeast(0.9)),
    ];
    let normal = "2 % between processes".to_owned();
    let mut settings: Vec<(String, Scenario, Limit)> = even
        .into_iter()
        .map(|(ratio, count, rounds, limit)| (normal.clone(), scenario(count, ratio, NORMAL, rounds), limit))
        .collect();
    let name = |what: &str, process: f64| format!("{what}, {} between processes", percent(process, 1));
    for (ratio, limit) in [(1.03, Limit::AtLeast(0.8)), (1.05, Limit::None)] {
        let scenario = bandwidth::measured(2, ratio, 1.0, MEASURED);
        settings.push((name("bandwidth as measured", MEASURED), scenario, limit));
    }
    let harsh = [
        ("bandwidth halves, slices", SLICED, Limit::AtLeast(0.9)),
        ("bandwidth halves, one after another", Schedule::Sequential, Limit::None),
    ];
    for (what, schedule, limit) in harsh {
        let scenario = bandwidth::scenario(2, 1.1, PROCESSES[0], schedule);
        settings.push((name(what, PROCESSES[0]), scenario, limit));
    }
    for (index, (name, scenario, limit)) in (0..).zip(settings) {
        let outcomes = options.fork(index).simulate(&scenario);
        let slower = scenario.decode[scenario.decode.len() - 1] - 1.0;
        table.row(
            [
                name,
                percent(slower, 0),
                scenario.decode.len().to_string(),
                scenario.rounds.to_string(),
                rounds_taken(&outcomes),
            ],
            Share::count(&outcomes, |outcome| last_is_slower(&scenario, outcome)),
            limit,
        );
    }
    table
}

pub(super) fn intervals(options: &Options) -> Table {
    let mut table = Table::new(
        "Coverage of intervals",
        "Two contenders; how often the 95 % interval of the ratio of their throughputs alone contains the \
        true ratio, and how often all intervals of the table contain theirs (limit: 95 % at least). The \
        bias is the mean error of the ratio. Where the second depends less on bandwidth than the first, the \
        true ratio is that of this weather: the mean of as many comparisons without differences between \
        processes.",
        &["noise", "planned", "true ratio", "rounds taken", "bias", "all held", "held alone"],
    );
    let mut settings: Vec<(String, Scenario, f64)> = Vec::new();
    for (name, noise) in [("2 % between processes", NORMAL), ("a third of processes 20 % slower", BIMODAL)] {
        for rounds in [Rounds::Fixed(6), Rounds::Fixed(12), AUTOMATIC, THREE_MINUTES] {
            for ratio in [1.0, 1.03] {
                settings.push((name.to_owned(), scenario(2, ratio, noise, rounds), ratio));
            }
        }
    }
    for ratio in [1.0, 1.03] {
        let name = format!("bandwidth halves, {} between processes", percent(PROCESSES[1], 1));
        settings.push((name, bandwidth::scenario(2, ratio, PROCESSES[1], SLICED), ratio));
    }
    for last_depends in [1.0, LESS] {
        let name = format!("bandwidth as measured, the second depends by {last_depends}");
        let truth = if last_depends == 1.0 { 1.0 } else { truth(&options.fork(100), last_depends) };
        settings.push((name, bandwidth::measured(2, 1.0, last_depends, MEASURED), truth));
    }
    for (index, (name, scenario, truth)) in (0..).zip(settings) {
        let outcomes = options.fork(index).simulate(&scenario);
        let (bias, held) = coverage(&outcomes, truth);
        // What depends less on bandwidth has other true ratios for the metrics beside throughput.
        let is_known = scenario.decode[1] == truth;
        let all = is_known.then(|| table.judge(joint_coverage(&scenario, &outcomes), Limit::AtLeast(0.95)));
        table.row(
            [
                name,
                scenario.rounds.to_string(),
                format!("{truth:.3}"),
                rounds_taken(&outcomes),
                percent(bias, 2),
                all.unwrap_or("–".to_owned()),
            ],
            held,
            Limit::Within(0.93, 0.97),
        );
    }
    table
}

/// The ratio that the measured weather gives to contenders that only differ in how much they depend on it.
fn truth(options: &Options, last_depends: f64) -> f64 {
    let outcomes = options.simulate(&bandwidth::measured(2, 1.0, last_depends, 0.0));
    let ratios = outcomes.iter().filter_map(|outcome| Some(outcome.throughput()[0].as_ref()?.ratio));
    geometric_mean(&ratios.collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

pub(super) fn equivalence(options: &Options) -> Table {
    let mut table = Table::new(
        "Equivalence",
        "Two contenders; how often throughput is decided as *equivalent*. At a true ratio of 1.02, the \
         margin, that is wrong; at 1 it is right.",
        &["noise between processes", "planned", "true ratio", "rounds taken", "equivalent"],
    );
    let mut index = 0;
    for (ratio, limit) in [(1.02, Limit::AtMost(0.05)), (1.0, Limit::None)] {
        for (name, noise) in [("2 %", NORMAL), ("0.5 %", QUIET)] {
            for rounds in [Rounds::Fixed(24), AUTOMATIC] {
                let outcomes = options.fork(index).simulate(&scenario(2, ratio, noise, rounds));
                index += 1;
                table.row(
                    [name.into(), rounds.to_string(), ratio.to_string(), rounds_taken(&outcomes)],
                    Share::count(&outcomes, |outcome| is(&outcome.throughput()[0], Outcome::Equivalent)),
                    limit,
                );
            }
        }
    }
    table
}
