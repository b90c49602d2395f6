//! The gate as CI uses it: a run against another, and a build against another in the same rounds.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Installation, Ran, array, lines, read, row};

/// Times with the noise of a quiet machine: 1 % between processes, 1 % between steps.
const QUIET: [(&str, &str); 5] = [
    ("token_ms", "10"),
    ("load_ms", "50"),
    ("process_noise", "0.01"),
    ("noise", "0.01"),
    ("clock", "scripted"),
];

/// With a run of one engine in its history.
fn measured() -> Installation {
    let installation = Installation::new().engine("one", &QUIET);
    installation.run("--frameworks one --rounds 8 --cold-load off").exits(0);
    installation
}

fn slowed(installation: Installation) -> Installation {
    installation.configured("one", &QUIET, "[settings]\nslowdown = 0.08\n")
}

/// Against the run before. The machine that tests share is not as fast in one run as in the next, which engines with a
/// scripted clock do not feel.
fn check(installation: &Installation, more: &str) -> Ran {
    installation.run(&format!("check --baseline latest --allow-different machine {more}"))
}

/// The slower frameworks, each with the metric. Loads begin with a start-up, which takes real time on a machine that tests
/// share.
fn regressions(document: &Value) -> Vec<(&str, &str)> {
    let findings = array(&document["findings"]).iter();
    let found = findings.filter(|finding| finding["verdict"] == "regression" && finding["metric"] != "load");
    found
        .map(|finding| (finding["framework"].as_str().unwrap(), finding["metric"].as_str().unwrap()))
        .collect()
}

/// The first token after loading is a step like any other.
const SLOWER: [(&str, &str); 5] = [
    ("one", "cold_start"),
    ("one", "first_token"),
    ("one", "latency"),
    ("one", "throughput"),
    ("one", "total"),
];

#[test]
fn a_slowdown_of_eight_percent_is_a_regression_wherever_the_two_runs_are_read_from() {
    let installation = slowed(measured());
    let ran = check(&installation, "--format json").exits(4);
    assert_eq!(regressions(&ran.json()), SLOWER);
    let [before, after] = <[_; 2]>::try_from(installation.all_results()).unwrap();
    let kept = std::fs::read_to_string(after.join("check.json")).unwrap();
    assert_eq!(kept, ran.stdout, "it is kept with the run");

    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let history = installation.path("results/history.jsonl");
    let [first, second] = [&before, &after].map(|path| path.join("report.json").display().to_string());
    for (baseline, current) in [
        (before.display().to_string(), after.display().to_string()),
        (first, "latest".into()),
        (format!("{}#{}", history.display(), name(&before)), name(&after)),
        // The one before that one.
        ("latest".into(), second),
    ] {
        let line = format!("check --baseline {baseline} --current {current} --allow-different machine");
        let found =
            Ran::output_of(&mut installation.guarded(&format!("{line} --format json"))).exits(4).json();
        assert_eq!(found["findings"], ran.json()["findings"], "{line}");
    }
    let table = installation.run("check --baseline latest --current latest --allow-different machine");
    assert!(table.exits(4).stdout.starts_with("regression: "), "the answer first");
    let line = format!("diff {} {} --format csv", after.display(), before.display());
    let improved = Ran::output_of(&mut installation.guarded(&line)).exits(0).stdout;
    assert!(
        improved.lines().any(|line| line.contains("throughput") && line.ends_with("better")),
        "{improved}"
    );
    mistakes(&installation);
    a_job_summary_is_added_to(&installation);
}

fn mistakes(installation: &Installation) {
    let [directory, model] =
        ["configs", "model/config.json"].map(|path| installation.path(path).display().to_string());
    let of = |baseline: &str| format!("check --baseline {baseline}");
    installation.refuses(&[
        ("check", &["--baseline"]),
        (&of("no/such/file.json"), &["no/such/file.json", "no such file"]),
        (&of(&directory), &[&directory, "is a directory"]),
        (&of("0000aaaa"), &["no run and no complete run of a commit"]),
        (&of("latest --threshold load"), &["percent"]),
        (&of(&model), &["no schema"]),
        (&of("latest --current latest --rounds 9"), &["nothing to act on"]),
    ]);
}

