//! `trace` as it is typed, on the mock.

use serde_json::Value;

use crate::common::{Installation, Ran};

fn installation() -> Installation {
    Installation::new().engine("plain", &[]).engine("profiled", &[("profiler", "true")])
}

/// Traces into the installation's directory, and reads the file.
fn traced(installation: &Installation, framework: &str) -> (Ran, Value) {
    let file = installation.path("trace.json");
    let output = file.to_str().unwrap();
    let ran = installation.run(&[
        "trace",
        "--framework",
        framework,
        "--prompt-tokens",
        "3",
        "--new-tokens",
        "4",
        "--output",
        output,
    ]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let text = std::fs::read_to_string(file).unwrap();
    // The rules of the format; each is broken in the tests of `render::trace`.
    let checked = render::trace::check(&text).unwrap();
    assert_eq!(checked.tokens, 1 + 4 + 4);
    (ran, serde_json::from_str(&text).unwrap())
}

/// Names of the events on a track, `process` and `track` by number.
fn names(trace: &Value, process: u64, track: u64) -> Vec<String> {
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let here = events.filter(|event| event["ph"] == "X" && event["pid"] == process && event["tid"] == track);
    here.map(|event| event["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_trace_holds_phases_requests_tokens_and_the_profiler_s_events() {
    let (ran, trace) = traced(&installation(), "profiled");
    assert_eq!(
        names(&trace, 1, 1),
        ["start-up", "load", "profiler start", "cold start", "warm-up", "request"]
    );
    assert_eq!(names(&trace, 1, 2), ["cold start", "warm-up", "request"]);
    let request = ["prefill", "decode 1", "decode 2", "decode 3"];
    assert_eq!(names(&trace, 1, 3), [&["prefill"], &request[..], &request].concat());
    let profile = names(&trace, 2, 1);
    let appends = profile.iter().filter(|name| *name == "append").count();
    assert_eq!(appends, 1 + 4 + 4, "one a token: {profile:?}");
    assert!(profile.contains(&"layer 0 attention: wait".to_owned()), "{profile:?}");
    assert_eq!(trace["displayTimeUnit"], "ms");
    let about = &trace["otherData"];
    assert_eq!((&about["framework"], &about["precision"]), (&"profiled".into(), &"f32".into()));
    let clock = about["profiler's clock"].as_str().unwrap();
    assert!(clock.starts_with("CLOCK_REALTIME, known to within"), "{clock}");
    assert!(
        ran.stdout.contains("9 tokens of mock, 45 events of the mock's profiler beside them"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("no time in it is a measurement"), "{}", ran.stdout);
}

#[test]
fn a_framework_without_a_profiler_says_so_in_a_sentence() {
    let (ran, trace) = traced(&installation(), "plain");
    let sentence = "The mock has no profiler unless its script says so.";
    assert_eq!(
        (&trace["otherData"]["profiler"], &trace["otherData"]["notes"]),
        (&"none".into(), &sentence.into())
    );
    assert!(ran.stdout.contains(sentence), "{}", ran.stdout);
    assert_eq!(names(&trace, 2, 1), [""; 0]);
}

#[cfg(unix)]
#[test]
fn a_reference_in_python_is_traced_alike() {
    let installation = crate::references::installation("[options]\nprofiler = \"CLOCK_REALTIME\"\n");
    let (_, trace) = traced(&installation, "theirs");
    assert_eq!(names(&trace, 2, 1), vec!["layer 0 mlp: sleep"; 9]);
    assert_eq!(trace["otherData"]["notes"], "What it sleeps is all that it does.");
}

#[test]
fn nothing_of_a_trace_is_in_the_history_or_among_results() {
    let installation = installation();
    traced(&installation, "profiled");
    let ran = installation.run(&["history"]);
    assert!(!ran.stdout.contains("profiled"), "{}", ran.stdout);
    assert_eq!(std::fs::read_dir(installation.path("results")).unwrap().count(), 0);
    let left = std::fs::read_dir(installation.path(".")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.starts_with(".trace-")), "{left:?}");
}

#[test]
fn mistakes_are_told_in_a_sentence_before_anything_is_run() {
    let installation = installation();
    let at = |path: &str| installation.path(path).display().to_string();
    let trace = |arguments: &[&str]| installation.run(&[&["trace"], arguments].concat());
    trace(&["--framework", "plain", "--output", &at("results")])
        .refused(&["cannot write", "results: it is a directory; name a file"]);
    trace(&["--framework", "plain", "--output", &at("no/such/directory/trace.json")])
        .refused(&["cannot write", "no/such/directory/trace.json: No such file"]);
    trace(&["--framework", "nobody", "--output", &at("trace.json")]).refused(&["nobody"]);
    trace(&["--framework", "plain", "--new-tokens", "0", "--output", &at("trace.json")])
        .refused(&["--new-tokens"]);
    trace(&["--framework", "plain", "--prompt-tokens", "60", "--output", &at("trace.json")])
        .refused(&["exceed the model's context of 64 tokens"]);
    trace(&[]).refused(&["--framework"]);
    assert!(!installation.path("trace.json").exists());
}

#[test]
fn a_framework_that_is_not_built_is_told_as_other_commands_tell_it() {
    let installation = Installation::new();
    let absent = "framework = \"mock\"\nworker = \"engine-absent\"\nsummary = \"\"\n";
    std::fs::write(installation.path("configs/engines/absent.toml"), absent).unwrap();
    let output = installation.path("trace.json").display().to_string();
    installation
        .run(&["trace", "--framework", "absent", "--output", &output])
        .refused(&["absent cannot run here: there is no worker at"]);
}

#[test]
fn the_help_says_what_it_writes() {
    let ran = Ran::from(
        assert_cmd::Command::cargo_bin("photofinish").unwrap().args(["trace", "-h"]).output().unwrap(),
    );
    insta::assert_snapshot!(ran.stdout);
}
