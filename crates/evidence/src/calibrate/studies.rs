//! The simulations, and the limits for their results.

use std::collections::BTreeMap;

use engine_mock::Noise;
use statistics::{DEFAULT_MAX_ROUNDS, Decision, Outcome, geometric_mean};

use crate::calibrate::kept::{Decisions, Kept, Play, Question};
use crate::calibrate::page::{
    Limit, Options, Share, Table, alone, any_different, coverage, coverage_of_equals, half_width, is,
    is_slower, is_split, joint_coverage, last_is_slower, percent, repeat, rounds_taken, size,
};
use crate::calibrate::recorded::{Estimator, Half, Part, recorded};
use crate::calibrate::simulated::{Comparison, Machine, Order, Rounds, Scenario, Schedule};
use crate::calibrate::uneven::{self, HARSH, PLAYED, Uneven};

/// Every study, in the order of the page. `kept`: comparisons whose rounds are drawn from.
pub fn all(options: &Options, kept: &[Kept]) -> Vec<Table> {
    let simulated = [table, uneven_table, unequal_power, intervals, equivalence, estimators, uneven::table];
    let mut tables: Vec<Table> =
        (0..).zip(simulated).map(|(index, study)| study(&options.fork(index))).collect();
    // Measured noise comes before the details of simulated noise.
    let measured = [equals(&options.fork(100), kept), power(&options.fork(101), kept)];
    tables.splice(2..2, measured);
    tables
}

// A machine with a clock, and memory bandwidth that changes during the comparison.

/// Simulated seconds that a comparison may take.
pub const BUDGET_S: f64 = 180.0;

/// All processes of a round at once, with turns of whole requests.
pub const INTERLEAVED: Schedule = Schedule::Interleaved { blocks: 8, slices: 1 };

/// The same with turns within requests, as many as 31 tokens in slices of 8 make.
pub const SLICED: Schedule = Schedule::Interleaved { blocks: 8, slices: 4 };

/// Slices, in as many blocks as are chosen at the costs of the measured machine.
const AS_MEASURED: Schedule = Schedule::Interleaved { blocks: 2, slices: 8 };

/// σ between processes: as measured of candle, and of tch without huge pages.
pub const PROCESSES: [f64; 2] = [0.015, 0.03];

/// σ between processes on the measured machine.
const MEASURED: f64 = 0.02;

/// Contenders of which the last takes `ratio` times as long for a request as the others; `process` is σ between
/// processes.
pub fn scenario(contenders: usize, ratio: f64, process: f64, schedule: Schedule) -> Scenario {
    let machine = Machine::Changing { climate: HARSH, last_depends: 1.0, process, schedule };
    Scenario::new(contenders, ratio, machine, Rounds::Within(BUDGET_S))
}

/// The same in the weather that was measured. `last_depends`: how much the last contender depends on bandwidth.
fn measured(contenders: usize, ratio: f64, last_depends: f64, process: f64) -> Scenario {
    let machine = Machine::Changing { climate: PLAYED, last_depends, process, schedule: AS_MEASURED };
    Scenario::new(contenders, ratio, machine, Rounds::Within(BUDGET_S))
}

// Contenders that do not differ, and whose noise is the same.

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
        .map(|(name, noise, rounds)| (name.to_owned(), noise_scenario(contenders, 1.0, noise, rounds)))
        .collect();
    for (schedule, name) in [(SLICED, "slices"), (Schedule::Sequential, "one process after another")] {
        let process = PROCESSES[1];
        let name = format!("bandwidth halves, {} between processes, {name}", percent(process, 1));
        all.push((name, scenario(contenders, 1.0, process, schedule)));
    }
    let name = format!("bandwidth as measured, {} between processes, slices", percent(MEASURED, 1));
    all.push((name, measured(contenders, 1.0, 1.0, MEASURED)));
    all
}

