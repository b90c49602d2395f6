//! What is kept of every run, and `photofinish history`, which shows it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Installation, Ran};
use crate::schema;

/// Two runs of the mock, some days and a speed-up apart; `docs/results.md` shows what it gives.
fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples")
}

fn history(results: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("photofinish"));
    command.arg("history").args(arguments).arg("--results-dir").arg(results);
    Ran::from(command.output().unwrap())
}

fn records(installation: &Installation) -> Vec<Value> {
    let text = std::fs::read_to_string(installation.path("results/history.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn states(records: &[Value]) -> BTreeSet<&str> {
    records.iter().map(|record| record["state"].as_str().unwrap()).collect()
}

#[test]
fn every_run_leaves_records_that_the_schema_defines_whatever_became_of_it() {
    let installation = Installation::new()
        .timed("good", &[])
        .timed("slow", &[("token_ms", "1")])
        .timed("wrong", &[("perturb", "6")])
        .timed("dead", &[("fault", "crash"), ("fault_at", "3")])
        .timed("none", &[("unsupported", "there is no kernel")]);
    installation.run(&["--frameworks", "good,slow,wrong,dead,none", "--rounds", "6"]);
    let report = std::fs::read_to_string(installation.results().join("report.json")).unwrap();
    schema::validate_report(&serde_json::from_str(&report).unwrap());
    let of_run = records(&installation);
    assert_eq!(of_run.len(), 5);
    assert_eq!(states(&of_run), BTreeSet::from(["failed", "measured", "struck", "unsupported"]));
    let good = &of_run[0];
    assert!(good["metrics"]["throughput"]["interval"].is_array(), "{good:#}");
    assert_eq!(good["metrics"]["throughput"]["values"].as_array().unwrap().len(), 6);
    assert_eq!(
        good["verdicts"].as_array().unwrap().len(),
        5,
        "five metrics against the one that was not struck"
    );

    installation.run(&[
        "sweep",
        "forward",
        "--frameworks",
        "good",
        "--batch",
        "1,2",
        "--seq",
        "4",
        "--rounds",
        "1",
    ]);
    let all = records(&installation);
    assert_eq!(all.len(), 7);
    all.iter().for_each(schema::validate_record);
    let cells = &all[5..];
    assert!(cells.iter().all(|cell| cell["study"] == "sweep forward"));
    let runs: BTreeSet<&str> = cells.iter().map(|cell| cell["run"].as_str().unwrap()).collect();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert!(installation.path("results").join(run).join("report.json").is_file(), "{run}");
    }
}

#[test]
fn who_has_nothing_to_switch_off_is_not_the_base_of_itself() {
    let installation = Installation::new()
        .timed("plain", &[])
        .timed("claims-off", &[("optimised", "false")])
        .timed("plain-base", &[]);
    let run = |more: &[&str]| {
        let arguments =
            ["--frameworks", "plain,claims-off,plain-base", "--rounds", "1", "--fair-comparison=false"];
        installation.run(&[&arguments, more].concat());
        let records = records(&installation);
        records[records.len() - 3..].iter().map(|record| record["optimised"] == true).collect::<Vec<_>>()
    };
    assert_eq!(run(&[]), [true, false, false]);
    assert_eq!(run(&["--no-jit"]), [true, false, false], "what is observed counts");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_is_in_the_history_as_such() {
    let installation = Installation::new().engine("slow", &[("token_ms", "20")]);
    let mut command = installation.driver(&["--frameworks", "slow", "--rounds", "50"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = child.id().to_string();
    crate::pipeline::wait_for(|| crate::pipeline::samples_so_far(&installation) >= 2);
    Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    let records = records(&installation);
    assert_eq!((records.len(), &records[0]["interrupted"]), (1, &Value::Bool(true)));
    assert!(records[0]["metrics"]["throughput"]["median"].as_f64().unwrap() > 0.0, "what there is is kept");
    schema::validate_record(&records[0]);
}

#[test]
fn two_comparisons_at_once_share_a_history() {
    let installation = Installation::new().timed("one", &[]).timed("two", &[]);
    let start = || {
        let mut command = installation.driver(&["--frameworks", "one,two", "--rounds", "2"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let at_once = [start(), start()];
    for mut child in at_once {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    let records = records(&installation);
    let pairs: BTreeSet<(&str, &str)> = records
        .iter()
        .map(|record| (record["run"].as_str().unwrap(), record["framework"].as_str().unwrap()))
        .collect();
    assert_eq!((records.len(), pairs.len()), (4, 4), "each framework of each run");
    let of = |machine: &str| {
        let ran =
            history(&installation.path("results"), &["--machine", machine, "--all", "--format", "json"]);
        ran.json()["records"].as_array().unwrap().len()
    };
    assert_eq!((of("this"), of("all"), of("0123456789abcdef")), (4, 4, 0));
}

#[test]
fn a_driver_that_is_killed_takes_no_other_run_with_it() {
    let installation = Installation::new().timed("one", &[]);
    let arguments = ["--frameworks", "one", "--rounds", "1", "--quiet"];
    let mut saved = 0;
    for milliseconds in [50, 150, 300, 450, 600] {
        let mut command = installation.driver(&arguments);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        child.kill().unwrap();
        // Some may have been done by then.
        saved += usize::from(child.wait().unwrap().code() == Some(0));
    }
    assert_eq!(installation.run(&arguments).code, Some(0));
    let ran = history(&installation.path("results"), &["--all", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let found = ran.json()["records"].as_array().unwrap().len();
    assert!(found > saved, "{found} records, although {saved} and the last were saved");
}

#[test]
fn a_history_that_cannot_be_written_costs_nothing_but_itself() {
    let installation = Installation::new().timed("one", &[]);
    std::fs::create_dir(installation.path("results/history.jsonl")).unwrap();
    let ran = installation.run(&["--frameworks", "one", "--rounds", "1"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains("Average Throughput"), "{}", ran.stdout);
    let errors: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{}", ran.stderr);
    assert!(
        errors[0].starts_with("error: cannot append to") && errors[0].contains("the run itself is in"),
        "{errors:?}"
    );
    std::fs::remove_dir(installation.path("results/history.jsonl")).unwrap();
    assert!(installation.results().join("report.json").is_file());
}

#[test]
fn an_empty_history_says_how_to_make_one() {
    let directory = tempfile::tempdir().unwrap();
    for format in ["table", "json", "csv", "markdown"] {
        let ran = history(directory.path(), &["--format", format]);
        assert_eq!(ran.code, Some(0));
        assert!(
            ran.stderr.contains("no runs in") && ran.stderr.contains("cargo xtask compare"),
            "{}",
            ran.stderr
        );
    }
    let empty = serde_json::json!({"schema": 1, "records": [], "kept_apart": [], "skipped": []});
    assert_eq!(history(directory.path(), &["--format", "json"]).json(), empty);
    assert_eq!(history(directory.path(), &["--format", "csv"]).stdout, "");
}

#[test]
fn runs_are_listed_oldest_first_and_filtered() {
    let ran = history(&example(), &[]);
    insta::assert_snapshot!("listed", ran.stdout);
    assert_eq!(ran.stderr, "");
    let lines = |arguments: &[&str]| {
        let ran = history(&example(), &[&["--format", "csv"], arguments].concat());
        csv::Reader::from_reader(ran.stdout.as_bytes()).records().count()
    };
    assert_eq!((lines(&[]), lines(&["--frameworks", "quick", "--since", "2026-11-14"])), (7, 2));
    let none = history(&example(), &["--precision", "nf4"]);
    assert!(none.stderr.contains("matches (7 in the history)"), "{}", none.stderr);
    history(&example(), &["--since", "yesterday"]).refused(&["days (30d)"]);
    history(&example(), &["--metric", "speed"]).refused(&["throughput"]);
}

#[test]
fn a_trend_goes_from_commit_to_commit() {
    let ran = history(&example(), &["--trend", "--metric", "throughput,latency"]);
    insta::assert_snapshot!("trend", ran.stdout);
    let trends = history(&example(), &["--trend", "--format", "json"]).json();
    let quick = &trends["trends"][0];
    assert!((0.2..0.3).contains(&quick["change"].as_f64().unwrap()), "from 1 ms to 0.8: {quick:#}");
}

#[test]
fn a_line_that_was_cut_off_is_told_and_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let mut text = std::fs::read_to_string(example().join("history.jsonl")).unwrap();
    text.truncate(text.len() - 40);
    std::fs::write(directory.path().join("history.jsonl"), text).unwrap();
    let ran = history(directory.path(), &["--format", "json"]);
    assert!(ran.stderr.contains("line 7") && ran.stderr.contains("cut off"), "{}", ran.stderr);
    let document = ran.json();
    assert_eq!(document["records"].as_array().unwrap().len(), 6);
    assert_eq!(document["skipped"], serde_json::json!([{"line": 7, "reason": "cut off"}]));
}

#[test]
fn what_is_kept_apart_is_counted_and_shown_when_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(example().join("history.jsonl")).unwrap();
    let text = text.replacen("\"study\":null", "\"study\":\"sweep forward\"", 2);
    let text = text.replacen("\"noise\":null", "\"noise\":\"others computed\"", 1);
    std::fs::write(directory.path().join("history.jsonl"), text).unwrap();
    let count = |arguments: &[&str]| {
        let ran = history(directory.path(), &[&["--format", "json"], arguments].concat());
        (ran.json()["records"].as_array().unwrap().len(), ran.stderr)
    };
    let note = "2 records are kept apart (1 noisy, 2 sweep); --all shows them too\n".to_owned();
    assert_eq!(count(&[]), (5, note));
    assert_eq!(count(&["--all"]), (7, String::new()));
    let note = "1 record is kept apart (1 noisy, 1 sweep); --all shows them too\n".to_owned();
    assert_eq!(count(&["--study", "sweep"]), (1, note));
}

#[test]
fn a_comparison_and_an_ab_study_export_their_own_records() {
    let installation = Installation::new().timed("one", &[]);
    let into = installation.path("export");
    let exported = |command: &[&str]| {
        let options = ["--frameworks", "one", "--rounds", "1", "--export", into.to_str().unwrap()];
        let ran = installation.run(&[command, &options].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let text = std::fs::read_to_string(into.join("inference_metrics.json")).unwrap();
        let runs = serde_json::from_str::<Value>(&text).unwrap()["runs"].as_array().unwrap().clone();
        runs.iter().map(|run| run["optimized"] == true).collect::<Vec<_>>()
    };
    assert_eq!(exported(&["compare"]), [true]);
    assert_eq!(
        exported(&["ab", "kv-cache", "--prompt-tokens", "2", "--new-tokens", "4"]),
        [true, false],
        "both arms, and nothing of the run before"
    );
    let file = installation.path("configs/suites/default.toml");
    let options = ["--frameworks", "one", "--export", file.to_str().unwrap()];
    installation.run(&options).refused(&["cannot write", "default.toml"]);
}

#[test]
fn an_export_replaces_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join("new/export");
    // Twice: what is there is replaced.
    for _ in 0..2 {
        let ran = history(&example(), &["export", into.to_str().unwrap()]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains("exported 6 of 7 records"), "{}", ran.stderr);
    }
    let is_temporary = |path: PathBuf| path.file_name().unwrap().to_string_lossy().starts_with('.');
    assert!(!std::fs::read_dir(&into).unwrap().any(|entry| is_temporary(entry.unwrap().path())));
    for name in [
        "inference_metrics.json",
        "inference_metrics.csv",
        "optimization_comparison.png",
        "performance_over_time.png",
    ] {
        assert!(into.join(name).is_file(), "{name}");
    }
}
