//! The record of every run, and `photofinish history`, which shows it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Installation, Ran, array, of_results, read, unheard};
use crate::schema;

/// Two runs of the mock, some days and a speed-up apart; `docs/reference/files.md` shows their output.
fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples")
}

/// The example's history after a change to its text.
pub(crate) fn changed(change: impl Fn(String) -> String) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(example().join("history.jsonl")).unwrap();
    std::fs::write(directory.path().join("history.jsonl"), change(text)).unwrap();
    directory
}

fn history(results: &Path, line: &str) -> Ran {
    of_results(results, &format!("history {line}"))
}

fn json_of(results: &Path, line: &str) -> (Value, String) {
    let ran = history(results, &format!("{line} --format json")).exits(0);
    (ran.json(), ran.stderr)
}

#[test]
fn every_run_leaves_records_that_the_schema_defines_whatever_became_of_it() {
    let installation = Installation::new()
        .timed("good", &[])
        .timed("slow", &[("token_ms", "1")])
        .timed("wrong", &[("perturb", "6")])
        .timed("dead", &[("fault", "crash"), ("fault_at", "3")])
        .timed("none", &[("unsupported", "there is no kernel")]);
    installation.run("--frameworks good,slow,wrong,dead,none --rounds 6");
    schema::validate_report(&read(&installation.results().join("report.json")));
    crate::page::has_figures_and_verdicts_and_asks_nobody_for_anything(&installation, "dead");
    let of_run = installation.records();
    let states: Vec<&Value> = of_run.iter().map(|record| &record["state"]).collect();
    assert_eq!(states, ["measured", "measured", "struck", "failed", "unsupported"]);
    let good = &of_run[0];
    assert!(good["metrics"]["throughput"]["interval"].is_array(), "{good:#}");
    assert_eq!(array(&good["metrics"]["throughput"]["values"]).len(), 6);
    assert_eq!(array(&good["verdicts"]).len(), 7, "every tested metric against the one that was not struck");

    installation.run("sweep forward --frameworks good --batch 1,2 --prompt-tokens 4 --rounds 1");
    let all = installation.records();
    all.iter().for_each(schema::validate_record);
    let cells = &all[5..];
    assert!(cells.len() == 2 && cells.iter().all(|cell| cell["study"] == "sweep forward"), "{cells:?}");
    let runs: BTreeSet<&str> = cells.iter().map(|cell| cell["run"].as_str().unwrap()).collect();
    let is_there = |run: &&str| installation.path("results").join(run).join("report.json").is_file();
    assert!(runs.len() == 2 && runs.iter().all(is_there), "{runs:?}");
}

#[test]
fn who_has_nothing_to_switch_off_is_not_the_base_of_itself() {
    let installation = Installation::new()
        .timed("plain", &[])
        .timed("claims-off", &[("optimised", "false")])
        .timed("plain-base", &[]);
    for more in ["", "--no-jit"] {
        let line = "--frameworks plain,claims-off,plain-base --rounds 1 --allow-unfair";
        installation.run(&format!("{line} {more}"));
    }
    let optimised: Vec<bool> =
        installation.records().iter().map(|record| record["optimised"] == true).collect();
    assert_eq!(optimised, [[true, false, false]; 2].concat(), "what is observed counts");
}