fn table(options: &Options) -> Table {
    let mut table = Table::new(
        "Equal contenders, equal noise",
        "A comparison counts as wrong if any hypothesis of its table is decided as *different*. *All held*: \
        all intervals of the table contain their ratios (limit: 95 % at least).",
        &["noise", "contenders (hypotheses)", "planned", "rounds taken", "all held", "any different"],
    );
    let mut index = 0;
    for contenders in [2, 3] {
        for (name, noise_scenario) in settings(contenders) {
            let outcomes = options.fork(index).simulate(&noise_scenario);
            index += 1;
            let all = table.judge(joint_coverage(&noise_scenario, &outcomes), Limit::AtLeast(0.95));
            table.row(
                [
                    name,
                    size(&noise_scenario),
                    noise_scenario.rounds.to_string(),
                    rounds_taken(&outcomes),
                    all,
                ],
                Share::count(&outcomes, any_different),
                Limit::AtMost(0.05),
            );
        }
    }
    table
}

// Rounds of real comparisons, drawn with replacement.

/// As many as three minutes have room for.
const ROUNDS: usize = 10;

fn play(options: &Options, kept: &Kept, play: Play) -> Vec<Vec<Decisions>> {
    repeat(options.comparisons, options.seed, |seed| kept.play(&play, seed))
}

/// The metrics of the answer, with their places.
fn asked(kept: &Kept) -> impl Iterator<Item = (usize, &Question)> {
    kept.questions.iter().enumerate().filter(|(_, question)| question.is_asked)
}

/// The runs of the repository, and that of 24 November 2026, in which memory had two speeds.
pub const PUBLISHED: [&str; 3] =
    ["results/published", "results/published/encoders", "4d50ced3:results/published"];

fn equals(options: &Options, kept: &[Kept]) -> Table {
    let runs: Vec<String> = kept
        .iter()
        .map(|kept| format!("`{}` ({} rounds of {} contenders)", kept.name, kept.rounds, kept.contenders))
        .collect();
    let text = format!(
        "Rounds of real comparisons: {}. Figures are those that the product compares. The figures of each \
        contender and prompt are divided by their mean, so that all contenders are equal in the mean of the \
        run, and {ROUNDS} rounds are drawn with replacement. *Exchanged*: in each round contenders also \
        exchange their figures at random, so that they are equal in every state of the machine. *Seen* as \
        above. In the run of 24 November (`4d50ced3`) and in that of encoders memory had two speeds, each \
        for rounds, which contenders did not follow alike. *Held alone*: the 95 % interval of a ratio \
        contains 1 (limit: 93–97 %).",
        runs.join(", "),
    );
    let mut table = Table::new(
        "Equal contenders, kept rounds",
        text,
        &["run", "contenders are equal", "metric", "seen", "held alone", "any different"],
    );
    let mut index = 0;
    for kept in kept {
        for (exchanged, name) in [(false, "in the mean"), (true, "exchanged")] {
            let plays = play(&options.fork(index), kept, Play { rounds: ROUNDS, exchanged, slower: 1.0 });
            index += 1;
            for (place, question) in asked(kept) {
                let of: Vec<&Decisions> = plays.iter().map(|play| &play[place]).collect();
                let seen =
                    Share::count(&of, |of| of.iter().flatten().any(|decision| !decision.splits.is_empty()));
                let all: Vec<&Decision> = of.iter().flat_map(|of| of.iter().flatten()).collect();
                let held = table.judge(alone(&all, 1.0), Limit::Within(0.93, 0.97));
                let words = question.metric.words();
                table.row(
                    [kept.name.clone(), name.into(), words.into(), percent(seen.value(), 1), held],
                    Share::count(&of, |of| of.iter().any(|decision| is(decision, Outcome::Different))),
                    Limit::AtMost(0.05),
                );
            }
        }
    }
    table
}

