//! The first lines of every kind of outcome, as people read them.

use std::cell::RefCell;

use insta::assert_snapshot;
use judge::report::verdicts::{Comparison, Verdict};
use judge::report::{Report, State};

use super::*;
use crate::screen::WIDE;
use crate::testing::{self, row};

/// The answer, and the next step, for three contenders with these verdicts on throughput.
fn told(verdicts: &[(&str, &str, Verdict, f64)], change: impl FnOnce(&mut Report)) -> String {
    let like = testing::report().comparisons.remove(0);
    let comparison = |&(a, b, verdict, advantage): &(&str, &str, Verdict, f64)| Comparison {
        a: a.into(),
        b: b.into(),
        verdict,
        advantage: Some(advantage),
        interval: Some((advantage / 1.03, advantage * 1.03)),
        ..like.clone()
    };
    let figures = |rate: f64| [0.2, 50.0, 1000.0 / rate, rate, 0.55].map(Some);
    let mut report = Report {
        rows: ["candle", "tch", "ort"]
            .into_iter()
            .zip([80.0, 75.0, 70.0])
            .map(|(name, rate)| row(name, State::Measured, figures(rate), &[]))
            .collect(),
        comparisons: verdicts.iter().map(comparison).collect(),
        ..testing::report()
    };
    change(&mut report);
    answer(&summary(&report), &WIDE)
}

#[test]
fn one_is_fastest() {
    let verdicts = [
        ("candle", "tch", Verdict::Faster, 1.08),
        ("candle", "ort", Verdict::Faster, 1.9),
        ("tch", "ort", Verdict::Inconclusive, 1.01),
    ];
    assert_snapshot!(told(&verdicts, |_| {}), @"candle decodes fastest: it decodes 8 % faster than tch (5–11 %) and 1.9x faster than ort (1.8–2.0x).");
}

#[test]
fn versions_of_one_framework_come_first() {
    let verdicts = [
        ("candle", "tch", Verdict::Faster, 1.08),
        ("candle", "ort", Verdict::Faster, 1.9),
        ("tch", "ort", Verdict::Faster, 1.76),
    ];
    let told = told(&verdicts, |report| {
        for (label, version) in [("tch", None), ("ort", Some("1.24.4"))] {
            let contender = report.plan.contenders.iter_mut().find(|contender| contender.label == label);
            let engine = &mut contender.unwrap().engine;
            (engine.name, engine.version) =
                (version.map_or("x".into(), |version| format!("x@{version}")), version.map(str::to_owned));
        }
    });
    assert_snapshot!(told, @"tch decodes 1.8x faster than ort (1.7–1.8x). candle decodes fastest: it decodes 8 % faster than tch (5–11 %) and 1.9x faster than ort (1.8–2.0x).");
}

/// The same verdicts on another metric.
fn on(metric: Metric, verdicts: &[(&str, &str, Verdict, f64)]) -> Vec<Comparison> {
    let all = RefCell::new(Vec::new());
    told(verdicts, |report| *all.borrow_mut() = report.comparisons.clone());
    all.into_inner().into_iter().map(|found| Comparison { metric, ..found }).collect()
}

