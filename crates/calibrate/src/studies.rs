//! What is simulated, and within which limits it has to come out.

use engine_mock::Noise;
use statistics::{Decision, Outcome, quantile};

use crate::comparison::{Comparison, METRICS, Order, Rounds, Scenario};
use crate::page::{Limit, Table, percent};
use crate::steady;
use crate::study::{Options, Share, mean, repeat};

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

/// Contenders of which the last takes `ratio` times as long to decode as the others.
pub fn scenario(contenders: usize, ratio: f64, noise: Noise, rounds: Rounds) -> Scenario {
    let mut decode = vec![1.0; contenders];
    decode[contenders - 1] = ratio;
    Scenario { decode, noise, rounds, order: Order::Balanced }
}

/// Every study, in the order of the page.
pub fn all(options: &Options) -> Vec<Table> {
    let studies = [false_positives, power, coverage, equivalence, steady::table];
    (0..).zip(studies).map(|(index, study)| study(&options.fork(index))).collect()
}

impl Options {
    /// Comparisons of one setting.
    pub fn simulate(&self, scenario: &Scenario) -> Vec<Comparison> {
        let looks = scenario.rounds.looks();
        repeat(self.comparisons, self.seed, |seed| scenario.compare(&looks, seed))
    }
}

fn false_positives(options: &Options) -> Table {
    let mut table = Table::new(
        "Differences that are not there",
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
                [name.into(), rounds.to_string()].into_iter().chain(shape(&scenario, &outcomes)),
                Share::count(&outcomes, any_different),
                Limit::AtMost(0.05),
            );
        }
    }
    table
}

fn power(options: &Options) -> Table {
    let mut table = Table::new(
        "Differences that are there",
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
                .chain(shape(&scenario, &outcomes)),
            Share::count(&outcomes, |outcome| last_is_slower(&scenario, outcome)),
            if ratio == 1.03 { Limit::AtLeast(0.9) } else { Limit::None },
        );
    }
    table
}

fn coverage(options: &Options) -> Table {
    let mut table = Table::new(
        "Intervals that hold the truth",
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
                let decisions: Vec<&Decision> =
                    outcomes.iter().filter_map(|outcome| outcome.deciding()[0].as_ref()).collect();
                let errors: Vec<f64> =
                    decisions.iter().map(|decision| decision.ratio.ln() - ratio.ln()).collect();
                table.row(
                    [
                        name.into(),
                        rounds.to_string(),
                        ratio.to_string(),
                        taken(&outcomes),
                        percent(mean(&errors), 2),
                    ],
                    Share::count(&decisions, |decision| {
                        decision.interval.0 <= ratio && ratio <= decision.interval.1
                    }),
                    Limit::Within(0.93, 0.97),
                );
            }
        }
    }
    table
}

fn equivalence(options: &Options) -> Table {
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
                    [name.into(), rounds.to_string(), ratio.to_string(), taken(&outcomes)],
                    Share::count(&outcomes, |outcome| is(&outcome.deciding()[0], Outcome::Equivalent)),
                    limit,
                );
            }
        }
    }
    table
}

/// Whether anything in the table was decided as different.
pub fn any_different(comparison: &Comparison) -> bool {
    comparison.table.iter().any(|decision| is(decision, Outcome::Different))
}

/// Whether the last contender was found to be slower than every other.
pub fn last_is_slower(scenario: &Scenario, comparison: &Comparison) -> bool {
    let last = scenario.decode.len() - 1;
    let pairs = scenario.pairs();
    let mut of_last = pairs.iter().zip(comparison.deciding()).filter(|((_, b), _)| *b == last);
    of_last.all(|(_, decision)| {
        is(decision, Outcome::Different) && decision.as_ref().is_some_and(|decision| decision.ratio > 1.0)
    })
}

fn is(decision: &Option<Decision>, outcome: Outcome) -> bool {
    decision.as_ref().is_some_and(|decision| decision.outcome == outcome)
}

/// Contenders, hypotheses, rounds taken.
fn shape(scenario: &Scenario, outcomes: &[Comparison]) -> [String; 3] {
    let contenders = scenario.decode.len();
    let family = METRICS.len() * scenario.pairs().len();
    [contenders.to_string(), family.to_string(), taken(outcomes)]
}

/// Mean and quantiles of the rounds that there were.
fn taken(outcomes: &[Comparison]) -> String {
    let rounds: Vec<f64> = outcomes.iter().map(|outcome| outcome.rounds as f64).collect();
    let [low, median, high] = [0.1, 0.5, 0.9].map(|share| quantile(&rounds, share).unwrap_or(0.0));
    format!("{:.1} ({low:.0} · {median:.0} · {high:.0})", mean(&rounds))
}
