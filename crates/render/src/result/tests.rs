//! Renderings as snapshots: a visible change is a reviewable diff.

use comparison::judge::report::memory::{KvCaches, Parts};
use comparison::judge::report::prompts::{PromptFigures, PromptRow};
use comparison::judge::report::{State, Warning};

use super::precisions::Precisions;
use super::*;
use crate::export::{Csv, Exporter, JsonText, Markdown};
use crate::table::WIDE;
use crate::testing::{figure, report};

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

const ALL: Screen = Screen { verbose: true, width: 400, colour: false };

/// A report of two prompts, of which candle has figures and tch has none.
pub(crate) fn two_prompts() -> Report {
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

/// A report with parts of memory, of which one remainder is below zero.
pub(crate) fn memory() -> Report {
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
    report
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
fn one_process_has_a_mean_and_no_deviation() {
    let figure = |values: &[f64]| {
        let values = values.iter().map(|value| Some(*value)).collect();
        let Cell { main, small, .. } = moments(&Figure::new(Metric::Latency, values, Vec::new()));
        (main, small)
    };
    assert_eq!(figure(&[20.0]), ("20.0".to_owned(), String::new()));
    assert_eq!(figure(&[10.0, 30.0]), ("20.0 ± 14.1".to_owned(), "70.7 %, 10.0–30.0".to_owned()));
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
fn a_column_that_varies_more_than_was_asked_for_ends_with_3_and_one_sentence() {
    let mut report = report();
    report.rows.retain(|row| row.state == State::Measured);
    let row = &mut report.rows[0];
    let latency = row.metrics.iter_mut().find(|figure| figure.metric == Metric::Latency).unwrap();
    latency.coefficient_of_variation = Some(0.12);
    assert_eq!(report.exit_code(), 0, "nothing was asked for");
    report.plan.max_cv = Some(0.12);
    assert_eq!(report.exit_code(), 0);
    report.plan.max_cv = Some(0.1);
    assert_eq!(report.exit_code(), 3);
    let contenders = vec![("candle".to_owned(), Some(0.12)), ("ort".to_owned(), None)];
    let told =
        verdicts::warnings_sentence(&Warning::MaxCv { metric: Metric::Latency, limit: 0.1, contenders });
    assert_eq!(
        told,
        "latency varies by more than --max-cv 10 %: candle 12.0 %, ort not known from one process; the exit \
         code is 3"
    );
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
