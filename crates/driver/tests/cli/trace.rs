//! `trace` as it is typed, on the mock.

use serde_json::Value;

use crate::common::Installation;

fn installation() -> Installation {
    Installation::new().engine("plain", &[]).engine("profiled", &[("profiler", "true")])
}

/// Traces into the installation's directory, and reads the file.
fn traced(installation: &Installation, framework: &str) -> Value {
    let file = installation.path("trace.json");
    let line = format!(
        "profile --trace --framework {framework} --prompt-tokens 3 --new-tokens 4 --output {}",
        file.display()
    );
    let told = installation.run(&line).exits(0).stdout;
    assert!(told.contains("no time in it is a measurement"), "{told}");
    let text = std::fs::read_to_string(file).unwrap();
    // The rules of the format; each is broken in the tests of `render::trace`.
    let checked = render::trace::check(&text).unwrap();
    assert_eq!(checked.tokens, 1 + 4 + 4);
    serde_json::from_str(&text).unwrap()
}

/// Names of the events on a track, `process` and `track` by number.
fn names(trace: &Value, process: u64, track: u64) -> Vec<String> {
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let here = events.filter(|event| event["ph"] == "X" && event["pid"] == process && event["tid"] == track);
    here.map(|event| event["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_trace_holds_phases_requests_tokens_and_the_profiler_s_events_and_is_no_result() {
    let installation = installation();
    let trace = traced(&installation, "profiled");
    let phases = ["start-up", "load", "profiler start", "cold start", "warm-up", "request"];
    assert_eq!(names(&trace, 1, 1), phases);
    assert_eq!(names(&trace, 1, 2), phases[3..]);
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

    let plain = traced(&installation, "plain");
    assert_eq!(plain["otherData"]["profiler"], "none");
    assert!(plain["otherData"]["notes"].as_str().unwrap().contains("no profiler"), "{plain}");
    assert_eq!(names(&plain, 2, 1), [""; 0]);

    let history = installation.run("history").stdout;
    assert!(!history.contains("profiled"), "{history}");
    assert!(installation.all_results().is_empty());
    let left = std::fs::read_dir(installation.path(".")).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.starts_with(".trace-")), "{left:?}");
}

#[test]
fn a_reference_in_python_is_traced_alike() {
    let installation = crate::references::installation("[options]\nprofiler = \"CLOCK_REALTIME\"\n");
    let trace = traced(&installation, "theirs");
    assert_eq!(names(&trace, 2, 1), vec!["layer 0 mlp: sleep"; 9]);
    assert_eq!(trace["otherData"]["notes"], "What it sleeps is all that it does.");
}

#[test]
fn mistakes_are_told_in_a_sentence_before_anything_is_run() {
    let installation = installation();
    installation.of_worker("absent", "mock", "engine-absent", "");
    for (line, output, said) in [
        ("--framework plain", "results", "results: it is a directory"),
        ("--framework plain", "no/such/directory/trace.json", "no/such/directory/trace.json"),
        ("--framework nobody", "trace.json", "nobody"),
        ("--framework plain --new-tokens 0", "trace.json", "--new-tokens"),
        ("--framework plain --prompt-tokens 60", "trace.json", "context of 64 tokens"),
        ("", "trace.json", "--framework"),
        // The same message as in other commands.
        ("--framework absent", "trace.json", "absent cannot run here: "),
    ] {
        let line = format!("trace {line} --output {}", installation.path(output).display());
        installation.refuses(&[(&line, &[said])]);
    }
    assert!(!installation.path("trace.json").exists());
}
