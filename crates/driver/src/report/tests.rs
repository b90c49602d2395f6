//! Renderings as snapshots: a change of what people see is a reviewable diff.

use std::collections::BTreeMap;

use bundle::Precision;
use insta::assert_snapshot;

use super::row::{Figure, Loads, Requested};
use super::*;
use crate::judge::metrics::Metric;
use crate::judge::steady::Steadiness;
use crate::judge::testing;
use crate::judge::verdicts::Verdict;

fn figure(metric: Metric, median: Option<f64>) -> Figure {
    Figure { metric, unit: metric.unit(), median, min: median, max: median, values: vec![median; 6] }
}

fn row(framework: &str, state: State, medians: [Option<f64>; 5], reasons: &[&str]) -> Row {
    Row {
        framework: framework.into(),
        state,
        reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
        precision: Requested { requested: Precision::F32, observed: None },
        rounds: if medians[0].is_some() { 6 } else { 0 },
        metrics: Metric::TABLE
            .into_iter()
            .zip(medians)
            .map(|(metric, median)| figure(metric, median))
            .collect(),
        load: Loads {
            warm_resident_before: Some(1.0),
            cold: vec![0.5],
            cold_median: Some(0.5),
            cold_resident_before: Some(0.0),
            cold_unavailable: None,
        },
        limit: None,
        memory: None,
        threads: None,
        steadiness: Steadiness::default(),
        energy: None,
        agreement: None,
        hello: None,
        in_effect: None,
    }
}

fn report() -> Report {
    let environment = Environment {
        host: "host".into(),
        os: None,
        kernel: None,
        cpu: "A Processor".into(),
        physical_cores: Some(2),
        available_cores: 2,
        governor: None,
        cpu_quota: None,
        memory_bytes: 1 << 34,
        gpus: Vec::new(),
        git_commit: None,
        git_modified: None,
        driver_version: "0",
        command: vec!["driver".into()],
        started: "2026-01-01T00:00:00Z".into(),
    };
    let plan = Plan { cold_loads: 3, ..testing::plan(&["candle", "ort", "tch", "odd"]) };
    let comparison = |metric, verdict, sentence: &str| Comparison {
        metric,
        a: "ort".into(),
        b: "candle".into(),
        advantage: Some(1.9),
        interval: Some((1.8, 2.0)),
        statistics: None,
        verdict,
        verdict_of_b: verdict,
        sentence: sentence.into(),
    };
    Report {
        schema: SCHEMA,
        environment,
        plan,
        model: Model {
            name: "a-model".into(),
            architecture: "llama".into(),
            bundle: "bundle".into(),
            manifest: bundle::Manifest {
                format: 1,
                name: "a-model".into(),
                source: bundle::Source { kind: "gguf".into(), seed: None, sha256: BTreeMap::new() },
                files: BTreeMap::new(),
            },
        },
        rows: vec![
            row("candle", State::Measured, [Some(0.21), Some(79.84), Some(17.7), Some(155.6), None], &[]),
            row("ort", State::Measured, [Some(0.588), Some(9.99), Some(1.25), Some(47.2), Some(0.69)], &[]),
            row("tch", State::Failed, [None; 5], &["it was ended by signal 9"]),
            row("odd", State::Unsupported, [None; 5], &["no bf16 kernels"]),
        ],
        comparisons: vec![
            comparison(Metric::Throughput, Verdict::Faster, "ort decodes 1.9x faster than candle"),
            comparison(Metric::Latency, Verdict::Faster, "this sentence is not printed"),
            comparison(Metric::Load, Verdict::Inconclusive, "ort and candle: inconclusive in Model Load (s)"),
        ],
        rounds: 6,
        end: End::Planned,
        floor: Vec::new(),
        rules: Vec::new(),
        sanity: Vec::new(),
        machine: Machine::default(),
        warnings: vec!["odd: it kept 1.0 of 2 threads busy (R5)".into()],
        interrupted: false,
        results: "results/x".into(),
    }
}