#[test]
fn decoding_the_first_token_and_whole_requests_are_three_questions() {
    let decode = [("candle", "tch", Verdict::Faster, 1.08), ("candle", "ort", Verdict::Faster, 1.17)];
    let first = on(
        Metric::FirstToken,
        &[("ort", "candle", Verdict::Faster, 2.4), ("ort", "tch", Verdict::Faster, 1.4)],
    );
    let alike =
        [("candle", "tch", Verdict::Equivalent, 1.001), ("candle", "ort", Verdict::Equivalent, 1.001)];
    let total = on(Metric::Total, &alike);
    let more = |report: &mut Report| report.comparisons.extend(first.into_iter().chain(total));
    assert_snapshot!(told(&decode, more), @r"
    candle decodes 8 % faster than tch (5–11 %) and 17 % faster than ort (14–21 %); ort returns the first token 40 % sooner than tch (36–44 %) and 2.4x sooner than candle (2.3–2.5x); candle, tch and ort
    complete whole requests equally soon (within 2 %).
    ");
}

#[test]
fn one_that_is_best_in_all_is_named_once() {
    let verdicts = [("candle", "tch", Verdict::Faster, 1.08), ("candle", "ort", Verdict::Faster, 1.9)];
    let more = |report: &mut Report| {
        for metric in [Metric::FirstToken, Metric::Total] {
            report.comparisons.extend(on(metric, &verdicts));
        }
    };
    assert_snapshot!(told(&verdicts, more), @"candle decodes fastest, returns the first token soonest and completes whole requests soonest: it decodes 8 % faster than tch (5–11 %) and 1.9x faster than ort (1.8–2.0x).");
}

#[test]
fn two_lead_and_are_open_between_them() {
    let verdicts = [
        ("candle", "tch", Verdict::Inconclusive, 1.02),
        ("candle", "ort", Verdict::Faster, 1.12),
        ("tch", "ort", Verdict::Faster, 1.10),
    ];
    assert_snapshot!(told(&verdicts, |_| {}), @r"
    No clear winner in throughput between candle and tch, and tch decodes 10 % faster than ort (7–13 %).
    To settle candle and tch: `--rounds 31`.
    ");
}

#[test]
fn all_are_alike() {
    let pairs = [("candle", "tch"), ("candle", "ort"), ("tch", "ort")];
    let verdicts = pairs.map(|(a, b)| (a, b, Verdict::Equivalent, 1.001));
    assert_snapshot!(told(&verdicts, |_| {}), @"candle, tch and ort decode equally fast (within 2 %).");
}

#[test]
fn nothing_is_certain() {
    let pairs = [("candle", "tch"), ("candle", "ort"), ("tch", "ort")];
    let verdicts = pairs.map(|(a, b)| (a, b, Verdict::Inconclusive, 1.02));
    assert_snapshot!(told(&verdicts, |_| {}), @r"
    No clear winner in throughput between candle, tch and ort.
    To settle tch and ort: `--rounds 31`.
    ");
}

#[test]
fn one_was_struck() {
    let struck = |report: &mut Report| {
        report.rows[2].state = State::Struck;
        report.rows[2].reasons = vec!["R5: it kept 3.1 CPUs busy; the budget is 2; remedy".to_owned().into()];
    };
    assert_snapshot!(told(&[("candle", "tch", Verdict::Faster, 1.08)], struck), @"candle decodes fastest: it decodes 8 % faster than tch (5–11 %). ort ✗ R5 was excluded from the verdicts.");
}

#[test]
fn nothing_was_compared() {
    assert_snapshot!(told(&[], |_| {}), @"No verdict on throughput, because figures are missing.");
}

#[test]
fn one_is_alone_and_one_failed() {
    let alone = |report: &mut Report| {
        report.rows.truncate(2);
        report.rows[1].state = State::Failed;
        report.rows[1].rounds = 0;
    };
    assert_snapshot!(told(&[], alone), @"candle decodes 80.0 tok/s; there is nothing to compare it with. tch failed.");
}

#[test]
fn all_failed() {
    let failed = |report: &mut Report| report.rows.iter_mut().for_each(|row| row.state = State::Failed);
    assert_snapshot!(told(&[], failed), @"Nothing can be compared. candle, tch and ort failed.");
}

#[test]
fn two_rounds_are_a_first_look() {
    let few = |report: &mut Report| report.rows.iter_mut().for_each(|row| row.rounds = 2);
    assert_snapshot!(told(&[("candle", "tch", Verdict::Inconclusive, 1.08)], few), @r"
    A first look: candle 80.0 tok/s, tch 75.0 tok/s, ort 70.0 tok/s. 2 rounds decide nothing; a verdict takes 6.
    For a verdict: `--rounds 6`.
    ");
}
