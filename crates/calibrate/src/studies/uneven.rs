//! Weather that affects contenders differently.

use crate::comparison::{Comparison, Rounds, Scenario};
use crate::machine::Machine;
use crate::outcomes::{any_different, coverage_of_equals, is_split, joint_coverage, rounds_taken};
use crate::page::{Limit, Table, percent};
use crate::processes::Order;
use crate::studies::noise::NORMAL;
use crate::study::{Options, Share};
use crate::uneven::Uneven;
use engine_mock::Noise;

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
pub fn scenario(uneven: Uneven, contenders: usize, rounds: Rounds) -> Scenario {
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
    let scenario = scenario(uneven, contenders, rounds);
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

pub(super) fn table(options: &Options) -> Table {
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
