//! Renderings of a history as snapshots.

use comparison::history::{Record, Skipped};
use comparison::judge::Metric;
use comparison::judge::regression::testing::record;
use comparison::plan::Schedule;

use super::*;
use crate::export::{Exporter, Format, JsonText};
use crate::table::Screen;

const SCREEN: Screen = Screen { width: 80, colour: false, verbose: false };

pub(crate) fn found<'a>(records: &'a [Record], metrics: &'a [Metric]) -> Found<'a> {
    Found { records, apart: &[], skipped: &[], metrics }
}

fn list(records: &[Record], metrics: &[Metric], format: Format) -> String {
    crate::export::export(&List(found(records, metrics)), format, &SCREEN)
}

fn trend(records: &[Record], format: Format) -> String {
    crate::export::export(&Trends(found(records, &[])), format, &SCREEN)
}

/// Two runs, of which the second has local changes and another framework that failed.
pub(crate) fn records() -> Vec<Record> {
    let mut second = record("one", 110.0);
    (second.run, second.time) = ("second".into(), "2026-01-02T00:00:00Z".into());
    second.git_modified = Some(true);
    let mut failed = record("two", 1.0);
    (failed.run, failed.time) = (second.run.clone(), second.time.clone());
    failed.state = State::Failed;
    failed.metrics.clear();
    vec![record("one", 100.0), second, failed]
}

/// Two records that are no part of trends.
pub(crate) fn apart() -> [Record; 2] {
    let [mut struck, mut cell, _] = <[Record; 3]>::try_from(records()).unwrap();
    struck.state = State::Struck;
    (cell.study, cell.noise) = (Some("sweep forward".into()), Some("others computed".into()));
    [struck, cell]
}

#[test]
fn what_is_kept_apart_is_counted() {
    let apart = apart();
    assert_eq!(
        kept_apart(&apart).unwrap(),
        "2 records are kept apart (1 struck, 1 noisy, 1 sweep); --all shows them too"
    );
    assert_eq!(kept_apart(&[]), None);
    let json: serde_json::Value =
        serde_json::from_str(&JsonText.export(&List(Found { apart: &apart, ..found(&[], &[]) }))).unwrap();
    assert_eq!(json["kept_apart"][1]["apart"], serde_json::json!(["noisy", "sweep"]));
}

/// Four runs of one case: a version changes before the third, and the fourth is measured in another way.
pub(crate) fn four() -> Vec<Record> {
    let of = |day: usize, throughput: f64| {
        let mut record = record("one", throughput);
        (record.run, record.time) = (format!("run {day}"), format!("2026-01-0{day}T00:00:00Z"));
        record.git_commit = Some(format!("{day}123456789"));
        for figure in record.metrics.values_mut() {
            figure.interval = Some((figure.typical * 0.98, figure.typical * 1.02));
        }
        record
    };
    let mut four = vec![of(1, 100.0), of(2, 101.0), of(3, 110.0), of(4, 150.0)];
    four[2].library = Some("lib 2".into());
    four[3].library = Some("lib 2".into());
    four[3].settings.schedule = Schedule::Interleaved;
    let mut few = of(4, 30.0);
    few.framework = "two".into();
    four.push(few);
    four
}

#[test]
fn a_framework_that_failed_has_no_trend() {
    assert_eq!(trend(&records()[2..], Format::Table), "");
}

#[test]
fn noisy_runs_that_are_exported_are_drawn_over_time() {
    let told = |records: &[Record]| {
        let figure = over_time(&records.iter().collect::<Vec<_>>());
        (figure.panels[0].title.clone(), figure.note.last().cloned().unwrap_or_default())
    };
    let quiet = told(&four());
    let mut noisy = four();
    noisy.iter_mut().for_each(|record| record.settings.noise_accepted = Some("a noise".into()));
    assert_eq!(told(&noisy), (quiet.0, "5 of 5 records are of noisy runs.".to_owned()));
    noisy.iter_mut().for_each(|record| record.settings.quick = true);
    assert!(told(&noisy).0.starts_with("No framework"), "a first look is no run of a trend");
}

