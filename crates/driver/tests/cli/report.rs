//! `photofinish report`: everything that was written can be read, and decided again.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Installation, Ran, row};

fn two() -> Installation {
    Installation::new().timed("quick", &[("token_ms", "1")]).timed("slow", &[("token_ms", "2")])
}

/// A comparison of six rounds, and its directory.
fn measured(installation: &Installation) -> PathBuf {
    let ran = installation.run(&["--frameworks", "quick,slow", "--seed", "7"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    installation.results()
}

fn report(installation: &Installation, arguments: &[&str]) -> Ran {
    let binary = assert_cmd::cargo::cargo_bin("photofinish");
    let mut command = std::process::Command::new(binary);
    command.arg("report").args(arguments).arg("--configs").arg(installation.path("configs"));
    Ran::from(command.output().unwrap())
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn write(path: &Path, value: &Value) {
    std::fs::write(path, serde_json::to_string(value).unwrap()).unwrap();
}

const OUTPUTS: [&str; 6] =
    ["report.json", "report.md", "report.csv", "report.html", "comparison.png", "comparison.svg"];

#[test]
fn every_output_is_made_again_and_is_the_same_to_the_byte() {
    let installation = two();
    let directory = measured(&installation);
    let before = OUTPUTS.map(|name| std::fs::read(directory.join(name)).unwrap());
    for name in &OUTPUTS[1..] {
        std::fs::remove_file(directory.join(name)).unwrap();
    }
    let ran = report(&installation, &[directory.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for (name, before) in OUTPUTS.iter().zip(before) {
        assert!(std::fs::read(directory.join(name)).unwrap() == before, "{name}");
    }
}

#[test]
fn a_run_that_was_killed_is_shown_as_far_as_it_got() {
    let installation = two();
    let mut command = installation.driver(&["--frameworks", "quick,slow", "--rounds", "5000", "--seed", "7"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let rounds = || {
        let entries = std::fs::read_dir(installation.path("results")).into_iter().flatten();
        let journals = entries.map(|entry| entry.unwrap().path().join("samples.jsonl"));
        let text: String = journals.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        text.matches("\"fact\":\"round_done\"").count()
    };
    while rounds() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let directory = installation.results();
    assert!(!directory.join("report.json").exists());
    std::fs::remove_file(directory.join("environment.json")).unwrap();
    let ran = report(&installation, &[directory.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for name in OUTPUTS {
        assert!(directory.join(name).is_file(), "{name}");
    }
    let shown = read(&directory.join("report.json"));
    assert_eq!(shown["end"]["kind"], "killed");
    assert!(shown["rounds"].as_u64().unwrap() >= 2, "{}", shown["rounds"]);
    let markdown = std::fs::read_to_string(directory.join("report.md")).unwrap();
    assert!(markdown.contains("ended before it could save its report"), "{markdown}");
    assert!(markdown.contains("environment.json") && markdown.contains("| Average Throughput"), "{markdown}");
}

#[test]
fn deciding_again_on_an_untouched_run_changes_nothing() {
    let installation = two();
    let directory = measured(&installation);
    let ran = report(&installation, &[directory.to_str().unwrap(), "--rejudge"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("no verdict changed\n"), "{}", ran.stdout);
    let again = read(&directory.join("rejudged/report.json"));
    assert_eq!(again, read(&directory.join("report.json")));
}

#[test]
fn deciding_again_says_what_changed_and_writes_beside_unless_told() {
    let installation = two();
    let directory = measured(&installation);
    let recorded = std::fs::read(directory.join("report.json")).unwrap();
    // As if quick had taken three times as long for every token.
    let journal = directory.join("samples.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    let edited = text.lines().map(|line| {
        let mut fact: Value = serde_json::from_str(line).unwrap();
        let turns = fact.get_mut("turns").and_then(Value::as_array_mut).into_iter().flatten();
        for turn in turns.filter(|turn| turn[0] == "quick") {
            for gap in turn[1]["sample"]["gaps_ns"].as_array_mut().unwrap() {
                *gap = json!(gap.as_u64().unwrap() * 3);
            }
        }
        fact.to_string() + "\n"
    });
    let edited: String = edited.collect();
    std::fs::write(&journal, edited).unwrap();
    let path = directory.to_str().unwrap();
    let ran = report(&installation, &[path, "--rejudge"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("slow decodes 50 % faster than quick"), "{}", ran.stdout);
    assert_eq!(std::fs::read(directory.join("report.json")).unwrap(), recorded, "written beside");
    assert_ne!(std::fs::read(directory.join("rejudged/report.json")).unwrap(), recorded);
    assert_eq!(report(&installation, &[path, "--rejudge", "--in-place"]).code, Some(0));
    assert_ne!(std::fs::read(directory.join("report.json")).unwrap(), recorded, "in place when told");
}

#[test]
fn what_cannot_be_read_is_one_sentence() {
    let installation = two();
    let directory = measured(&installation);
    let path = directory.to_str().unwrap();
    let plan = directory.join("plan.json");
    std::fs::remove_file(directory.join("report.json")).unwrap();
    let mut value = read(&plan);
    value["request"]["from_the_future"] = json!(1);
    write(&plan, &value);
    report(&installation, &[path]).refused(&["plan.json", "unknown field `from_the_future`"]);
    value["schema"] = json!(99);
    write(&plan, &value);
    report(&installation, &[path]).refused(&["plan.json", "its schema is 99"]);
    std::fs::remove_file(&plan).unwrap();
    report(&installation, &[path]).refused(&["holds no plan.json"]);
    report(&installation, &[path, "--in-place"]).refused(&["--rejudge"]);
}

#[test]
fn a_study_that_was_killed_is_shown_as_far_as_it_got() {
    let installation = two();
    let sweep = ["sweep", "generate", "--frameworks", "quick", "--prompt-tokens", "4,8", "--rounds", "1"];
    let ran = installation.run(&sweep);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let directory = installation.results();
    std::fs::remove_file(directory.join("report.json")).unwrap();
    let cells = std::fs::read_to_string(directory.join("cells.jsonl")).unwrap();
    std::fs::write(directory.join("cells.jsonl"), &cells[..cells.len() - 9]).unwrap();
    let ran = report(&installation, &[directory.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let shown = read(&directory.join("report.json"));
    assert_eq!((shown["cells"].as_array().unwrap().len(), &shown["interrupted"]), (1, &json!(true)));
}

#[test]
fn a_study_begun_before_a_field_was_added_resumes_and_one_with_a_field_of_later_is_refused() {
    let installation = two();
    let sweep = ["sweep", "generate", "--frameworks", "quick", "--prompt-tokens", "4,8", "--rounds", "1"];
    assert_eq!(installation.run(&sweep).code, Some(0));
    let directory = installation.results();
    let asked = directory.join("study.json");
    let mut value = read(&asked);
    value["asked"]["request"].as_object_mut().unwrap().remove("delay_s").unwrap();
    write(&asked, &value);
    let resumed = [&sweep[..], &["--resume", directory.to_str().unwrap()]].concat();
    let ran = installation.run(&resumed);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!ran.stderr.contains("cell 1 of"), "nothing is measured again: {}", ran.stderr);
    let workers = value["workers"].take();
    value["workers"] = json!("/elsewhere");
    write(&asked, &value);
    installation.run(&resumed).refused(&["it was begun with other workers"]);
    value["workers"] = workers;
    value["asked"]["request"]["of_later"] = json!(true);
    write(&asked, &value);
    installation.run(&resumed).refused(&["unknown field `of_later`"]);
}

#[test]
fn a_baseline_of_nobody_and_rounds_of_nowhere_are_refused() {
    let installation = two();
    let directory = measured(&installation);
    let path = directory.to_str().unwrap();
    let journal = directory.join("samples.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replace("\"round\":1,", "\"round\":1000000000000000000,")).unwrap();
    report(&installation, &[path, "--rejudge"]).refused(&["samples.jsonl has a process of round"]);
    let mut value = read(&directory.join("report.json"));
    value["rows"] = json!([]);
    write(&directory.join("report.json"), &value);
    installation.run(&["diff", path, path]).refused(&["it is the report of no framework at all"]);
}

#[test]
fn half_a_character_at_the_end_of_a_journal_is_a_line_that_was_cut_off() {
    let installation = two();
    let directory = measured(&installation);
    std::fs::remove_file(directory.join("report.json")).unwrap();
    let mut journal = std::fs::read(directory.join("samples.jsonl")).unwrap();
    journal.extend(b"{\"reason\": \"\xc3");
    std::fs::write(directory.join("samples.jsonl"), journal).unwrap();
    let ran = report(&installation, &[directory.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn readings_of_others_are_held_against_the_rule_that_holds_while_measuring() {
    let installation = two();
    let directory = measured(&installation);
    let path = directory.to_str().unwrap();
    let mut forged = read(&directory.join("report.json"));
    forged["rows"][0]["metrics"][4]["median"] = json!(18_446_744_073.709_55);
    write(&directory.join("report.json"), &forged);
    report(&installation, &[path]).refused(&["peak memory of", "18446744073.70955 GB, which cannot be"]);
    // From the samples alone, with the reading that would give such a figure.
    std::fs::remove_file(directory.join("report.json")).unwrap();
    let journal = directory.join("samples.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    // Not the one that hashed the weights for both: without its hash the other is struck.
    let hashed = |fact: &Value| {
        let mut events = fact["events"].as_array().into_iter().flatten();
        events.any(|event| event["event"] == "usage" && event["weights_sha256"].is_string())
    };
    let mut facts = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let hashing = facts.find(hashed).unwrap()["process"]["framework"].clone();
    let (liar, other) = if hashing == "quick" { ("slow", "quick") } else { ("quick", "slow") };
    let forge = |line: &str| {
        let mut fact: Value = serde_json::from_str(line).unwrap();
        if fact["process"]["framework"] == liar {
            let events = fact.get_mut("events").and_then(Value::as_array_mut).into_iter().flatten();
            for usage in events.filter(|event| event["event"] == "usage") {
                usage["peak_bytes"] = json!(u64::MAX);
            }
        }
        fact.to_string() + "\n"
    };
    std::fs::write(&journal, text.lines().map(forge).collect::<String>()).unwrap();
    let ran = report(&installation, &[path]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let shown = read(&directory.join("report.json"));
    let struck = row(&shown, liar);
    assert_eq!(struck["state"], "failed", "{struck}");
    let reason = "its event `usage` has an impossible reading: peak_bytes is 18446744073709551615";
    assert_eq!(struck["reasons"][0], reason);
    assert_eq!(row(&shown, other)["state"], "measured");
    let table = std::fs::read_to_string(directory.join("report.md")).unwrap();
    assert!(table.contains(reason) && !table.contains("18446744074"), "{table}");
}

#[test]
fn a_round_that_no_run_has_is_refused_before_figures_are_listed_by_round() {
    let installation = two();
    let directory = measured(&installation);
    std::fs::remove_file(directory.join("report.json")).unwrap();
    let mut plan = read(&directory.join("plan.json"));
    plan["rounds"] = json!({"fixed": 1u64 << 62});
    write(&directory.join("plan.json"), &plan);
    let journal = directory.join("samples.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replace("\"round\":5,", "\"round\":1152921504606846976,")).unwrap();
    let ran = report(&installation, &[directory.to_str().unwrap()]);
    ran.refused(&[
        "samples.jsonl has a process of round 1152921504606846977, and there are at most 100000 rounds",
    ]);
}

/// Copies a results directory, as one that came from another machine.
fn copied(from: &Path, to: &Path, cpu: &str) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    let mut report = read(&to.join("report.json"));
    report["environment"]["cpu"] = json!(cpu);
    write(&to.join("report.json"), &report);
}

#[test]
fn results_of_many_machines_are_one_page_and_one_table() {
    let installation = two();
    let directory = measured(&installation);
    let all = installation.path("all");
    copied(&directory, &all.join("a/run"), "Processor A");
    copied(&directory, &all.join("b/run"), "Processor <b>");
    copied(&directory, &all.join("c/run"), "Processor C");
    write(&all.join("c/run/report.json"), &json!({"schema": 99}));
    copied(&directory, &all.join("d/run"), "Processor D");
    let mut forged = read(&all.join("d/run/report.json"));
    forged["rows"][0]["metrics"][0]["values"][0] = json!(-1e308);
    write(&all.join("d/run/report.json"), &forged);
    let out = installation.path("new/page");
    let collection = |arguments: &[&str]| {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("photofinish"));
        command.args(["report", "collection"]).args(arguments).current_dir(installation.directory.path());
        Ran::from(command.output().unwrap())
    };
    let ran = collection(&[all.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("new/page/index.html") && ran.stdout.contains("collection.csv"),
        "{}",
        ran.stdout
    );
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    for told in [
        "Processor A",
        "Processor &lt;b&gt;",
        "2 runs on 2 machines",
        "quick decodes",
        "its schema is 99",
        "-1e308 s, which cannot be",
    ] {
        assert!(page.contains(told), "{told}: {page}");
    }
    let csv = std::fs::read_to_string(out.join("collection.csv")).unwrap();
    assert_eq!(
        csv::Reader::from_reader(csv.as_bytes()).records().count(),
        6,
        "two runs of two, and two unreadable"
    );
    assert!(
        !page.contains(all.to_str().unwrap()) && !csv.contains(all.to_str().unwrap()),
        "no path of this machine"
    );
    assert_eq!(collection(&["all"]).code, Some(0));
    assert!(installation.path("collection/index.html").is_file(), "the default place");
    collection(&["configs"]).refused(&["configs holds no results"]);
}

#[test]
fn text_is_shown_when_asked_for_and_only_where_it_can_be() {
    let installation = two();
    let show = |more: &[&str]| {
        installation.run(&[&["--frameworks", "quick,slow", "--rounds", "1", "--show-text"], more].concat())
    };
    let ids = show(&[]);
    assert!(ids.stdout.contains("quick, slow:\n    tokens "), "the model has no tokenizer: {}", ids.stdout);
    crate::parity::add_tokenizer(&installation);
    let text = show(&["--format", "markdown"]);
    assert!(text.stdout.contains("quick, slow:\n\n~~~text\n\""), "{}", text.stdout);
    show(&["--format", "json"]).refused(&["--format table or markdown"]);
    let sweep = ["sweep", "forward", "--frameworks", "quick", "--batch", "1", "--seq", "4", "--show-text"];
    installation.run(&sweep).refused(&["not for a study"]);
}
