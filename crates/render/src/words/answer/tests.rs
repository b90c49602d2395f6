//! The answer of every kind of outcome, as people read it.

use comparison::facts;
use comparison::facts::End;
use comparison::judge::Metric;
use comparison::judge::report::verdicts::{Comparison, Unmeasurable, Verdict};
use comparison::judge::report::{Report, Row, State};
use comparison::plan::Rounds;
use insta::assert_snapshot;
use statistics::{Cause, Decision, Outcome, Split, Undecided};

use super::*;
use crate::export::{Exporter, Markdown};
use crate::table;
use crate::table::{Screen, WIDTH};
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

/// A contender with these figures.
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
fn three() -> Report {
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

/// As a terminal shows the answer.
fn shown(report: &Report) -> String {
    let text = Screen::plain(WIDTH).export(report);
    assert!(table::width(&text) <= WIDTH, "{text}");
    let prose = [sentences(report).join(" "), about(report)].join(" ");
    assert!(prose.split_whitespace().count() <= 60, "{prose}");
    assert!(sentences(report).len() <= 2);
    let (answer, _) = text.split_once("every verdict").unwrap();
    answer.trim_end().to_owned()
}

/// The sentences of two contenders with this verdict on the first question.
fn told(verdict: Verdict, change: impl FnOnce(&mut Report)) -> String {
    let rows = three().rows.into_iter().take(2).collect();
    let mut report = with(rows, vec![pair(Metric::Throughput, "candle", "tch", verdict, 1.02)]);
    change(&mut report);
    sentences(&report).join(" ")
}

#[test]
fn three_contenders_are_columns() {
    assert_snapshot!(shown(&three()), @r"
    candle decodes fastest: 54 tokens/s, 1.09x tch, 1.16x ort.
    ort returns the first token sooner than candle: 37 ms (47 ms).

                                   candle        tch           ort
      Model Load (s)               0.10  best    0.15  1.46x   0.34  3.4x
      Cold Start (ms)              48.0  1.22x   51.6  ~       39.2  best
      First Token (ms)             46.6  1.26x   42.7  ~       37.1  best
      Steady-State Latency (ms)    18.4  best    20.1  1.09x   21.4  1.16x
      Average Throughput (tok/s)   54.3  best    49.8  1.09x   46.8  1.16x
      Whole Request (ms)            627  best     676  ~        712  1.14x
      Peak Memory (GB)             0.56  best    0.71  1.26x   0.62  1.10x
      Precision                    f32           f32           f32
      Parity                       not checked   not checked   not checked

      1.46x: 1.46 times worse than the best of the row. ~: too close to call in 10
      rounds.
      Too close to call, and not in the table: 6 pairs.
      a-model (f32), 2 threads of an A Processor; prompts of 16 tokens, 32 new
      tokens each, 10 rounds. Photofinish's own model code on each framework; the
      frameworks' own: --frameworks stock.
    ");
}

#[test]
fn a_pull_request_has_the_same() {
    assert_snapshot!(Markdown::Short.export(&three()), @r"
    **candle decodes fastest: 54 tokens/s, 1.09x tch, 1.16x ort. ort returns the
    first token sooner than candle: 37 ms (47 ms).**

    |                            |      candle |         tch |         ort |
    |----------------------------|------------:|------------:|------------:|
    | Model Load (s)             |   0.10 best |  0.15 1.46x |   0.34 3.4x |
    | Cold Start (ms)            |  48.0 1.22x |      51.6 ~ |   39.2 best |
    | First Token (ms)           |  46.6 1.26x |      42.7 ~ |   37.1 best |
    | Steady-State Latency (ms)  |   18.4 best |  20.1 1.09x |  21.4 1.16x |
    | Average Throughput (tok/s) |   54.3 best |  49.8 1.09x |  46.8 1.16x |
    | Whole Request (ms)         |    627 best |       676 ~ |   712 1.14x |
    | Peak Memory (GB)           |   0.56 best |  0.71 1.26x |  0.62 1.10x |
    | Precision                  |         f32 |         f32 |         f32 |
    | Parity                     | not checked | not checked | not checked |

    1.46x: 1.46 times worse than the best of the row. ~: too close to call in 10
    rounds. Too close to call, and not in the table: 6 pairs.

    a-model (f32), 2 threads of an A Processor; prompts of 16 tokens, 32 new tokens
    each, 10 rounds. Photofinish's own model code on each framework; the frameworks'
    own: --frameworks stock.
    ");
}

#[test]
fn twelve_contenders_are_rows_with_shared_ranks() {
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
    assert_snapshot!(shown(&with(rows, pairs)), @r"
    candle decodes fastest: 54 tokens/s, from 1.08x tch to 2.2x tract.

           Contender                 Decode         First Token  Request    Peak
                                     tok/s                   ms       ms      GB
       1   candle                      54.3  best          46.6      627    0.56
       2=  tch                         50.3  1.08x         46.6      677    0.56
       2=  ort                         46.6  1.17x         46.6      731    0.56
       4   burn                        43.1  1.26x         46.6      790    0.56
       5   jax                         39.9  1.36x         46.6      853    0.56
       6   openvino                    37.0  1.47x         46.6      921    0.56
       7   llamacpp                    34.2  1.59x         46.6      995    0.56
       8   transformers                31.7  1.71x         46.6     1075    0.56
       9   genai                       29.3  1.85x         46.6     1161    0.56
      10   rten                        27.2  2.0x          46.6     1253    0.56
      11   tract                       25.2  2.2x          46.6     1354    0.56
           (candle-transform… ✗ R5)  (23.3)              (46.6)   (1462)  (0.56)

      1.08x: 1.08 times worse than the best of the column.
      Too close to call, and not in the table: tch, ort in throughput.
      All: f32, parity not checked.
      a-model (f32), 2 threads of an A Processor; prompts of 16 tokens, 32 new
      tokens each, 10 rounds. Photofinish's own model code on each framework; the
      frameworks' own: --frameworks stock.

    candle-transformers-q4_1 struck: R5: it kept 3.1 CPUs busy; set its threads
    ");
}

#[test]
fn where_a_ratio_has_two_ends_the_table_says_both_and_why() {
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
    assert_snapshot!(shown(&report), @r"
    Which decodes fastest differs from round to round: candle 54, tch 50 tokens/s.
    candle needs the least memory: 0.56 GB (ort 0.62 GB).

                                  candle            tch               ort
      Model Load (s)              0.10  best        0.15  1.46x       0.34  3.4x
      Cold Start (ms)             48.0  1.22x       51.6  ~           39.2  best
      First Token (ms)            46.6  1.13–1.38x  42.7  ~           37.1  best
      Steady-State Latency (ms)   18.4  best        20.1  0.97–1.35x  21.4  1.16x
      Average Throughput (tok/s)  54.3  best        49.8  0.97–1.35x  46.8  1.16x
      Whole Request (ms)           627  best         676  ~            712  1.14x
      Peak Memory (GB)            0.56  best        0.71  1.26x       0.62  1.10x
      Precision                   f32               f32               f32
      Parity                      not checked       not checked       not checked

      1.46x: 1.46 times worse than the best of the row. ~: too close to call in 10
      rounds.
      Two ends: candle in time to first token: changed after round 6; tch in
      throughput: two speeds (3 and 7 of 10 rounds).
      Too close to call, and not in the table: 6 pairs.
      a-model (f32), 2 threads of an A Processor; prompts of 16 tokens, 32 new
      tokens each, 10 rounds. Photofinish's own model code on each framework; the
      frameworks' own: --frameworks stock.
    ");
}

#[test]
fn what_is_not_decided_is_said_in_one_sentence() {
    assert_snapshot!(told(Verdict::Equivalent, |_| {}), @"candle and tch decode equally fast (within 2 %): 54 and 50 tokens/s.");
    assert_snapshot!(told(Verdict::Inconclusive, |_| {}), @"Too close to call: candle 54, tch 50 tokens/s; `--rounds 499` would settle it.");
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
fn a_verdict_has_its_interval_and_p_and_an_open_pair_contains_no_difference() {
    let lines = crate::words::summary(&three()).verdicts;
    let lines: Vec<&str> = lines.iter().map(|line| line.text.as_str()).take(9).collect();
    assert_snapshot!(lines.join("\n"), @r"
    candle decodes 1.16x as fast as ort (1.13–1.19), p = 0.0004
    candle decodes 1.09x as fast as tch (1.06–1.12), p = 0.0004
    too close to call: tch, ort in throughput (0.91–1.21x), p = 0.08
    load: ort takes 3.4x as long as candle (3.3–3.5), p = 0.0004
    load: tch takes 1.46x as long as candle (1.42–1.50), p = 0.0004
    too close to call: tch, ort in load (0.91–1.21x), p = 0.08
    cold start: candle takes 1.22x as long as ort (1.18–1.26), p = 0.0004
    too close to call: ort, tch in cold start (1.00–1.51x), p = 0.08
    too close to call: tch, candle in cold start (0.91–1.21x), p = 0.08
    ");
}
