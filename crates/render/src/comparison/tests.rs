//! Renderings as snapshots: a change of what people see is a reviewable diff.

use insta::assert_snapshot;
use judge::memory::{KvCaches, Parts};
use judge::report::State;
use judge::report::prompts::{PromptFigures, PromptRow};

use super::*;
use crate::testing::{figure, report};

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

    Every sample, and report.html: results/x
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

    <details>
    <summary>1 warning, and what else was measured</summary>

    - Model Load is from a warm page cache (100 % of the weights resident before); from a cold one: candle 0.50 s (0 % resident), ort 0.50 s (0 % resident)
    - warning: odd: it kept 1.0 of 2 threads busy (R5)

    </details>
    "#);
}

#[test]
fn csv_has_a_line_for_each_figure() {
    let text = csv(&report());
    let start: Vec<_> = text.lines().take(6).collect();
    assert_snapshot!(start.join("\n"), @r#"
    framework,state,precision,metric,unit,median,min,max,rounds,prompt
    candle,measured,f32,load,s,0.21,0.21,0.21,6,
    candle,measured,f32,cold_start,ms,79.84,79.84,79.84,6,
    candle,measured,f32,latency,ms,17.7,17.7,17.7,6,
    candle,measured,f32,throughput,tok/s,155.6,155.6,155.6,6,
    candle,measured,f32,peak_memory,GB,,,,6,
    "#);
}

/// A report of two prompts, of which candle has figures and tch has none.
fn two_prompts() -> Report {
    let prompt = |name: &str, tokens: usize, values: [Option<f64>; 4]| {
        let row = |framework: &str, values: [Option<f64>; 4]| PromptRow {
            framework: framework.into(),
            metrics: Metric::OF_A_PROMPT
                .into_iter()
                .zip(values)
                .map(|(metric, value)| figure(metric, value))
                .collect(),
        };
        let rows = vec![row("candle", values), row("tch", [None; 4])];
        PromptFigures { name: name.into(), tokens, rows }
    };
    let short = prompt("short", 5, [Some(20.4), Some(9.87), Some(101.3), Some(245.0)]);
    let long = prompt("long", 512, [Some(803.0), Some(11.2), None, Some(637.6)]);
    let mut report = report();
    report.rows.retain(|row| ["candle", "tch"].contains(&row.framework.as_str()));
    Report { prompts: vec![short, long], ..report }
}

#[test]
fn several_prompts_have_a_table_of_their_own() {
    let report = two_prompts();
    assert_snapshot!(by_prompt(&report).unwrap().markdown(), @r"
    | Prompt            | Framework | Time to First Token (ms) | Steady-State Latency (ms) | Average Throughput (tok/s) | Prefill Throughput (tok/s) |
    |-------------------|-----------|--------------------------|---------------------------|----------------------------|----------------------------|
    | short (5 tokens)  | candle    |                     20.4 |                      9.87 |                        101 |                        245 |
    | long (512 tokens) | candle    |                      803 |                      11.2 |                          – |                        638 |
    ");
    assert!(table(&report).contains("long (512 tokens)") && markdown(&report).contains("long (512 tokens)"));
    let lines = csv(&report);
    let lines: Vec<_> =
        lines.lines().filter(|line| line.ends_with("long") && line.starts_with("c")).collect();
    assert_snapshot!(lines.join("\n"), @r"
    candle,measured,f32,first_token,ms,803,803,803,6,long
    candle,measured,f32,latency,ms,11.2,11.2,11.2,6,long
    candle,measured,f32,throughput,tok/s,,,,6,long
    candle,measured,f32,prefill_throughput,tok/s,637.6,637.6,637.6,6,long
    ");
}

#[test]
fn one_prompt_is_the_table_itself() {
    let mut report = two_prompts();
    report.prompts.truncate(1);
    assert!(by_prompt(&report).is_none());
    assert!(!csv(&report).contains("short"));
}

#[test]
fn what_a_suite_shows_stands_below_unless_it_is_the_usual_one() {
    let told = |suite: Option<&str>| {
        let mut report = report();
        report.plan.suite = suite.map(str::to_owned);
        report.plan.analysis = "It shows this, and not that. ".repeat(4).trim_end().into();
        (table(&report), markdown(&report))
    };
    let (terminal, markup) = told(Some("smoke"));
    let expected = "\nSuite smoke: It shows this, and not that. It shows this, and not that. It shows this, and not that.\nIt shows this";
    assert!(terminal.contains(expected) && markup.contains(expected), "{terminal}");
    let (terminal, markup) = told(Some("default"));
    assert!(!terminal.contains("It shows") && markup.contains("Suite default: It shows"), "{terminal}");
    assert!(told(None).0.contains("These prompts: It shows"));
}

#[test]
fn memory_is_one_line_that_adds_up() {
    let mut report = report();
    let parts = |remainder: f64| Parts {
        framework: 10e6,
        parameters: 500e6,
        kv_cache: 2e6,
        activations: 5e6,
        remainder,
        peak: 517e6 + remainder,
        loaded: 510e6,
        last: None,
        kv_caches: KvCaches { predicted: 2e6, observed: None },
        needed: 502e6,
        times_needed: 1.1,
        anonymous: None,
        file_backed: None,
        proportional: None,
        gpu: None,
        method: None,
    };
    report.rows[0].memory = Some(parts(40e6));
    report.rows[1].memory = Some(parts(-7e6));
    let text = table(&report);
    let line = text.lines().find(|line| line.starts_with("peak memory by part")).unwrap();
    assert_snapshot!(line, @"peak memory by part (MB): candle 10 framework + 500 parameters + 2 KV cache + 5 activations + 40 remainder = 557; ort 10 framework + 500 parameters + 2 KV cache + 5 activations − 7 remainder = 510");
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
