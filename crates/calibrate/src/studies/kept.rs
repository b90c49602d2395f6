//! Rounds of real comparisons, drawn with replacement.

use statistics::{Decision, Outcome};

use crate::kept::{Decisions, Kept, Play, Question};
use crate::outcomes::{alone, is};
use crate::page::{Limit, Table, percent};
use crate::study::{Options, Share, repeat};

/// As many as three minutes have room for.
const ROUNDS: usize = 10;

fn play(options: &Options, kept: &Kept, play: Play) -> Vec<Vec<Decisions>> {
    repeat(options.comparisons, options.seed, |seed| kept.play(&play, seed))
}

/// The metrics of the answer, with their places.
fn asked(kept: &Kept) -> impl Iterator<Item = (usize, &Question)> {
    kept.questions.iter().enumerate().filter(|(_, question)| question.is_asked)
}

pub(super) fn equals(options: &Options, kept: &[Kept]) -> Table {
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

pub(super) fn power(options: &Options, kept: &[Kept]) -> Table {
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
    let last = kept.contenders - 1;
    let pairs = kept.pairs();
    let of_last: Vec<&Option<Decision>> = plays
        .iter()
        .flat_map(|play| pairs.iter().zip(&play[place]))
        .filter(|((_, b), _)| *b == last)
        .map(|(_, decision)| decision)
        .collect();
    Share::count(&of_last, |decision| {
        is(decision, Outcome::Different) && decision.as_ref().is_some_and(|decision| decision.ratio > 1.0)
    })
}
