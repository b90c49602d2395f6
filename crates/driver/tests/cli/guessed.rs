//! Commands and spellings that people guess: they work, or one sentence says what to type.

use serde_json::json;

use crate::common::{Installation, Ran, photofinish};

#[test]
fn names_are_listed_and_a_slip_of_the_pen_is_answered_with_the_nearest() {
    let installation = Installation::new().engine("quick", &[]).engine("steady", &[]);
    let run = |line: &str| {
        let mut command = photofinish(line);
        Ran::output_of(command.arg("--configs").arg(installation.path("configs")))
    };
    let listed = run("list frameworks --format json").exits(0).json();
    let names: Vec<_> = listed["frameworks"].as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["quick", "steady"]);
    let all = run("list").exits(0).stdout;
    assert!(all.contains("steady") && all.contains("default"), "{all}");
    run("suites").refused(&["write `list suites` in place of `suites`"]);
    installation.refuses(&[
        ("--frameworks stedy", &["did you mean steady?", "photofinish list frameworks"]),
        ("--frameworks xyz", &["there are quick, steady"]),
    ]);
}

#[test]
fn the_doctor_answers_first_and_names_a_remedy_for_what_cannot_run() {
    let installation = Installation::new().engine("one", &[]);
    let absent = "framework = \"none\"\nworker = \"engine-none\"\nsummary = \"\"\n";
    std::fs::write(installation.path("configs/engines/none.toml"), absent).unwrap();
    let mut command = photofinish("doctor");
    command.arg("--configs").arg(installation.path("configs"));
    let workers = crate::common::program("engine-mock").parent().unwrap().to_path_buf();
    let ran = Ran::output_of(command.arg("--workers").arg(workers)).exits(1);
    assert!(ran.stdout.starts_with("mock can run here; none cannot: remedies below\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("to fix it: cargo xtask build --frameworks none"), "{}", ran.stdout);
}

#[test]
fn an_output_file_gets_the_format_of_its_ending_whole_or_not_at_all() {
    let installation = Installation::new().engine("one", &[]);
    let file = installation.path("table.md");
    let ran = installation.run(&format!("-q --frameworks one --rounds 1 -n 2 -t 1 -o {}", file.display()));
    let ran = ran.exits(0);
    assert!(ran.stdout.is_empty() && std::fs::read_to_string(&file).unwrap().contains("| Model Load"));
    let nowhere = installation.path("absent/table.md");
    let line = format!("--frameworks one -o {}", nowhere.display());
    installation.refuses(&[(&line, &["cannot write", "there is no directory"])]);
}

#[test]
fn other_spellings_get_a_hint_and_times_have_units() {
    let installation = Installation::new().engine("one", &[]);
    let line = "--frameworks one --time-budget 90s --margin 3% --fair-comparison --dry-run --format json";
    let request = &installation.run(line).exits(0).json()["request"];
    assert_eq!((&request["time_budget_min"], &request["margin_percent"]), (&json!(1.5), &json!(3.0)));
    installation.refuses(&[
        ("--dtype f32", &["write `--precision` in place of `--dtype`"]),
        ("--fair-comparison=false", &["write `--allow-unfair` in place of `--fair-comparison`"]),
    ]);
}

#[test]
fn the_newest_page_is_opened_by_its_path() {
    let installation = Installation::new().engine("one", &[]);
    let open = || {
        let mut command = photofinish("open");
        // Without a desktop the path is still printed.
        Ran::output_of(command.env("PATH", "").arg("--results-dir").arg(installation.path("results")))
    };
    open().refused(&["no results in"]);
    installation.run("--frameworks one --rounds 1 --iterations 1").exits(0);
    let ran = open().exits(0);
    assert_eq!(ran.stdout.trim_end(), installation.results().join("report.html").to_str().unwrap());
    assert!(ran.stderr.contains("open the file above in a browser"), "{}", ran.stderr);
}
