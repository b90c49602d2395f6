//! A study in shards, and their measurements merged.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Installation, array, lines, read};

const SWEEP: &str = "sweep generate --frameworks quick,slow --prompt-tokens 4,6 --new-tokens 4,8 --accept-noise \
                     --quiet --rounds";

fn installation() -> Installation {
    Installation::new().timed("quick", &[("token_ms", "1")]).timed("slow", &[("token_ms", "2")])
}

/// Plans the sweep; returns the plan's path.
fn plan(installation: &Installation, flags: &str, rounds: usize) -> String {
    let path = installation.path("plan.json").display().to_string();
    installation.run(&format!("shard plan --output {path} {flags} -- {SWEEP} {rounds}")).exits(0);
    path
}

/// Runs a shard, or all of them; returns its directory.
fn run(installation: &Installation, plan: &str, shard: &str, place: &str) -> String {
    let parent = installation.path(place);
    let to = parent.display();
    installation.run(&format!("shard run --plan {plan} --quiet --results-dir {to} {shard}")).exits(0);
    let mut entries = std::fs::read_dir(&parent).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.is_dir()).unwrap().display().to_string()
}

/// Cells without the figures that a scripted clock does not script.
fn scripted(merged: &Value) -> Value {
    let of_row = |row: &Value| {
        let of_clock = ["latency", "throughput", "first_token", "prefill_throughput", "total"];
        let metrics = of_clock.map(|name| row["metrics"][name].clone());
        json!([row["framework"], row["parity"], metrics, row["tokens"]])
    };
    let of_cell = |cell: &Value| {
        let rows: Vec<Value> = array(&cell["rows"]).iter().map(of_row).collect();
        let mut verdicts = array(&cell["verdicts"]).to_vec();
        verdicts.retain(|verdict| ["latency", "throughput"].contains(&verdict["metric"].as_str().unwrap()));
        json!([cell["settings"], rows, verdicts, cell["rounds"]])
    };
    array(&merged["cells"]).iter().map(of_cell).collect()
}

#[test]
fn shards_merged_are_what_one_run_gives_and_what_cannot_be_planned_run_or_merged_is_told() {
    let installation = installation();
    let plan = plan(&installation, "--shards 2", 6);
    let whole = read(&PathBuf::from(run(&installation, &plan, "", "whole")).join("report.json"));
    let [first, second] =
        ["0", "1"].map(|shard| run(&installation, &plan, &format!("--shard {shard}"), shard));
    let machines = installation.json(0, &format!("shard merge {second} {first}"))["machines"].take();
    let [merged] = array(&machines) else { panic!("{machines}") };
    assert_eq!((&merged["missing"], scripted(merged)), (&json!([]), scripted(&whole)));
    let verdicts = array(&merged["cells"][0]["verdicts"]);
    assert!(verdicts.iter().any(|verdict| verdict["verdict"] == "faster"), "{verdicts:?}");
    let table = installation.run(&format!("shard merge {first} {second}")).exits(0).stdout;
    assert!(table.contains("4 cells, 6 rounds each") && table.contains("2.0x as fast as slow"), "{table}");

    let cells = PathBuf::from(&first).join("cells.jsonl");
    let mut cell = lines(&std::fs::read_to_string(&cells).unwrap()).remove(0);
    cell["rows"][0]["metrics"]["latency"]["median"] = json!(1e308);
    let twice = format!("shard merge {second} {second}");
    installation.refuses(&[(&twice, &["measured the same cell"])]);
    std::fs::write(&cells, format!("{cell}\n")).unwrap();
    let (out, model) = (installation.path("p.json"), installation.path("model"));
    let planned = |line: &str| format!("shard plan --shards 9 --output {} -- {line}", out.display());
    installation.refuses(&[
        (&format!("shard merge {first}"), &["cells.jsonl, line 1: latency of", "1e308 ms"]),
        (&format!("shard merge {}", model.display()), &["is not of a shard"]),
        (&format!("shard run --plan {plan} --shard 2"), &["--shard 2", "shards 0 to 1"]),
        ("shard run --plan absent.json", &["absent.json", "photofinish shard plan"]),
        (&planned(&format!("{SWEEP} 6")), &["--shards 9", "4 cells"]),
        (&planned("compare --frameworks quick"), &["`sweep` and `ab`"]),
        (&planned("sweep forward --frameworks none --rounds 1"), &["none"]),
    ]);
    assert!(!out.exists());
}

#[test]
fn machines_are_kept_apart_and_what_is_missing_is_told() {
    let installation = installation();
    let plan = plan(&installation, "--shards 2 --machines small,large", 1);
    let shards = ["0", "2", "3"].map(|shard| run(&installation, &plan, &format!("--shard {shard}"), shard));
    let merge = format!("shard merge {}", shards.join(" "));
    // A shard is missing.
    let merged = installation.run(&format!("{merge} --format json")).exits(1);
    assert!(merged.stderr.contains("small: ") && merged.stderr.contains("2 of 4 cells"), "{}", merged.stderr);
    assert!(merged.stderr.contains("shard 1"), "{}", merged.stderr);
    let machines = merged.json()["machines"].take();
    assert_eq!((&machines[0]["machine"], &machines[1]["machine"]), (&json!("small"), &json!("large")));
    assert_eq!(machines[1]["missing"], json!([]));
    let csv = installation.run(&format!("{merge} --format csv")).stdout;
    assert!(csv.starts_with("machine,model,"), "{csv}");
}
