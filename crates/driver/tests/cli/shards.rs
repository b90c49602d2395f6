//! A study in shards, and what they measured laid together.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::Installation;

const SWEEP: [&str; 12] = [
    "sweep",
    "generate",
    "--frameworks",
    "quick,slow",
    "--prompt-tokens",
    "4,6,8",
    "--new-tokens",
    "4,8",
    "--rounds",
    "6",
    "--accept-noise",
    "--quiet",
];

fn installation() -> Installation {
    Installation::new().timed("quick", &[("token_ms", "1")]).timed("slow", &[("token_ms", "2")])
}

/// Plans the sweep; gives the plan's path.
fn plan(installation: &Installation, flags: &[&str]) -> String {
    let path = installation.path("plan.json").display().to_string();
    let planned = [&["plan", "--out", &path], flags, &["--"], &SWEEP[..]].concat();
    let ran = installation.run(&planned);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    path
}

/// Runs a shard; gives its directory.
fn run(installation: &Installation, plan: &str, shard: &[&str], place: &str) -> PathBuf {
    let parent = installation.path(place);
    let to = parent.display().to_string();
    let ran = installation.run(&[&["run", "--plan", plan, "--quiet", "--results-dir", &to], shard].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let entries = std::fs::read_dir(&parent).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| path.is_dir()).unwrap()
}

/// The table and what is said below it, without the place of the results. What the machine itself did during a run,
/// and its warnings, are not the same twice.
fn of_engines(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.starts_with("Every comparison") && !line.starts_with("warning: "))
        .collect()
}

/// Figures that a scripted clock does not script.
fn scripted(mut merged: Value) -> Value {
    for cell in merged["cells"].as_array_mut().unwrap() {
        for row in cell["rows"].as_array_mut().unwrap() {
            row["metrics"].as_object_mut().unwrap().retain(|name, _| {
                ["latency", "throughput", "first_token", "prefill_throughput", "total"]
                    .contains(&name.as_str())
            });
        }
        let verdicts = cell["verdicts"].as_array_mut().unwrap();
        verdicts.retain(|verdict| ["latency", "throughput"].contains(&verdict["metric"].as_str().unwrap()));
    }
    let of_cell = |cell: &Value| {
        let rows: Vec<Value> = cell["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| json!([row["framework"], row["parity"], row["metrics"], row["tokens"]]))
            .collect();
        json!([cell["settings"], rows, cell["verdicts"], cell["rounds"]])
    };
    merged["cells"].as_array().unwrap().iter().map(of_cell).collect()
}

#[test]
fn shards_merged_are_what_one_run_gives() {
    let installation = installation();
    let plan = plan(&installation, &["--shards", "2"]);
    let whole = run(&installation, &plan, &[], "whole");
    let shards = ["0", "1"].map(|shard| run(&installation, &plan, &["--shard", shard], shard));
    let [first, second] = shards.each_ref().map(|path| path.display().to_string());
    let merged = installation.run(&["merge", &second, &first, "--format", "json"]);
    assert_eq!(merged.code, Some(0), "{}", merged.stderr);
    let whole: Value =
        serde_json::from_str(&std::fs::read_to_string(whole.join("report.json")).unwrap()).unwrap();
    let merged = merged.json();
    assert_eq!(merged["machines"].as_array().unwrap().len(), 1);
    assert_eq!(merged["machines"][0]["missing"], json!([]));
    assert_eq!(scripted(merged["machines"][0].clone()), scripted(whole));

    let table = installation.run(&["merge", &first, &second]).stdout;
    assert!(of_engines(&table).iter().any(|line| line.contains("6 cells, 6 rounds each")), "{table}");
    assert!(table.contains("faster"), "{table}");
}

#[test]
fn machines_are_kept_apart_and_what_is_missing_is_told() {
    let installation = installation();
    let plan = plan(&installation, &["--shards", "2", "--machines", "small,large"]);
    let run = |shard: &str| run(&installation, &plan, &["--shard", shard], shard).display().to_string();
    let [small, large, rest] = ["0", "2", "3"].map(run);
    let merged = installation.run(&["merge", &small, &large, &rest, "--format", "json"]);
    assert_eq!(merged.code, Some(1), "a shard is missing");
    assert!(
        merged.stderr.contains("small: ") && merged.stderr.contains("3 of 6 cells are there"),
        "{}",
        merged.stderr
    );
    assert!(merged.stderr.contains("unfinished or not given: shard 1"), "{}", merged.stderr);
    let machines = merged.json()["machines"].clone();
    assert_eq!((&machines[0]["machine"], &machines[1]["machine"]), (&json!("small"), &json!("large")));
    assert_eq!(machines[1]["missing"], json!([]));
    let csv = installation.run(&["merge", &small, &large, &rest, "--format", "csv"]).stdout;
    assert!(csv.starts_with("machine,model,"), "{csv}");
}

#[test]
fn what_cannot_be_planned_run_or_merged_is_told() {
    let installation = installation();
    let plan = plan(&installation, &["--shards", "2"]);
    let shard = run(&installation, &plan, &["--shard", "0"], "0").display().to_string();
    installation.run(&["run", "--plan", &plan, "--shard", "2"]).refused(&["--shard 2", "shards 0 to 1"]);
    installation
        .run(&["run", "--plan", "absent.json"])
        .refused(&["absent.json is not a plan", "photofinish plan"]);
    installation.run(&["merge", &shard, &shard]).refused(&["measured the same cell"]);
    let cells = PathBuf::from(&shard).join("cells.jsonl");
    let told = std::fs::read_to_string(&cells).unwrap();
    let mut cell: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    cell["rows"][0]["metrics"]["latency"]["median"] = json!(1e308);
    std::fs::write(&cells, format!("{cell}\n")).unwrap();
    installation
        .run(&["merge", &shard])
        .refused(&["cells.jsonl, line 1: latency of", "1e308 ms, which cannot be"]);
    let results = installation.path("model").display().to_string();
    installation.run(&["merge", &results]).refused(&["is not of a shard"]);
    let out = installation.path("p.json").display().to_string();
    let refused = |command: &[&str], parts: &[&str]| {
        let planned = [&["plan", "--shards", "9", "--out", &out, "--"], command].concat();
        installation.run(&planned).refused(parts);
    };
    refused(&SWEEP, &["--shards 9", "has 6 cells"]);
    refused(&["compare", "--frameworks", "quick"], &["there are `sweep` and `ab`"]);
    refused(&["sweep", "forward", "--frameworks", "none", "--rounds", "1"], &["none"]);
    assert!(!installation.path("p.json").exists());
}
