//! The answer of every kind of outcome, as people read it.

use comparison::facts;
use comparison::facts::End;
use comparison::judge::Metric;
use comparison::judge::report::verdicts::{Comparison, Unmeasurable, Verdict};
use comparison::judge::report::{Kind, Report, Row, State};
use comparison::plan::Rounds;
use insta::assert_snapshot;
use statistics::{Cause, Decision, Outcome, Split, Undecided};

use super::*;
use crate::testing::{self, figure, row};

const METRICS: [Metric; 7] = [
    Metric::Load,
    Metric::ColdStart,
    Metric::FirstToken,
    Metric::Latency,
    Metric::Throughput,
    Metric::Total,
    Metric::PeakMemory,
];

fn contender(name: &str, figures: [f64; 7]) -> Row {
    let row = row(name, State::Measured, [Some(1.0); 5], &[]);
    Row {
        metrics: METRICS.into_iter().zip(figures).map(|(metric, it)| figure(metric, Some(it))).collect(),
        ..row
    }
}

/// A pair of which the first is so many times better.
fn pair(metric: Metric, a: &str, b: &str, verdict: Verdict, ratio: f64) -> Comparison {
    let (outcome, reason) = match verdict {
        Verdict::Faster => (Outcome::Different, None),
        Verdict::Equivalent => (Outcome::Equivalent, None),
        _ => (Outcome::Inconclusive, Some(Undecided::Noise)),
    };
    let interval = match verdict {
        Verdict::Faster => (ratio / 1.03, ratio * 1.03),
        _ => (1.0_f64.min(ratio / 1.15), ratio * 1.15),
    };
    let p = if verdict == Verdict::Faster { 0.0004 } else { 0.08 };
    Comparison {
        metric,
        a: a.into(),
        b: b.into(),
        verdict,
        reason: None,
        advantage: Some(ratio),
        interval: Some(interval),
        statistics: Some(Decision {
            rounds: 10,
            ratio,
            interval,
            interval_alone: interval,
            splits: Vec::new(),
            p_t: p,
            p_sign_flip: p,
            p_welch: p,
            p_mann_whitney: p,
            p_sequential: p,
            p_adjusted: p,
            p_equivalence: 0.01,
            outcome,
            reason,
        }),
    }
}

fn with(rows: Vec<Row>, comparisons: Vec<Comparison>) -> Report {
    let names: Vec<&str> = rows.iter().map(|row| row.framework.as_str()).collect();
    let plan = facts::testing::plan(&names);
    let rows = rows.into_iter().map(|row| Row { rounds: 10, ..row }).collect();
    Report {
        plan,
        rows,
        comparisons,
        rounds: 10,
        end: End::Planned,
        warnings: Vec::new(),
        ..testing::report()
    }
}

/// Three contenders with the figures of the design.
pub(crate) fn three() -> Report {
    let rows = vec![
        contender("candle", [0.101, 48.0, 46.6, 18.4, 54.3, 627.0, 0.563]),
        contender("tch", [0.148, 51.6, 42.7, 20.1, 49.8, 676.0, 0.711]),
        contender("ort", [0.344, 39.2, 37.1, 21.4, 46.8, 712.0, 0.618]),
    ];
    let (faster, open) = (Verdict::Faster, Verdict::Inconclusive);
    let mut pairs = Vec::new();
    for (metric, best, others) in [
        (Metric::Load, "candle", [("tch", faster, 1.46), ("ort", faster, 3.4)]),
        (Metric::ColdStart, "ort", [("tch", open, 1.31), ("candle", faster, 1.22)]),
        (Metric::FirstToken, "ort", [("tch", open, 1.15), ("candle", faster, 1.26)]),
        (Metric::Latency, "candle", [("tch", faster, 1.09), ("ort", faster, 1.16)]),
        (Metric::Throughput, "candle", [("tch", faster, 1.09), ("ort", faster, 1.16)]),
        (Metric::Total, "candle", [("tch", open, 1.08), ("ort", faster, 1.14)]),
        (Metric::PeakMemory, "candle", [("tch", faster, 1.26), ("ort", faster, 1.10)]),
    ] {
        pairs.extend(others.map(|(other, verdict, ratio)| pair(metric, best, other, verdict, ratio)));
        let [(first, ..), (second, ..)] = others;
        pairs.push(pair(metric, first, second, open, 1.05));
    }
    with(rows, pairs)
}