fn a_job_summary_is_added_to(installation: &Installation) {
    let summary = installation.path("summary.md");
    std::fs::write(&summary, "before\n").unwrap();
    let line = "check --baseline latest --current latest --allow-different machine --format github";
    let ran = Ran::output_of(installation.driver(line).env("GITHUB_STEP_SUMMARY", &summary)).exits(4);
    let annotates = |line: &str| line.starts_with("::error title=") && line.contains("throughput of one");
    assert!(ran.stdout.lines().any(annotates), "{}", ran.stdout);
    let text = std::fs::read_to_string(&summary).unwrap();
    assert!(text.starts_with("before\n## Performance\n\n**regression: "), "{text}");
    let refused = installation.run("check --baseline nothing --format github").exits(2);
    assert!(refused.stdout.starts_with("::error title="), "{}", refused.stdout);
}

#[test]
fn the_same_build_measured_again_passes_every_time() {
    let installation = measured();
    for time in 1..=3 {
        // Each against the one before it.
        let ran = check(&installation, "--cold-load off --rounds 6");
        assert_eq!(ran.code, Some(0), "time {time}: {}{}", ran.stdout, ran.stderr);
    }
    assert_eq!(installation.all_results().len(), 4);
    // A framework that fails now is exit 1.
    let installation = installation.engine("one", &[("fault", "crash"), ("fault_at", "3")]);
    let ran = check(&installation, "--format github").exits(1);
    assert!(ran.stdout.contains("::error title=one failed::"), "{}", ran.stdout);
}

#[test]
fn what_the_baseline_measured_is_measured_again() {
    let installation = Installation::new().engine("one", &QUIET).engine("two", &QUIET);
    installation.run("--frameworks one --rounds 7 --new-tokens 9 --no-jit");
    let ran = check(&installation, "--format json");
    assert!(ran.stderr.contains("rounds: 7, "), "{}", ran.stderr);
    assert!(ran.stderr.contains("jit: false, new_tokens: [9]"), "{}", ran.stderr);
    let document = ran.json();
    assert_eq!(document["findings"][0]["rounds"], json!([7, 7]), "{document}");
    assert!(document["findings"][0]["case"].as_str().unwrap().contains("no JIT"), "{document}");
    check(&installation, "--new-tokens 8").refused(&["--new-tokens: 9 (baseline), 8 (asked for)"]);
    assert_eq!(installation.all_results().len(), 2, "nothing was measured for it");
}

#[test]
fn another_machines_baseline_is_refused_before_anything_is_measured() {
    let installation = measured();
    check(&installation, "--rounds 5").refused(&["--rounds 5"]);
    let path = installation.path("results/history.jsonl");
    let mut record = lines(&std::fs::read_to_string(&path).unwrap()).remove(0);
    // Another machine's history: every fingerprint is another.
    record["machine"]["fingerprint"] = "another".into();
    record["machine"]["cpu"] = "Another Processor".into();
    std::fs::write(path, format!("{record}\n")).unwrap();
    let name = installation.results().file_name().unwrap().to_string_lossy().into_owned();
    let line = format!("check --baseline {name}");
    installation.refuses(&[
        (&line, &["Another Processor", "--allow-different machine"]),
        ("check --baseline latest", &["no complete run of this machine"]),
    ]);
    assert_eq!(installation.all_results().len(), 1, "nothing was measured");
    let allowed = installation.run(&format!("{line} --allow-different machine")).exits(0);
    assert!(allowed.stdout.contains("processor: Another Processor"), "{}", allowed.stdout);
}

#[test]
fn what_can_never_be_decided_is_refused_before_anything_is_measured() {
    let installation = Installation::new().engine("one", &QUIET);
    installation.run("--frameworks one --rounds 2 --cold-load off");
    check(&installation, "").refused(&["2 rounds", "--rounds 6"]);
    assert_eq!(installation.all_results().len(), 1, "nothing was measured");
}

#[cfg(target_os = "linux")]
#[test]
fn a_noisy_machine_is_not_measurable() {
    // A worker must be watched for half a second before the kernel's counters say anything.
    let installation = measured().engine("one", &[("load_ms", "900")]);
    let burner = crate::trust::Burner::new();
    let line = "check --baseline latest --rounds 6 --quiet-timeout 0s --allow-different machine";
    let ran = Ran::output_of(&mut installation.guarded(line));
    drop(burner);
    let told = ran.exits(3).stdout;
    assert!(told.contains("not measurable: the machine was too noisy in the current run"), "{told}");
}

