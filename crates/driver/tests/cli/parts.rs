//! A study in parts, and their measurements together.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Installation, Ran, array, lines, photofinish, read};

const SWEEP: &str = "sweep generate --frameworks quick,slow --prompt-tokens 4,6 --new-tokens 4 --seed 5 \
                     --rounds";

fn installation() -> Installation {
    Installation::new().timed("quick", &[("token_ms", "1")]).timed("slow", &[("token_ms", "2")])
}

/// Runs a part of the sweep, or all of it; returns its directory, which is moved to `place`.
fn run(installation: &Installation, part: &str, place: &str) -> String {
    installation.run(&format!("{SWEEP} 6 {part}")).exits(0);
    let to = installation.path(place);
    std::fs::rename(installation.results(), &to).unwrap();
    to.display().to_string()
}

fn report(directories: &str) -> Ran {
    Ran::output_of(&mut photofinish(&format!("report {directories}")))
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
fn parts_together_are_what_one_run_gives_and_what_cannot_be_put_together_is_told() {
    let installation = installation();
    let whole = read(&PathBuf::from(run(&installation, "", "whole")).join("report.json"));
    let [first, second] =
        ["1", "2"].map(|part| run(&installation, &format!("--cells {part}/2"), &format!("part-{part}")));
    let out = installation.path("out");
    let table = report(&format!("{second} {first} --output {}", out.display())).exits(0);
    assert!(table.stdout.contains("2 cells, 6 rounds each"), "{}", table.stdout);
    let together = read(&out.join("report.json"));
    assert_eq!(scripted(&together), scripted(&whole));
    let verdicts = array(&together["cells"][0]["verdicts"]);
    assert!(verdicts.iter().any(|verdict| verdict["verdict"] == "faster"), "{verdicts:?}");

    let cells = PathBuf::from(&first).join("cells.jsonl");
    let mut cell = lines(&std::fs::read_to_string(&cells).unwrap()).remove(0);
    std::fs::write(&cells, "").unwrap();
    let missing = report(&format!("{first} {second}")).exits(1);
    assert!(missing.stderr.contains("1 of 2 cells are there"), "{}", missing.stderr);
    cell["rows"][0]["metrics"]["latency"]["median"] = json!(1e308);
    report(&format!("{second} {second}")).refused(&["measured the same cell"]);
    std::fs::write(&cells, format!("{cell}\n")).unwrap();
    let model = installation.path("model");
    report(&format!("{first} {second}")).refused(&["cells.jsonl, line 1: latency of", "1e308 ms"]);
    report(&format!("{second} {}", model.display())).refused(&["is not of a study"]);
    installation.run(&format!("{SWEEP} 6 --cells 1/9")).refused(&["--cells 1/9", "2 cells"]);
    for wrong in ["0/4", "5/4", "1", "x/y"] {
        installation.run(&format!("{SWEEP} 6 --cells {wrong}")).refused(&["a part is I/N"]);
    }
}