#[test]
fn a_program_of_the_users_is_yours() {
    let kinds = [("candle", Kind::Tuned), ("vendor", Kind::Stock), ("mine", Kind::Yours)];
    let rows = kinds.map(|(name, kind)| Row { kind, ..contender(name, [1.0; 7]) });
    let told = "candle: Photofinish's own model code; vendor: the framework's own code; mine: yours.";
    assert_eq!(grid::whose(&with(rows.to_vec(), Vec::new())), told);
}

#[test]
fn an_answer_is_of_two_sentences_and_sixty_words_at_most() {
    for report in [three(), crowd(), two_ends()] {
        let sentences = sentences(&report);
        let prose = [sentences.join(" "), about(&report)].join(" ");
        assert!(prose.split_whitespace().count() <= 60 && sentences.len() <= 2, "{prose}");
    }
}

/// The sentences of two contenders with this verdict on the first question.
fn told(verdict: Verdict, change: impl FnOnce(&mut Report)) -> String {
    let rows = three().rows.into_iter().take(2).collect();
    let mut report = with(rows, vec![pair(Metric::Throughput, "candle", "tch", verdict, 1.02)]);
    change(&mut report);
    sentences(&report).join(" ")
}

/// Twelve contenders, of which two share a rank and the last is struck.
pub(crate) fn crowd() -> Report {
    let names = [
        "candle",
        "tch",
        "ort",
        "burn",
        "jax",
        "openvino",
        "llamacpp",
        "transformers",
        "genai",
        "rten",
        "tract",
        "candle-transformers-q4_1",
    ];
    let mut rows: Vec<Row> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let times = 1.08_f64.powi(at as i32);
            contender(
                name,
                [0.1 * times, 48.0 * times, 46.6, 18.4 * times, 54.3 / times, 627.0 * times, 0.563],
            )
        })
        .collect();
    let mut pairs = Vec::new();
    for (at, a) in names.iter().enumerate() {
        for (more, b) in names[at + 1..].iter().enumerate() {
            let verdict = if (at, more) == (1, 0) { Verdict::Inconclusive } else { Verdict::Faster };
            pairs.push(pair(Metric::Throughput, a, b, verdict, 1.08_f64.powi(more as i32 + 1)));
        }
    }
    rows[11].state = State::Struck;
    rows[11].reasons = vec!["R5: it kept 3.1 CPUs busy; set its threads".to_owned().into()];
    pairs.retain(|pair| pair.b != names[11]);
    rows.reverse();
    with(rows, pairs)
}

/// Three contenders, of which two pairs have two speeds or changed in the course of the run.
pub(crate) fn two_ends() -> Report {
    let mut report = three();
    let split = |cause, ratios| vec![Split { cause, ratios, p: 0.001 }];
    for found in &mut report.comparisons {
        let statistics = found.statistics.as_mut().unwrap();
        match (found.metric, found.a.as_str(), found.b.as_str()) {
            (Metric::Throughput | Metric::Latency, "candle", "tch") => {
                found.verdict = Verdict::Inconclusive;
                statistics.reason = Some(Undecided::Mixed);
                statistics.splits = split(Cause::Levels { rounds: (3, 7) }, (0.97, 1.35));
            }
            (Metric::FirstToken, "ort", "candle") => {
                statistics.splits = split(Cause::Time { rounds: (6, 4) }, (1.38, 1.13));
            }
            _ => {}
        }
    }
    report
}

