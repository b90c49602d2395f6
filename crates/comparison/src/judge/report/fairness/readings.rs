//! Whether a worker's readings agree with those of the driver (rule R18). Verdicts on times hold by both clocks
//! (`judge::clocks`).

use std::collections::BTreeMap;

use super::Judged;
use crate::facts::run::Run;
use crate::judge::clocks::{self, is_scripted};
use crate::judge::metrics::{self, Metric};
use crate::plan::Contender;

/// Least share of the CPU time seen by the driver, less that of waits and of all threads in the untimed part
/// of turns, that the worker's own has to reach; and nanoseconds that may be missing in addition.
const CPU: (f64, f64) = (0.8, 5e7);

/// Least share of the memory seen by the driver that the worker's own peak has to reach: it is read at
/// another moment.
const MEMORY: f64 = 0.9;

/// Share by which a figure by its own clock has to be better for a note. On a busy machine answers are late by a few
/// per cent.
const TOLD: f64 = 0.05;

/// The objection to a contender whose readings differ from the driver's.
pub(super) fn agree(judged: &Judged<'_>, label: &str) -> Option<String> {
    let contender = judged.plan.contender(label)?;
    if is_scripted(contender) {
        return None;
    }
    // A server's client computes nothing: what it reads of itself says nothing of the server.
    let mut of_worker = judged.runs_of(label).filter(|_| !contender.engine.is_server());
    let of_runs = of_worker.find_map(|run| {
        let found = cpu_time(contender, run).or_else(|| memory(run))?;
        Some(format!("{found} (round {})", run.round + 1))
    });
    of_runs.or_else(|| knows_what_comes(&judged.runs, label))
}

/// Least gain of requests that are fed given tokens over those that feed themselves, beyond the others', as a share, and the
/// significance by Welch's test: an honest contender is struck in fewer than one of ten thousand comparisons.
const FED: (f64, f64) = (0.05, 1e-4);

/// The objection to a contender that is faster where it is sent the tokens of several steps than where each step needs the
/// one before, by the driver's clock: it does not compute step by step.
fn knows_what_comes(runs: &[&Run], label: &str) -> Option<String> {
    // Whether it is of this contender, and feeds itself, and the logarithm of its time.
    type Request = (bool, bool, f64);
    let mut blocks: BTreeMap<(usize, usize), Vec<Request>> = BTreeMap::new();
    for run in runs {
        for turn in run.turns.iter().filter(|turn| turn.stands && !turn.seen_ns.is_empty()) {
            let took = (turn.seen_ns.iter().sum::<u64>() as f64).ln();
            let one = (run.framework == label, turn.feeds_itself, took);
            blocks.entry((run.round, turn.block)).or_default().push(one);
        }
    }
    // What a block takes besides is common to all.
    let mut kinds = [Vec::new(), Vec::new()];
    for block in blocks.values() {
        let (own, others): (Vec<_>, Vec<_>) = block.iter().partition(|(is_own, ..)| *is_own);
        if let ([(_, feeds_itself, took)], false) = (&own[..], others.is_empty()) {
            let mean = others.iter().map(|(.., took)| took).sum::<f64>() / others.len() as f64;
            kinds[usize::from(*feeds_itself)].push(took - mean);
        }
    }
    let [fed, itself] = &kinds;
    let mean = |kind: &[f64]| kind.iter().sum::<f64>() / kind.len().max(1) as f64;
    let gain = mean(itself) - mean(fed);
    (gain > FED.0.ln_1p() && statistics::welch(itself, fed) < FED.1).then(|| {
        let times = gain.exp();
        format!("its requests are {times:.2} times as fast when it is sent what steps are fed as when they feed themselves")
    })
}

