//! Renderings as snapshots: a visible change is a reviewable diff.

use comparison::judge::report::State;
use comparison::judge::report::memory::{KvCaches, Parts};
use comparison::judge::report::prompts::{PromptFigures, PromptRow};
use insta::assert_snapshot;

use super::precisions::Precisions;
use super::*;
use crate::export::{Csv, Exporter, JsonText, Markdown};
use crate::table::WIDE;
use crate::testing::{figure, report};

#[test]
fn the_table_has_the_rows_people_rely_on() {
    assert_snapshot!(WIDE.export(&report()), @r"
    ort decodes fastest: 47 tokens/s, 1.90x candle.

          Contender  Decode       First Token  Request  Peak  Load  Cold start
                     tok/s                 ms       ms    GB     s          ms
      1   ort        47.2  best           n/a      n/a  0.69  0.59        9.99
      2   candle      156  1.90x          n/a      n/a   n/a  0.21        79.8
          tch        failed                 –        –     –     –           –
          odd        unsupported            –        –     –     –           –

      1.90x: 1.90 times worse than the best of the column.
      All: f32, parity not checked.
      a-model (f32), 2 threads of an A Processor; prompts of 16 tokens, 32 new
      tokens each, 6 rounds. Photofinish's own model code on each framework; the
      frameworks' own: --frameworks stock.

    tch failed: it was ended by signal 9
    odd unsupported: no bf16 kernels
    warning: odd: it kept 1.0 of 2 threads busy (R5)
    every verdict, figures by prompt, memory by part, versions and time: -v, or report.html
    Every sample, and report.html: results/x
    ");
}

#[test]
fn markdown_is_the_same_table() {
    assert_snapshot!(Markdown::Whole.export(&report()), @r"
    **ort decodes fastest: 47 tokens/s, 1.90x candle.**

    |     | Contender | Decode (tok/s) | First Token (ms) | Request (ms) | Peak (GB) | Load (s) | Cold start (ms) |
    |-----|-----------|---------------:|-----------------:|-------------:|----------:|---------:|----------------:|
    | 1   | ort       |      47.2 best |              n/a |          n/a |      0.69 |     0.59 |            9.99 |
    | 2   | candle    |      156 1.90x |              n/a |          n/a |       n/a |     0.21 |            79.8 |
    |     | tch       |         failed |                – |            – |         – |        – |               – |
    |     | odd       |    unsupported |                – |            – |         – |        – |               – |

    1.90x: 1.90 times worse than the best of the column. All: f32, parity not
    checked.

    a-model (f32), 2 threads of an A Processor; prompts of 16 tokens, 32 new tokens
    each, 6 rounds. Photofinish's own model code on each framework; the frameworks'
    own: --frameworks stock.

    - tch failed: it was ended by signal 9
    - odd unsupported: no bf16 kernels
    - warning: odd: it kept 1.0 of 2 threads busy (R5)

    <details>
    <summary>Every verdict, and what else was measured</summary>

    Verdicts; their intervals hold together with 95 % certainty. That of an open
    pair says how many times better the first may be:

    - ort decodes 1.90x as fast as candle (1.80–2.00)
    - too close to call: ort, candle in load (1.80–2.00x)

    Between processes: mean ± standard deviation, coefficient of variation:

    |                               |                candle |                   ort | tch | odd |
    |-------------------------------|----------------------:|----------------------:|----:|----:|
    | Model Load (s)                | 0.210 ± 0.000 (0.0 %) | 0.588 ± 0.000 (0.0 %) |   – |   – |
    | Cold Start (ms)               |  79.8 ± 0.000 (0.0 %) |  9.99 ± 0.000 (0.0 %) |   – |   – |
    | First Token (ms)              |                     – |                     – |   – |   – |
    | Steady-State Latency (ms)     |  17.7 ± 0.000 (0.0 %) |  1.25 ± 0.000 (0.0 %) |   – |   – |
    | Average Throughput (tok/s)    |   156 ± 0.000 (0.0 %) |  47.2 ± 0.000 (0.0 %) |   – |   – |
    | Whole Request (ms)            |                     – |                     – |   – |   – |
    | Peak Memory (GB)              |                     – | 0.690 ± 0.000 (0.0 %) |   – |   – |
    | Start-up (ms)                 |                     – |                     – |   – |   – |
    | Spawn to First Token (ms)     |                     – |                     – |   – |   – |
    | First Request (s)             |                     – |                     – |   – |   – |
    | First Answer (s)              |                     – |                     – |   – |   – |
    | Prefill Throughput (tok/s)    |                     – |                     – |   – |   – |
    | Latency p50 (ms)              |                     – |                     – |   – |   – |
    | Latency p90 (ms)              |                     – |                     – |   – |   – |
    | Latency p95 (ms)              |                     – |                     – |   – |   – |
    | Latency p99 (ms)              |                     – |                     – |   – |   – |
    | Peak Throughput (tok/s)       |                     – |                     – |   – |   – |
    | Efficiency (tok/s per GB)     |                     – |                     – |   – |   – |
    | Peak Memory per Sequence (MB) |                     – |                     – |   – |   – |

    What else was measured:

    |                             |                                                                                       candle |                                                                                          ort | tch | odd |
    |-----------------------------|---------------------------------------------------------------------------------------------:|---------------------------------------------------------------------------------------------:|----:|----:|
    | load from a cold page cache |                                                                        0.50 s (0 % resident) |                                                                        0.50 s (0 % resident) |   – |   – |
    | load consists of            | 0.10 s of CPU time in the framework, 0.20 s in the system; 540 MB of new memory, 4 MB mapped | 0.10 s of CPU time in the framework, 0.20 s in the system; 540 MB of new memory, 4 MB mapped |   – |   – |

    - Model Load is from a warm page cache (100 % of the weights resident before), into memory that the system had ready (making it ready took 0.05 to 1.50 s)
    - rounds: 6 (as planned)

    </details>
    ");
}

#[test]
fn csv_has_a_line_for_each_figure() {
    let text = Csv.export(&report());
    let start: Vec<_> = text.lines().take(6).collect();
    assert_snapshot!(start.join("\n"), @r"
    framework,state,precision,metric,unit,median,min,max,rounds,prompt,typical,mean,standard_deviation,coefficient_of_variation
    candle,measured,f32,load,s,0.21,0.21,0.21,6,,0.21,0.21,0,0
    candle,measured,f32,cold_start,ms,79.84,79.84,79.84,6,,79.84,79.84000000000002,0.00000000000001556721137788958,0.00000000000000019498010242847667
    candle,measured,f32,latency,ms,17.7,17.7,17.7,6,,17.7,17.7,0,0
    candle,measured,f32,throughput,tok/s,155.6,155.6,155.6,6,,155.60000000000008,155.6,0,0
    candle,measured,f32,peak_memory,GB,,,,6,,,,,
    ");
}

#[test]
fn csv_has_no_precision_that_was_not_observed() {
    let mut report = report();
    report.rows.iter_mut().for_each(|row| row.precision.observed = None);
    let text = Csv.export(&report);
    let of = |framework: &str| text.lines().find(|line| line.starts_with(framework)).unwrap().to_owned();
    assert!(of("candle").starts_with("candle,measured,,load,"), "figures, of whatever precision: {text}");
    assert!(
        of("tch").starts_with("tch,failed,f32,load,"),
        "nothing was observed of what did not run: {text}"
    );
}

/// A terminal that shows everything.
const ALL: Screen = Screen { verbose: true, width: 400, colour: false };

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
    | Prompt            | Framework | First Token (ms) | Steady-State Latency (ms) | Average Throughput (tok/s) | Prefill Throughput (tok/s) |
    |-------------------|-----------|-----------------:|--------------------------:|---------------------------:|---------------------------:|
    | short (5 tokens)  | candle    |             20.4 |                      9.87 |                        101 |                        245 |
    | long (512 tokens) | candle    |              803 |                      11.2 |                          – |                        638 |
    ");
    assert!(
        ALL.export(&report).contains("long (512 tokens)")
            && Markdown::Whole.export(&report).contains("long (512 tokens)")
    );
    let lines = Csv.export(&report);
    let lines: Vec<_> =
        lines.lines().filter(|line| line.contains(",long,") && line.starts_with("c")).collect();
    assert_snapshot!(lines.join("\n"), @r"
    candle,measured,f32,first_token,ms,803,803,803,6,long,803.0000000000007,803,0,0
    candle,measured,f32,latency,ms,11.2,11.2,11.2,6,long,11.199999999999998,11.200000000000001,0.0000000000000019459014222361975,0.00000000000000017374119841394619
    candle,measured,f32,throughput,tok/s,,,,6,long,,,,
    candle,measured,f32,prefill_throughput,tok/s,637.6,637.6,637.6,6,long,637.6000000000001,637.6,0,0
    ");
}

#[test]
fn one_prompt_is_the_table_itself() {
    let mut report = two_prompts();
    report.prompts.truncate(1);
    assert!(by_prompt(&report).is_none());
    assert!(!Csv.export(&report).contains("short"));
}

#[test]
fn what_a_suite_shows_stands_below_unless_it_is_the_usual_one() {
    let told = |suite: Option<&str>| {
        let mut report = report();
        report.plan.suite = suite.map(str::to_owned);
        report.plan.analysis = "It shows this, and not that. ".repeat(4).trim_end().into();
        (ALL.export(&report), Markdown::Whole.export(&report))
    };
    let (terminal, markup) = told(Some("smoke"));
    let expected = "\nSuite smoke: It shows this, and not that. It shows this";
    assert!(terminal.contains("\nSuite smoke: It shows this") && markup.contains(expected), "{terminal}");
    let (terminal, markup) = told(Some("default"));
    assert!(!terminal.contains("It shows") && markup.contains("Suite default: It shows"), "{terminal}");
    assert!(told(None).0.contains("These prompts: It shows"));
}

#[test]
fn memory_adds_up() {
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
        times_needed: Some(1.1),
        anonymous: None,
        file_backed: None,
        proportional: None,
        gpu: None,
        gpu_parts: None,
        method: None,
    };
    report.rows[0].memory = Some(parts(40e6));
    report.rows[1].memory = Some(parts(-7e6));
    let text = Screen { width: 100, ..ALL }.export(&report);
    let lines = text.lines().skip_while(|line| !line.starts_with("peak memory by part"));
    assert_snapshot!(lines.take(3).collect::<Vec<_>>().join("\n"), @r"
    peak memory by part (MB)
      candle  10 framework + 500 parameters + 2 KV cache + 5 activations + 40 remainder = 557
      ort     10 framework + 500 parameters + 2 KV cache + 5 activations − 7 remainder = 510
    ");
}

#[test]
fn too_few_rounds_are_one_sentence() {
    let mut report = report();
    for row in &mut report.rows {
        row.rounds = row.rounds.min(1);
    }
    let text = WIDE.export(&report);
    assert!(text.contains("A first look, 1 round and no verdict: "), "{text}");
    assert!(!text.contains("1.90x") && !text.contains("best"), "{text}");
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

#[test]
fn every_json_has_the_verdicts_and_warnings_in_words() {
    let sentence = "ort decodes 1.90x as fast as candle (1.80–2.00)";
    let alone: serde_json::Value = serde_json::from_str(&JsonText.export(&report())).unwrap();
    let several: serde_json::Value =
        serde_json::from_str(&JsonText.export(&Precisions(&[report()]))).unwrap();
    for report in [&alone, &several["reports"][0]] {
        let found = &report["comparisons"][0];
        assert_eq!([&found["sentence"], &found["verdict_of_b"]], [sentence, "slower"]);
        assert_eq!(report["warnings"][0], "odd: it kept 1.0 of 2 threads busy (R5)");
    }
}