#[test]
fn the_table_has_the_rows_people_rely_on() {
    assert_snapshot!(table(&report()), @r#"
    a-model on A Processor with 2 threads: prompts of 16 tokens, 32 new tokens each, 6 rounds

    ┌────────────────────────────┬───────────────┬─────────────┬────────┬─────────────┐
    │                            ┆        candle ┆         ort ┆    tch ┆         odd │
    ╞════════════════════════════╪═══════════════╪═════════════╪════════╪═════════════╡
    │ Model Load (s)             ┆         0.210 ┆       0.588 ┆      – ┆           – │
    │ Cold Start (ms)            ┆          79.8 ┆        9.99 ┆      – ┆           – │
    │ Steady-State Latency (ms)  ┆          17.7 ┆        1.25 ┆      – ┆           – │
    │ Average Throughput (tok/s) ┆           156 ┆        47.2 ┆      – ┆           – │
    │ Peak Memory (GB)           ┆ not available ┆       0.690 ┆      – ┆           – │
    │ Precision                  ┆           f32 ┆         f32 ┆    f32 ┆         f32 │
    │ Parity                     ┆   not checked ┆ not checked ┆ failed ┆ unsupported │
    └────────────────────────────┴───────────────┴─────────────┴────────┴─────────────┘
    tch failed: it was ended by signal 9
    odd unsupported: no bf16 kernels
    ort decodes 1.9x faster than candle
    ort and candle: inconclusive in Model Load (s)
    Model Load is from a warm page cache (100 % of the weights resident before); from a cold one: candle 0.50 s (0 % resident), ort 0.50 s (0 % resident)
    warning: odd: it kept 1.0 of 2 threads busy (R5)

    Every sample: results/x
    "#);
}

#[test]
fn markdown_is_the_same_table() {
    assert_snapshot!(markdown(&report()), @r#"
    a-model on A Processor with 2 threads: prompts of 16 tokens, 32 new tokens each, 6 rounds

    |                            |        candle |         ort |    tch |         odd |
    |----------------------------|---------------|-------------|--------|-------------|
    | Model Load (s)             |         0.210 |       0.588 |      – |           – |
    | Cold Start (ms)            |          79.8 |        9.99 |      – |           – |
    | Steady-State Latency (ms)  |          17.7 |        1.25 |      – |           – |
    | Average Throughput (tok/s) |           156 |        47.2 |      – |           – |
    | Peak Memory (GB)           | not available |       0.690 |      – |           – |
    | Precision                  |           f32 |         f32 |    f32 |         f32 |
    | Parity                     |   not checked | not checked | failed | unsupported |

    - tch failed: it was ended by signal 9
    - odd unsupported: no bf16 kernels
    - ort decodes 1.9x faster than candle
    - ort and candle: inconclusive in Model Load (s)
    - Model Load is from a warm page cache (100 % of the weights resident before); from a cold one: candle 0.50 s (0 % resident), ort 0.50 s (0 % resident)
    - warning: odd: it kept 1.0 of 2 threads busy (R5)
    "#);
}

#[test]
fn csv_has_a_line_for_each_figure() {
    let text = csv(&report());
    let start: Vec<_> = text.lines().take(6).collect();
    assert_snapshot!(start.join("\n"), @r#"
    framework,state,precision,metric,unit,median,min,max,rounds
    candle,measured,f32,load,s,0.21,0.21,0.21,6
    candle,measured,f32,cold_start,ms,79.84,79.84,79.84,6
    candle,measured,f32,latency,ms,17.7,17.7,17.7,6
    candle,measured,f32,throughput,tok/s,155.6,155.6,155.6,6
    candle,measured,f32,peak_memory,GB,,,,6
    "#);
}

#[test]
fn too_few_rounds_are_one_sentence() {
    let mut report = report();
    for row in &mut report.rows {
        row.rounds = row.rounds.min(1);
    }
    let text = table(&report);
    assert!(text.contains("inconclusive: a verdict takes 6 rounds, and there were 1"), "{text}");
    assert!(!text.contains("faster"), "{text}");
}

#[test]
fn exit_codes_follow_the_rows() {
    let mut report = report();
    assert_eq!(report.exit_code(), 1, "a failed row");
    report.rows.retain(|row| row.state != State::Failed);
    assert_eq!(report.exit_code(), 0, "what is unsupported by its nature is no failure");
    report.rows.retain(|row| row.state == State::Unsupported);
    assert_eq!(report.exit_code(), 1, "nothing was measured");
}