/// Unusual facts about a worker that exclude no row.
pub(super) fn note(judged: &Judged<'_>, label: &str) -> Option<String> {
    let scripted = is_scripted(judged.plan.contender(label)?).then(|| {
        "its clock is scripted (option clock), so that its times are not compared with the driver's".into()
    });
    let hurried = || {
        let own = judged.runs_of(label).filter_map(|run| run.seen.as_ref()?.nice).min()?;
        let all = judged.runs.iter().filter_map(|run| run.seen.as_ref()?.nice).max()?;
        (own < all).then(|| {
            format!("it ran at a nice value of {own}, others at {all}: it came first on shared CPUs")
        })
    };
    scripted.or_else(|| faster(judged, label)).or_else(hurried)
}

/// The metrics in which a contender is better by its own clock than by the driver's, beyond [`TOLD`].
fn faster(judged: &Judged<'_>, label: &str) -> Option<String> {
    let (plan, seen) = (judged.plan, clocks::by_driver(judged.plan, judged.evidence));
    let better = |metric: &Metric| {
        let typical = |evidence| {
            let figures = metrics::typical(*metric, 0..plan.work.cases(), plan, evidence, label);
            statistics::geometric_mean(&figures.into_iter().flatten().collect::<Vec<_>>())
        };
        let (own, seen) = (typical(judged.evidence)?, typical(&seen)?);
        let better = if metric.higher_is_better() { own / seen } else { seen / own };
        (better > 1.0 + TOLD).then(|| format!("{} {better:.2} times", metric.words()))
    };
    let kind = plan.work.kind();
    let timed = Metric::tested(kind).into_iter();
    let timed = timed.filter(|metric| metric.depends_on_speed() && metric.follows(kind).is_none());
    let found: Vec<String> = timed.filter_map(|metric| better(&metric)).collect();
    (!found.is_empty()).then(|| {
        format!("better by its own clock than by the driver's: {}; verdicts need both", found.join(", "))
    })
}

/// Why this cannot be checked, if no process has readings of the driver.
pub(super) fn unseen(judged: &Judged<'_>) -> Option<String> {
    let has_none = !judged.runs.is_empty() && judged.runs.iter().all(|run| run.seen.is_none());
    has_none.then(|| "this run has no readings of the driver's".into())
}

fn differ(what: &str, own_ns: f64, saw_ns: f64) -> String {
    format!("{what} {:.3} s by its own clock, and {:.3} s by the driver's", own_ns / 1e9, saw_ns / 1e9)
}

/// The CPU time of all requests. The untimed part of turns, such as a lead-in or a context, uses an unknown
/// amount: it is assumed to be as much as all threads can use.
fn cpu_time(contender: &Contender, run: &Run) -> Option<String> {
    let (own, saw) = (run.usage()?.cpu_ns? as f64, run.seen.as_ref()?.cpu_ns? as f64);
    let (mut requests, mut turns) = (0.0, 0.0);
    for turn in run.turns.iter().filter(|turn| !turn.seen_ns.is_empty()) {
        requests += turn.sample.marks_ns.end() as f64;
        turns += (turn.prepared_ns.unwrap_or(0) + turn.seen_ns.iter().sum::<u64>()) as f64;
    }
    let waited = run.waited.and_then(|waited| waited.cpu_s).unwrap_or(0.0) * 1e9;
    // If the number was left to the framework, the worker reports it.
    let threads = match contender.threads {
        0 => run.loaded()?.in_effect.threads,
        threads => threads,
    };
    let expected = saw - waited - threads as f64 * f64::max(turns - requests, 0.0);
    (own < CPU.0 * expected - CPU.1).then(|| differ("the CPU time of its requests was", own, expected))
}