fn power(options: &Options, kept: &[Kept]) -> Table {
    let rounds = [6, 10, 12, 18, 30];
    let mut header = vec!["run", "metric", "slower by"];
    header.extend(["6", "10", "12", "18", "30 rounds"]);
    let mut table = Table::plain(
        "Differences that are found, kept rounds",
        "The same with exchanged figures, while the requests of the last contender take longer: the share \
        of its pairs that are decided as *different*, and slower, by the number of rounds.",
        &header,
    );
    let mut index = 0;
    for kept in kept {
        for slower in [1.03, 1.05] {
            let plays = rounds.map(|rounds| {
                index += 1;
                play(&options.fork(index), kept, Play { rounds, exchanged: true, slower })
            });
            for (place, question) in asked(kept) {
                let cells = plays.iter().map(|plays| percent(found(kept, plays, place).value(), 0));
                let words = question.metric.words();
                let setting = [kept.name.clone(), words.to_owned(), percent(slower - 1.0, 0)];
                table.plain_row(setting.into_iter().chain(cells));
            }
        }
    }
    table
}

/// The pairs of the last contender that are decided as different, and slower.
fn found(kept: &Kept, plays: &[Vec<Decisions>], place: usize) -> Share {
    let pairs = kept.pairs();
    let mut of_last: Vec<_> = plays.iter().flat_map(|play| pairs.iter().zip(&play[place])).collect();
    of_last.retain(|((_, b), _)| *b == kept.contenders - 1);
    Share::count(&of_last, |(_, decision)| is_slower(decision))
}

// Processes that vary as those of the mock do.

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
pub fn noise_scenario(contenders: usize, ratio: f64, noise: Noise, rounds: Rounds) -> Scenario {
    let machine = Machine::Even { noise, order: Order::Balanced, uneven: None };
    Scenario::new(contenders, ratio, machine, rounds)
}

// Measured comparisons of one contender with itself, replayed.

/// As many as three minutes have room for on the machine of the recordings.
const RECORDED_ROUNDS: usize = 8;

/// The difference that is planted.
const PLANTED: f64 = 1.03;

fn recorded_scenario(estimator: Estimator, half: Half, ratio: f64) -> Scenario {
    Scenario::new(2, ratio, Machine::Recorded { estimator, half }, Rounds::Fixed(RECORDED_ROUNDS))
}

