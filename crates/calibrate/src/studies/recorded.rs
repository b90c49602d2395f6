//! Measured comparisons of one contender with itself, replayed.

use std::collections::BTreeMap;

use crate::comparison::{Rounds, Scenario};
use crate::machine::Machine;
use crate::outcomes::{any_different, half_width, last_is_slower};
use crate::page::{Limit, Table, percent};
use crate::recorded::{Estimator, Half, Part, recorded};
use crate::study::{Options, Share};

/// As many as three minutes have room for on the machine of the recordings.
const ROUNDS: usize = 8;
/// The difference that is planted.
const PLANTED: f64 = 1.03;

fn scenario(estimator: Estimator, half: Half, ratio: f64) -> Scenario {
    Scenario::new(2, ratio, Machine::Recorded { estimator, half }, Rounds::Fixed(ROUNDS))
}

pub(super) fn estimators(options: &Options) -> Table {
    let of_one = recorded().iter().filter(|recording| recording.is_of_one());
    let text = format!(
        "{} comparisons of one framework under two names were measured, and are played again in {ROUNDS} \
        rounds: rounds are drawn from all of them, and the two names change places at random in each. Ways \
        are tried to compute the figures of a round: what is compared within a block, and how much of it is \
        left out as disturbed. The half-width of the 95 % interval of throughput is the median. What is \
        left out may be a contender's own: the shift is the most by which a ratio of two frameworks, in \
        recordings of different ones, differs from that of whole requests of which nothing is left out. \
        *Found*: one is made {} longer, in the half of the recordings with which the way was chosen. *Any \
        different*: nothing is made longer, in the other half.",
        of_one.count(),
        percent(PLANTED - 1.0, 0),
    );
    let mut table = Table::new(
        "One framework under two names, recorded",
        text,
        &["figures of", "half-width", "shift", "found", "any different"],
    );
    for (index, estimator) in (0..).zip(Estimator::all()) {
        let options = options.fork(index);
        let found_in = scenario(estimator, Half::First, PLANTED);
        let outcomes = options.simulate(&found_in);
        let found = Share::count(&outcomes, |outcome| last_is_slower(&found_in, outcome));
        let is_used = estimator == Estimator::USED;
        let equals = options.fork(0).simulate(&scenario(estimator, Half::Second, 1.0));
        table.row(
            [
                format!("{estimator}{}", if is_used { " (used)" } else { "" }),
                half_width(&outcomes),
                percent(shift(estimator), 1),
                percent(found.value(), 1),
            ],
            Share::count(&equals, any_different),
            if is_used { Limit::AtMost(0.05) } else { Limit::None },
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
