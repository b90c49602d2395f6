//! Renderings of a history as snapshots.

use ::history::{Record, Skipped};
use insta::assert_snapshot;
use judge::Metric;
use judge::regression::testing::record;

use super::*;
use crate::Format;
use crate::screen::WIDE;

/// Two runs, of which the second has local changes and another framework that failed.
fn records() -> Vec<Record> {
    let mut second = record("one", 110.0);
    (second.run, second.time) = ("second".into(), "2026-01-02T00:00:00Z".into());
    second.git_modified = Some(true);
    let mut failed = record("two", 1.0);
    (failed.run, failed.time) = (second.run.clone(), second.time.clone());
    failed.state = "failed".into();
    failed.metrics.clear();
    vec![record("one", 100.0), second, failed]
}

#[test]
fn records_are_listed_one_by_one() {
    assert_snapshot!(list(&records(), &[], &[], Format::Markdown, &WIDE), @r"
    | Time (UTC)       | Framework | Model   | Precision | Prompts → new tokens | throughput (tok/s) | latency (ms) | load (s) | peak_memory (GB) | Parity      | Commit    |
    |------------------|-----------|---------|-----------|----------------------|--------------------|--------------|----------|------------------|-------------|-----------|
    | 2026-01-01 00:00 | one       | a-model | f32       | 16 → 32, 2 threads   |                100 |         10.0 |    0.500 |                – | not checked | 01234567  |
    | 2026-01-02 00:00 | one       | a-model | f32       | 16 → 32, 2 threads   |                110 |         9.09 |    0.500 |                – | not checked | 01234567+ |
    | 2026-01-02 00:00 | two       | a-model | f32       | 16 → 32, 2 threads   |                  – |            – |        – |                – | failed      | 01234567  |
    ");
}

#[test]
fn a_trend_goes_from_the_first_run_to_the_last() {
    assert_snapshot!(trend(&records(), &[], &[], Format::Table, &WIDE), @r"
    ┌───────────┬─────────┬───────────┬──────────────────────┬────────────────────┬──────┬──────────────┬──────────────────┬────────────────┬───────┐
    │ Framework ┆ Model   ┆ Precision ┆ Prompts → new tokens ┆ Metric             ┆ Runs ┆ First → last ┆           Change ┆ 95 % intervals ┆ Trend │
    ╞═══════════╪═════════╪═══════════╪══════════════════════╪════════════════════╪══════╪══════════════╪══════════════════╪════════════════╪═══════╡
    │ one       ┆ a-model ┆ f32       ┆ 16 → 32, 2 threads   ┆ throughput (tok/s) ┆    2 ┆    100 → 110 ┆ +10.0 % (better) ┆ –              ┆ ▁█    │
    └───────────┴─────────┴───────────┴──────────────────────┴────────────────────┴──────┴──────────────┴──────────────────┴────────────────┴───────┘
    Runs of different times: intervals that do not meet are a reason to look, not yet a verdict.
    ");
    assert_eq!(
        trend(&records()[2..], &[], &[], Format::Table, &WIDE),
        "",
        "a framework that failed has no trend"
    );
}

#[test]
fn the_machine_is_told_where_there_are_several() {
    let mut records = records();
    records[1].machine.fingerprint = "0123456789".into();
    let told = list(&records, &[], &[Metric::Throughput], Format::Markdown, &WIDE);
    assert!(told.contains("| Machine") && told.contains("host (01234567)"), "{told}");
    assert!(trend(&records, &[], &[], Format::Markdown, &WIDE).contains("host (01234567)"));
}

#[test]
fn programs_get_every_figure_and_what_was_passed_over() {
    let skipped = [Skipped { line: 7, reason: "cut off".into() }];
    let json: serde_json::Value =
        serde_json::from_str(&list(&records(), &skipped, &[], Format::Json, &WIDE)).unwrap();
    assert_eq!(
        (json["records"][0]["framework"].as_str(), json["skipped"][0]["line"].as_u64()),
        (Some("one"), Some(7))
    );
    let csv = list(&records(), &[], &[], Format::Csv, &WIDE);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("time,run,study,framework,state,") && lines.len() == 4, "{csv}");
    let csv = trend(&records(), &[], &[], Format::Csv, &WIDE);
    assert!(csv.lines().nth(1).unwrap().contains(",throughput,tok/s,2026-01-01T00:00:00Z,"), "{csv}");
    assert_eq!(list(&[], &[], &[], Format::Csv, &WIDE), "");
}

#[test]
fn what_counts_is_exported_in_the_layouts_own_units() {
    let records = records();
    let counts: Vec<bool> = records.iter().map(is_exported).collect();
    assert_eq!(counts, [true, true, false]);
    let files = export(&records.iter().filter(|record| is_exported(record)).collect::<Vec<_>>()).unwrap();
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(names[..2], ["inference_metrics.json", "inference_metrics.csv"]);
    assert!(names[2..].iter().all(|name| name.ends_with(".png")), "{names:?}");
    let json: serde_json::Value = serde_json::from_slice(&files[0].1).unwrap();
    let run = &json["runs"][1];
    assert_eq!(
        (run["run_name"].as_str(), run["tokens_per_second"].as_f64()),
        (Some("second/one"), Some(110.0))
    );
}