#[test]
fn two_comparisons_at_once_share_a_history() {
    let installation = Installation::new().timed("one", &[]).timed("two", &[]);
    let start = || unheard(installation.driver("--frameworks one,two --rounds 1"));
    for mut child in [start(), start()] {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    let records = installation.records();
    let pairs: BTreeSet<_> =
        records.iter().map(|record| [&record["run"], &record["framework"]].map(Value::to_string)).collect();
    assert_eq!((records.len(), pairs.len()), (4, 4), "each framework of each run");
    let of = |machine: &str| {
        let (listed, _) = json_of(&installation.path("results"), &format!("--machine {machine} --all"));
        array(&listed["records"]).len()
    };
    assert_eq!((of("this"), of("all"), of("0123456789abcdef")), (4, 4, 0));
}

#[test]
fn a_history_that_cannot_be_written_costs_nothing_but_itself() {
    let installation = Installation::new().timed("one", &[]);
    let history = installation.path("results/history.jsonl");
    std::fs::create_dir(&history).unwrap();
    let ran = installation.run("--frameworks one --rounds 1").exits(1);
    assert!(ran.stdout.contains("Average Throughput"), "{}", ran.stdout);
    let errors: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    let [error] = errors.as_slice() else { panic!("{}", ran.stderr) };
    assert!(error.contains(history.to_str().unwrap()), "{error}");
    std::fs::remove_dir(history).unwrap();
    assert!(installation.results().join("report.json").is_file());
}

#[test]
fn an_empty_history_says_how_to_make_one() {
    let directory = tempfile::tempdir().unwrap();
    let empty = json!({"schema": 2, "records": [], "kept_apart": [], "skipped": []});
    for format in ["table", "json", "csv", "markdown"] {
        let ran = history(directory.path(), &format!("--format {format}")).exits(0);
        assert!(ran.stderr.contains("photofinish compare"), "{}", ran.stderr);
        match format {
            "json" => assert_eq!(ran.json(), empty),
            "csv" => assert_eq!(ran.stdout, ""),
            _ => {}
        }
    }
}

#[test]
fn runs_are_listed_oldest_first_and_filtered() {
    let ran = history(&example(), "");
    insta::assert_snapshot!("listed", ran.stdout);
    assert_eq!(ran.stderr, "");
    let lines = |line: &str| {
        let ran = history(&example(), &format!("--format csv {line}"));
        csv::Reader::from_reader(ran.stdout.as_bytes()).records().count()
    };
    assert_eq!((lines(""), lines("--frameworks quick --since 2026-11-14")), (7, 2));
    let none = history(&example(), "--precision nf4").stderr;
    assert!(none.contains("7 in the history"), "{none}");
    history(&example(), "--since yesterday").refused(&["30d"]);
    history(&example(), "--metric speed").refused(&["throughput"]);
}

#[test]
fn a_trend_goes_from_commit_to_commit() {
    let ran = history(&example(), "--trend --metric throughput,latency");
    insta::assert_snapshot!("trend", ran.stdout);
    let quick = &json_of(&example(), "--trend").0["trends"][0];
    assert!((0.2..0.3).contains(&quick["change"].as_f64().unwrap()), "from 1 ms to 0.8: {quick:#}");
}

#[test]
fn a_line_that_was_cut_off_is_told_and_passed_over() {
    let directory = changed(|text| text[..text.len() - 40].to_owned());
    let (document, said) = json_of(directory.path(), "");
    assert!(said.contains("line 7") && said.contains("cut off"), "{said}");
    assert_eq!(array(&document["records"]).len(), 6);
    assert_eq!(document["skipped"], json!([{"line": 7, "reason": "cut off"}]));
}

#[test]
fn what_is_kept_apart_is_counted_and_shown_when_asked_for() {
    let directory = changed(|text| {
        let text = text.replacen("\"study\":null", "\"study\":\"sweep forward\"", 2);
        text.replacen("\"noise\":null", "\"noise\":\"others computed\"", 1)
    });
    for (line, shown, noted) in [
        ("", 5, "2 records are kept apart (1 noisy, 2 sweep); --all shows them too\n"),
        ("--all", 7, ""),
        ("--study sweep", 1, "1 record is kept apart (1 noisy, 1 sweep); --all shows them too\n"),
    ] {
        let (document, said) = json_of(directory.path(), line);
        assert_eq!((array(&document["records"]).len(), said.as_str()), (shown, noted), "{line}");
    }
}

#[test]
fn a_comparison_and_an_ab_study_export_their_own_records() {
    let installation = Installation::new().timed("one", &[]);
    let into = installation.path("export");
    let exported = |command: &str| {
        let line = format!("{command} --frameworks one --rounds 1 --export {}", into.display());
        installation.run(&line).exits(0);
        let runs = read(&into.join("inference_metrics.json"))["runs"].take();
        array(&runs).iter().map(|run| run["optimized"] == true).collect::<Vec<_>>()
    };
    assert_eq!(exported("compare"), [true]);
    let arms = exported("sweep kv-cache --prompt-tokens 2 --new-tokens 4");
    assert_eq!(arms, [true, true, false], "both arms, behind the run before");
    let csv = std::fs::read_to_string(into.join("inference_metrics.csv")).unwrap();
    assert_eq!(csv.lines().filter(|line| line.starts_with("run_name,")).count(), 1, "one header");
    let file = installation.path("configs/suites/default.toml").display().to_string();
    let line = format!("--frameworks one --export {file}");
    installation.refuses(&[(&line, &["cannot write", "default.toml"])]);
}

#[test]
fn an_export_replaces_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join("new/export");
    for _ in 0..2 {
        let ran = history(&example(), &format!("export {}", into.display())).exits(0);
        assert_eq!(ran.stdout, "");
        assert!(ran.stderr.contains("6 of 7 records"), "{}", ran.stderr);
    }
    let there: BTreeSet<_> = std::fs::read_dir(&into)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let metrics = ["inference_metrics.csv", "inference_metrics.json"];
    let charts = ["optimization_comparison.png", "performance_over_time.png"];
    assert_eq!(there, [metrics, charts].concat().into_iter().map(str::to_owned).collect());
}