fn estimators(options: &Options) -> Table {
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
        let found_in = recorded_scenario(estimator, Half::First, PLANTED);
        let outcomes = options.simulate(&found_in);
        let found = Share::count(&outcomes, |outcome| last_is_slower(&found_in, outcome));
        let is_used = estimator == Estimator::USED;
        let equals = options.fork(0).simulate(&recorded_scenario(estimator, Half::Second, 1.0));
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

// Contenders that differ: whether that is found, and whether intervals contain the true ratio.

const AUTOMATIC: Rounds = Rounds::Automatic(DEFAULT_MAX_ROUNDS);

/// As many rounds as three minutes have room for with three contenders.
const THREE_MINUTES: Rounds = Rounds::Automatic(12);

/// How much ort's tokens depended on the measured state, while candle's and tch's depended on it fully: ln 1.22 ÷ ln 1.33.
const LESS: f64 = 0.7;

fn unequal_power(options: &Options) -> Table {
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
        .map(|(ratio, count, rounds, limit)| {
            (normal.clone(), noise_scenario(count, ratio, NORMAL, rounds), limit)
        })
        .collect();
    let name = |what: &str, process: f64| format!("{what}, {} between processes", percent(process, 1));
    for (ratio, limit) in [(1.03, Limit::AtLeast(0.8)), (1.05, Limit::None)] {
        let scenario = measured(2, ratio, 1.0, MEASURED);
        settings.push((name("bandwidth as measured", MEASURED), scenario, limit));
    }
    let harsh = [
        ("bandwidth halves, slices", SLICED, Limit::AtLeast(0.9)),
        ("bandwidth halves, one after another", Schedule::Sequential, Limit::None),
    ];
    for (what, schedule, limit) in harsh {
        let scenario = self::scenario(2, 1.1, PROCESSES[0], schedule);
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

fn intervals(options: &Options) -> Table {
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
                settings.push((name.to_owned(), noise_scenario(2, ratio, noise, rounds), ratio));
            }
        }
    }
    for ratio in [1.0, 1.03] {
        let name = format!("bandwidth halves, {} between processes", percent(PROCESSES[1], 1));
        settings.push((name, scenario(2, ratio, PROCESSES[1], SLICED), ratio));
    }
    for last_depends in [1.0, LESS] {
        let name = format!("bandwidth as measured, the second depends by {last_depends}");
        let truth = if last_depends == 1.0 { 1.0 } else { truth(&options.fork(100), last_depends) };
        settings.push((name, measured(2, 1.0, last_depends, MEASURED), truth));
    }
    for (index, (name, noise_scenario, truth)) in (0..).zip(settings) {
        let outcomes = options.fork(index).simulate(&noise_scenario);
        let (bias, held) = coverage(&outcomes, truth);
        // What depends less on bandwidth has other true ratios for the metrics beside throughput.
        let is_known = noise_scenario.decode[1] == truth;
        let all =
            is_known.then(|| table.judge(joint_coverage(&noise_scenario, &outcomes), Limit::AtLeast(0.95)));
        table.row(
            [
                name,
                noise_scenario.rounds.to_string(),
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
    let outcomes = options.simulate(&measured(2, 1.0, last_depends, 0.0));
    let ratios = outcomes.iter().filter_map(|outcome| Some(outcome.throughput()[0].as_ref()?.ratio));
    geometric_mean(&ratios.collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

fn equivalence(options: &Options) -> Table {
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
                let outcomes = options.fork(index).simulate(&noise_scenario(2, ratio, noise, rounds));
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

// Weather that affects contenders differently.

/// How rounds are planned: fixed and automatic ones of two contenders, and the twelve that three minutes have room for
/// with three.
pub const PLANS: [(usize, Rounds); 3] =
    [(2, Rounds::Fixed(10)), (2, Rounds::Automatic(30)), (3, Rounds::Automatic(12))];

/// Every weather with its name.
pub const ALL: [(&str, Uneven); 14] = [
    ("half of one's processes 15 % slower", Uneven::Speeds { share: 0.5, factor: 1.15 }),
    ("a third of one's 20 % slower", Uneven::Speeds { share: 1.0 / 3.0, factor: 1.2 }),
    ("15 % of one's 20 % slower", Uneven::Speeds { share: 0.15, factor: 1.2 }),
    ("8 % of one's 50 % slower", Uneven::Speeds { share: 0.08, factor: 1.5 }),
    ("memory in two states, each for rounds", Uneven::Memory),
    ("the same, and the third varies by 10 %", Uneven::HiddenMemory { noise: 0.1 }),
    ("two of three contend for CPUs, for rounds", Uneven::Contention),
    ("one 4 % slower or faster from some round on", Uneven::Change { by: 0.04 }),
    ("levels follow the round before (AR(1), 0.6)", Uneven::Correlated { rho: 0.6, sigma: 0.02 }),
    ("others 3 % slower after the first", Uneven::CarryOver { by: 0.03 }),
    ("the same, equal in the mean of orders", Uneven::EvenCarryOver { by: 0.03 }),
    ("t with 2 degrees of freedom, all", Uneven::HeavyTails { scale: 0.015 }),
    ("one bad round of one (+50 %)", Uneven::BadRound { factor: 1.5 }),
    ("none", Uneven::Change { by: 0.0 }),
];

/// Contenders that are equally fast in the long run.
pub fn uneven_scenario(uneven: Uneven, contenders: usize, rounds: Rounds) -> Scenario {
    // Their own levels take the place of the noise between processes.
    let process = match uneven {
        Uneven::Correlated { .. } | Uneven::HeavyTails { .. } => 0.0,
        _ => NORMAL.process,
    };
    let noise = Noise { process, ..NORMAL };
    let machine = Machine::Even { noise, order: Order::Balanced, uneven: Some(uneven) };
    Scenario::new(contenders, 1.0, machine, rounds)
}

/// What became of one weather.
#[derive(Debug, Clone)]
pub struct Survived {
    pub outcomes: Vec<Comparison>,
    pub wrong: Share,
    /// Comparisons that report a split of an affected pair.
    pub seen: Share,
    /// Those that are wrong among those that report none.
    pub wrong_unseen: Share,
    pub alone: Share,
    pub joint: Share,
}

/// Plays one weather.
pub fn survive(options: &Options, uneven: Uneven, contenders: usize, rounds: Rounds) -> Survived {
    let scenario = uneven_scenario(uneven, contenders, rounds);
    let outcomes = options.simulate(&scenario);
    let pairs = scenario.pairs().into_iter().enumerate();
    let affected: Vec<usize> =
        pairs.filter(|(_, (a, b))| uneven.affects(*a, *b, contenders)).map(|(index, _)| index).collect();
    let unseen: Vec<&Comparison> = outcomes.iter().filter(|it| !is_split(it, &affected)).collect();
    Survived {
        wrong: Share::count(&outcomes, any_different),
        seen: Share { hits: outcomes.len() - unseen.len(), of: outcomes.len() },
        wrong_unseen: Share::count(&unseen, |it| any_different(it)),
        alone: coverage_of_equals(&outcomes, &affected),
        joint: joint_coverage(&scenario, &outcomes),
        outcomes,
    }
}

fn uneven_table(options: &Options) -> Table {
    let mut table = Table::new(
        "Equal contenders, uneven weather",
        "In the long run all contenders are equally fast, but the weather affects them differently. *Seen*: \
        the report says of an affected pair, in a metric of the answer, that one figure does not describe \
        it (two levels, a change in time, a slope over the machine's state). *Unseen and wrong*: a false \
        difference, of the comparisons in which nothing is seen. *Held alone*: the 95 % interval of \
        throughput, of affected pairs. *All held*: all intervals of the table. A row passes with at most 5 \
        % of false differences; it says *seen* if there are more but 80 % of its comparisons are seen. What \
        is in neither group says FAIL, and its rate is the one that remains.\n\n
         Most of what remains cannot be known from one run: its rounds really differ, and only later ones \
         would show that the difference does not last. In 10 rounds the slow speed of 15 % of the processes \
         does not occur in 20 % of comparisons, that of 8 % in 43 %; memory keeps one state throughout in \
         13 %. A change of 4 % and levels that follow each other are too small beside the noise to be seen \
         in so few rounds; log ratios of kept runs do not follow each other. What slows whatever comes \
         after it makes itself faster than others in every order; orders only remove the differences \
         between the others.",
        &[
            "weather",
            "contenders",
            "planned",
            "rounds taken",
            "seen",
            "unseen and wrong",
            "held alone",
            "all held",
            "any different",
        ],
    );
    let mut index = 0;
    for (name, uneven) in ALL {
        for (contenders, rounds) in PLANS.into_iter().filter(|(contenders, _)| uneven.fits(*contenders)) {
            let survived = survive(&options.fork(index), uneven, contenders, rounds);
            index += 1;
            let Survived { outcomes, wrong, seen, wrong_unseen, alone, joint } = survived;
            let shares = [seen, wrong_unseen, alone, joint].map(|share| percent(share.value(), 1));
            let setting =
                [name.to_owned(), contenders.to_string(), rounds.to_string(), rounds_taken(&outcomes)];
            table.row(setting.into_iter().chain(shares), wrong, Limit::AtMostUnlessSeen(0.05, seen.value()));
        }
    }
    table
}