#[test]
fn what_is_not_decided_is_said_in_one_sentence() {
    assert_snapshot!(told(Verdict::Equivalent, |_| {}), @"candle and tch decode equally fast (within 2 %): 54 and 50 tokens/s.");
    assert_snapshot!(told(Verdict::Inconclusive, |_| {}), @"Too close to call: candle 54, tch 50 tokens/s; `--rounds 499` would settle it.");
    let layout = |report: &mut Report| {
        for statistics in report.comparisons.iter_mut().filter_map(|found| found.statistics.as_mut()) {
            statistics.reason = Some(Undecided::Layout);
        }
    };
    assert_snapshot!(told(Verdict::Inconclusive, layout), @"May be layout: candle 54, tch 50 tokens/s.");
    let automatic = |report: &mut Report| report.plan.rounds = Rounds::Auto { budget_s: 180.0, max: 60 };
    assert_snapshot!(told(Verdict::Inconclusive, automatic), @"Too close to call: candle 54, tch 50 tokens/s; more than an hour would settle it, or a quieter machine.");
    assert_snapshot!(told(Verdict::NotMeasurable, |_| {}), @"No verdict on throughput, because figures are missing.");
    let clocks = |report: &mut Report| {
        report.comparisons[0].reason = Some(Unmeasurable::Clocks { workers: 6.1, driver: Some(3.8) });
    };
    assert_snapshot!(told(Verdict::NotMeasurable, clocks), @"No verdict on throughput: candle leads tch by 6.1x by the workers' own clocks, 3.8x by the driver's, and a verdict needs both.");
    let mixed = |report: &mut Report| {
        let statistics = report.comparisons[0].statistics.as_mut().unwrap();
        statistics.splits =
            vec![Split { cause: Cause::Prompt { prompts: (0, 1) }, ratios: (0.9, 1.2), p: 0.001 }];
    };
    assert_snapshot!(told(Verdict::Inconclusive, mixed), @"Which decodes fastest differs by prompt: candle 54, tch 50 tokens/s.");
    let few = |report: &mut Report| report.rows.iter_mut().for_each(|row| row.rounds = 2);
    assert_snapshot!(told(Verdict::Inconclusive, few), @"A first look, 2 rounds and no verdict: candle 54, tch 50 tokens/s; a verdict takes 6 (`--rounds 6`).");
}

#[test]
fn contenders_without_figures_are_named_where_nothing_is_compared() {
    let failed = |count: usize| {
        move |report: &mut Report| {
            report.rows.iter_mut().rev().take(count).for_each(|row| row.state = State::Failed);
        }
    };
    assert_snapshot!(told(Verdict::Faster, failed(1)), @"candle decodes 54 tokens/s; there is nothing to compare it with. tch failed.");
    assert_snapshot!(told(Verdict::Faster, failed(2)), @"Nothing can be compared. candle and tch failed.");
    let late = |report: &mut Report| {
        for row in &mut report.rows {
            (row.state, row.reasons) = (State::NotRun, vec!["no round fits".to_owned().into()]);
        }
        report.machine.complaints = vec!["others used 80 %".into()];
    };
    assert_snapshot!(told(Verdict::Faster, late), @"Not measurable: no round fits; others used 80 %.");
}

#[test]
fn where_all_is_open_nothing_is_best() {
    let mut report = three();
    report.comparisons.iter_mut().for_each(|found| found.verdict = Verdict::Inconclusive);
    let standing = super::Standing::of_report(&report, Metric::Throughput);
    assert!(report.rows.iter().all(|row| standing.mark(&row.framework).text() == "~"));
    assert_eq!(standing.hidden().count(), 1);
}

#[test]
fn a_baseline_turns_the_mark_of_a_pair() {
    let pairs = [
        pair(Metric::Throughput, "one", "two", Verdict::Faster, 1.25),
        pair(Metric::Throughput, "one", "three", Verdict::Inconclusive, 1.1),
        pair(Metric::Throughput, "two", "three", Verdict::Equivalent, 1.01),
    ];
    let figures = ["one", "two", "three"].into_iter().map(|name| (name, Some(1.0)));
    let standing = Standing::new(Metric::Throughput, &pairs, figures);
    let than = |label: &str, baseline: &str| standing.than(label, baseline);
    assert_eq!([than("one", "two"), than("two", "one")], ["1.25x better", "1.25x worse"]);
    assert_eq!([than("one", "three"), than("three", "two"), than("two", "two")], ["~", "=", "baseline"]);
}