#[test]
fn the_machine_is_told_where_there_are_several() {
    let mut records = four();
    records[1].machine.fingerprint = "0123456789".into();
    let told = list(&records, &[Metric::Throughput], Format::Markdown);
    assert!(told.contains("2 threads on host (01234567)**"), "{told}");
    let told = trend(&records, Format::Markdown);
    assert!(told.contains("2 threads on host (01234567)"), "{told}");
}

#[test]
fn programs_get_every_figure_and_what_was_passed_over() {
    let skipped = [Skipped { line: 7, reason: "cut off".into() }];
    let json: serde_json::Value =
        serde_json::from_str(&JsonText.export(&List(Found { skipped: &skipped, ..found(&records(), &[]) })))
            .unwrap();
    assert_eq!(
        (json["records"][0]["framework"].as_str(), json["skipped"][0]["line"].as_u64()),
        (Some("one"), Some(7))
    );
    let csv = list(&records(), &[], Format::Csv);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("time,run,study,framework,state,") && lines.len() == 4, "{csv}");
    let csv = trend(&example(), Format::Csv);
    let points = csv.lines().filter(|line| line.starts_with("quick,")).count();
    assert_eq!(points, 3, "a line for each point: {csv}");
    let csv = trend(&records(), Format::Csv);
    assert!(csv.lines().nth(1).unwrap().contains(",throughput,tok/s,2026-01-01T00:00:00Z,"), "{csv}");
    assert_eq!(list(&[], &[], Format::Csv), "");
}

/// The example of the documentation: two runs of the mock, some days and a speed-up apart.
fn example() -> Vec<Record> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/history.jsonl");
    comparison::history::History::parse(&std::fs::read(path).unwrap()).records
}

#[test]
fn the_export_is_what_scripts_of_this_field_read() {
    const COLUMNS: &str = "run_name,timestamp,optimized,prompt_length,generated_length,total_time,tokens_per_second,\
                           time_per_token,memory_used_mb,device,";
    let records = example();
    let exported: Vec<&Record> = records.iter().filter(|record| is_exported(record)).collect();
    assert_eq!((records.len(), exported.len()), (7, 6), "what could not run has no place there");
    let files = super::export(&exported).unwrap();
    let named = |name: &str| &files.iter().find(|(found, _)| *found == name).unwrap().1;
    for picture in ["optimization_comparison.png", "performance_over_time.png"] {
        assert!(named(picture).starts_with(b"\x89PNG"), "{picture}");
    }
    let csv = std::str::from_utf8(named("inference_metrics.csv")).unwrap();
    assert!(csv.starts_with(COLUMNS) && csv.lines().count() == 7, "{csv}");
    assert!(csv.lines().nth(1).unwrap().contains(",True,"), "as Python writes it");
    let json: serde_json::Value = serde_json::from_slice(named("inference_metrics.json")).unwrap();
    let run = &json["runs"][0];
    let keys: Vec<&str> = run.as_object().unwrap().keys().map(String::as_str).collect();
    let mut header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    header.sort_unstable();
    assert_eq!(header, keys, "the same in both");
    let metric = |name: &str| records[0].metrics[name].typical;
    for (column, expected) in [
        ("total_time", metric("total") / 1e3),
        ("tokens_per_second", metric("throughput")),
        ("time_per_token", metric("latency")),
        ("memory_used_mb", metric("peak_memory") * 1e3),
        ("prompt_length", 4.0),
        ("generated_length", 6.0),
    ] {
        assert_eq!(run[column].as_f64(), Some(expected), "{column}");
    }
    assert_eq!((run["optimized"].as_bool(), run["device"].as_str()), (Some(true), Some("cpu")));
}
