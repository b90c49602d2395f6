//! Measured comparisons of one contender with itself, replayed.

use std::collections::BTreeMap;

use crate::comparison::{Rounds, Scenario};
use crate::machine::Machine;
use crate::outcomes::{any_different, half_width, last_is_slower};
use crate::page::{Limit, Table, percent};
use crate::recorded::{Estimator, Half, Part, recorded};
use crate::study::{Options, Share};

/// As many as three minutes have room for on the machine of the recordings, and as many as the fewest.
const ROUNDS: [usize; 2] = [6, 8];
/// The difference that is planted.
const PLANTED: f64 = 1.03;

fn scenario(estimator: Estimator, half: Half, ratio: f64, rounds: usize) -> Scenario {
    Scenario::new(2, ratio, Machine::Recorded { estimator, half }, Rounds::Fixed(rounds))
}

fn outcome(options: &Options, scenario: &Scenario) -> (Share, String) {
    let outcomes = options.simulate(scenario);
    (Share::count(&outcomes, |outcome| last_is_slower(scenario, outcome)), half_width(&outcomes, 0))
}

pub(super) fn estimators(options: &Options) -> Table {
    let of_one = recorded().iter().filter(|recording| recording.is_of_one());
    let text = format!(
        "{} comparisons of one framework under two names were measured (`cargo xtask calibrate --record`), and are played \
         again: rounds are drawn from all of them, and the two names change places at random in each. The times of one are \
         made {} longer. On the first half, every other comparison, ways are tried to compute the figures of a round: what \
         is compared within a block, and how much of it is left out as disturbed. The half-width of the 95 % interval of \
         throughput is the median. What is left out may be a contender's own: the shift is the most by which a ratio of two \
         frameworks, in recordings of different ones, differs from that of whole requests of which nothing is left out.",
        of_one.count(),
        percent(PLANTED - 1.0, 0),
    );
    let mut table = Table::new(
        "Recorded comparisons: ways to compute a round's figures",
        text,
        &["figures of", "rounds", "half-width", "shift", "found"],
    );
    for (index, estimator) in (0..).zip(Estimator::all()) {
        let scenario = scenario(estimator, Half::First, PLANTED, ROUNDS[1]);
        let (found, half_width) = outcome(&options.fork(index), &scenario);
        let used = if estimator == Estimator::USED { " (used)" } else { "" };
        let shift = percent(shift(estimator), 1);
        table.row(
            [format!("{estimator}{used}"), ROUNDS[1].to_string(), half_width, shift],
            found,
            Limit::None,
        );
    }
    table
}

/// The most by which the mean log ratio of two frameworks differs from that of whole requests.
fn shift(estimator: Estimator) -> f64 {
    let whole = Estimator { part: Part::Requests, trimmed: 0.0 };
    let pairs = ratios(estimator).into_iter().zip(ratios(whole));
    pairs.map(|((_, found), (_, plain))| (found - plain).abs()).fold(0.0, f64::max)
}

/// The mean log ratio of throughput of each pair of frameworks, over all rounds of recordings of different ones.
fn ratios(estimator: Estimator) -> BTreeMap<(String, String), f64> {
    let mut ratios: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for recording in recorded().iter().filter(|recording| !recording.is_of_one()) {
        for round in &recording.rounds {
            let throughput = estimator.figures(round).into_iter().map(|figures| figures[2].ln());
            let figures: Vec<(&String, f64)> = recording.contenders.iter().zip(throughput).collect();
            for (place, (a, ours)) in figures.iter().enumerate() {
                for (b, theirs) in &figures[place + 1..] {
                    ratios.entry(((*a).clone(), (*b).clone())).or_default().push(ours - theirs);
                }
            }
        }
    }
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    ratios.into_iter().map(|(pair, values)| (pair, mean(values))).collect()
}

pub(super) fn false_positives(options: &Options) -> Table {
    let mut table = Table::new(
        "Recorded comparisons: false differences",
        "The second half, with the figures as they are used, and nothing made longer. A comparison counts if any hypothesis \
         of its table is decided as *different*.",
        &["figures of", "rounds", "half-width", "any different"],
    );
    for (index, rounds) in (0..).zip(ROUNDS) {
        let scenario = scenario(Estimator::USED, Half::Second, 1.0, rounds);
        let outcomes = options.fork(index).simulate(&scenario);
        let setting = [Estimator::USED.to_string(), rounds.to_string(), half_width(&outcomes, 0)];
        table.row(setting, Share::count(&outcomes, any_different), Limit::AtMost(0.05));
    }
    table
}

pub(super) fn power(options: &Options) -> Table {
    let mut table = Table::new(
        "Recorded comparisons: real differences that are found",
        "The second half, with the times of one made longer.",
        &["slower by", "rounds", "half-width", "found"],
    );
    let mut index = 0;
    for ratio in [PLANTED, 1.05] {
        for rounds in ROUNDS {
            let scenario = scenario(Estimator::USED, Half::Second, ratio, rounds);
            let (found, half_width) = outcome(&options.fork(index), &scenario);
            index += 1;
            table.row([percent(ratio - 1.0, 0), rounds.to_string(), half_width], found, Limit::None);
        }
    }
    table
}