/// The peak of memory on the host.
fn memory(run: &Run) -> Option<String> {
    if run.device() != Some("cpu") {
        return None;
    }
    let (own, saw) = (run.usage()?.peak_bytes? as f64, run.seen.as_ref()?.peak_bytes? as f64);
    (own < MEMORY * saw).then(|| {
        format!(
            "its peak memory is {:.3} GB by its own reading, and the driver read {:.3} GB",
            own / 1e9,
            saw / 1e9
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::facts::run::{Seen, Turn};
    use crate::facts::testing;
    use protocol::{Event, Marks, Sample};

    use super::*;

    const MS: u64 = 1_000_000;

    fn plan() -> crate::plan::Plan {
        testing::plan(&["a"])
    }

    #[test]
    fn cpu_time_is_at_least_that_which_cannot_be_of_the_untimed_part_of_turns() {
        let plan = plan();
        let contender = &Contender { threads: 2, ..plan.contenders[0].clone() };
        let of = |own_ms: u64, saw_ms: u64, each_ms: u64| {
            let usage = protocol::Usage { cpu_ns: Some(own_ms * MS), ..testing::usage() };
            let seen = Seen { cpu_ns: Some(saw_ms * MS), ..Seen::default() };
            // 500 ms of requests.
            let sample = Sample { marks_ns: Marks::new(10 * MS, [10 * MS; 4]), ..Sample::default() };
            let turn = Turn { seen_ns: vec![each_ms * MS], ..Turn::alone(0, sample) };
            let turns = vec![turn; 10];
            let run = testing::run("a", 0, vec![Event::Usage(usage)]);
            cpu_time(contender, &Run { seen: Some(seen), turns, ..run })
        };
        assert_eq!([of(1000, 1000, 50), of(800, 1000, 50)], [None, None]);
        assert!(of(500, 1000, 50).is_some_and(|text| text.contains("0.500 s by its own clock, and 1.000 s")));
        assert_eq!(of(500, 1000, 80), None, "two threads may have used 600 ms in the untimed 300 ms");
    }

    #[test]
    fn memory_is_that_which_the_driver_saw() {
        let of = |peak: u64| {
            let usage = protocol::Usage { peak_bytes: Some(peak), ..testing::usage() };
            let events = vec![Event::Loaded(testing::loaded(1)), Event::Usage(usage)];
            let seen = Seen { peak_bytes: Some(1000), ..Seen::default() };
            memory(&Run { seen: Some(seen), ..testing::run("a", 0, events) })
        };
        assert_eq!(of(950), None);
        assert!(of(100).is_some_and(|text| text.starts_with("its peak memory")));
    }

    #[test]
    fn who_computes_ahead_is_slower_where_each_step_needs_the_one_before() {
        let runs = |ahead: f64| {
            let run = |label: &str, factor: f64| {
                let turn = |block: usize| {
                    let feeds_itself = block % 4 == 3;
                    // The machine is slower in every third block, and no two are alike.
                    let ms = 100.0 + 20.0 * (block % 3) as f64 + 0.3 * (block % 5) as f64;
                    let took = if feeds_itself { ms } else { ms * factor };
                    let turn = Turn::alone(block, Sample::default());
                    Turn { seen_ns: vec![(took * MS as f64) as u64], feeds_itself, ..turn }
                };
                let own = if label == "a" { 0.001 } else { 0.0 };
                let noisy = |turn: Turn| {
                    let more = 1.0 + own * (turn.block % 7) as f64;
                    Turn {
                        seen_ns: turn.seen_ns.iter().map(|ns| (*ns as f64 * more) as u64).collect(),
                        ..turn
                    }
                };
                Run {
                    turns: (0..24).map(|block| noisy(turn(block))).collect(),
                    ..testing::run(label, 0, Vec::new())
                }
            };
            [run("a", ahead), run("b", 1.0)]
        };
        let of = |ahead: f64, label: &str| {
            let runs = runs(ahead);
            knows_what_comes(&runs.each_ref(), label)
        };
        assert_eq!([of(1.0, "a"), of(1.0, "b"), of(0.97, "a"), of(0.5, "b")], [const { None }; 4]);
        assert!(of(0.5, "a").unwrap().contains("2.00 times as fast"));
    }
}