mod interleaved {
    use super::*;
    use crate::common::program;

    /// A build of the mock's worker with its job, events and answer to `--hello` piped through these
    /// commands.
    fn build(installation: &Installation, name: &str, [job, events, hello]: [&str; 3]) -> String {
        let mock = program("engine-mock").display().to_string();
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = --hello ]; then\n  {mock} --hello | sed -u '{hello}'\nelse\n  \
             sed -u '{job}' | {mock} | sed -u '{events}'\nfi\n"
        );
        installation.script(&format!("{name}/engine-mock"), &script).parent().unwrap().display().to_string()
    }

    fn check(installation: &Installation, base: &str, more: &str) -> Ran {
        let model = installation.path("model").display().to_string();
        installation.run(&format!(
            "check --base-workers {base} --frameworks one --model {model} --rounds 8 --cold-load off {more}"
        ))
    }

    /// Builds may differ in the fields that rule R10 compares.
    #[test]
    fn a_build_is_held_against_another_in_the_same_rounds() {
        let installation = Installation::new().engine("one", &QUIET);
        let rustc = r#"s/"rustc":"[^"]*"/"rustc":"another"/"#;
        let same = build(&installation, "same", ["", rustc, ""]);
        std::fs::write(Path::new(&same).join("commit.txt"), "0123456789abcdef0123456789abcdef01234567")
            .unwrap();
        let told = check(&installation, &same, "").exits(0).stdout;
        assert!(told.contains("commit 012345678"), "kept workers are told by their commit: {told}");
        let faster = build(&installation, "faster", [r#"s/"token_ms":"10"/"token_ms":"9.2"/"#, "", ""]);
        let document = check(&installation, &faster, "--format json").exits(4).json();
        assert_eq!(document["kind"], "interleaved");
        assert!(regressions(&document).contains(&("one", "throughput")), "{document}");
        let report = read(&installation.all_results()[1].join("report.json"));
        let labels: Vec<&Value> = array(&report["rows"]).iter().map(|row| &row["framework"]).collect();
        assert_eq!(labels, ["one@base", "one"]);
        assert_eq!(report["floor"], json!([]), "two builds are no A/A control");
        // A program of the user's own, named by its path: the base is the file of the same name.
        let own = build(&installation, "own", ["", "", ""]) + "/engine-mock";
        let options: String =
            QUIET.iter().map(|(option, value)| format!("{option} = \"{value}\"\n")).collect();
        installation.of_worker("app", "mock", &own, &format!("[options]\n{options}"));
        let model = installation.path("model").display().to_string();
        let line = format!("check --base-workers {faster} --frameworks app --model {model} --rounds 8");
        let line = format!("{line} --cold-load off --format json");
        let document = installation.run(&line).exits(4).json();
        assert!(regressions(&document).contains(&("app", "throughput")), "{document}");
        // Of its six layouts one is faster, in the first round and in the seventh.
        let here = Path::new(&build(&installation, "here", ["", "", ""])).join("engine-mock");
        setup::layouts::make(&Path::new(&faster).join("engine-mock"), |_| Ok(here.clone())).unwrap();
        check(&installation, &faster, "").exits(0);
        let report = read(&installation.all_results().last().unwrap().join("report.json"));
        assert_eq!(report["plan"]["contenders"][0]["layouts"], 6);
        let mut figures = array(&row(&report, "one@base")["metrics"]).iter();
        let throughput = figures.find(|figure| figure["metric"] == "throughput").unwrap();
        let speeds: Vec<f64> =
            array(&throughput["values"]).iter().map(|value| value.as_f64().unwrap()).collect();
        let slowest_of_it = speeds[0].min(speeds[6]);
        assert!([1, 2, 3, 4, 5, 7].iter().all(|&round| speeds[round] < slowest_of_it), "{speeds:?}");
        let old = build(&installation, "old", ["", "", r#"s/"protocol":[0-9]*/"protocol":1/"#]);
        check(&installation, &old, "").refused(&["base's worker of one", "protocol 1", "--baseline"]);
        check(&installation, "no/such", "").refused(&["--base-workers no/such"]);
    }
}
