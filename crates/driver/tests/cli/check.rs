//! The gate as CI meets it: a run against another, and a build against another in the same rounds.

use std::path::PathBuf;

use serde_json::Value;

use crate::common::{Installation, Ran};

/// Times with the noise of a quiet machine: 1 % between processes, 1 % between steps.
const QUIET: [(&str, &str); 5] = [
    ("token_ms", "10"),
    ("load_ms", "50"),
    ("process_noise", "0.01"),
    ("noise", "0.01"),
    ("clock", "scripted"),
];
/// The machine that tests share is not as fast in one run as in the next, which engines with a scripted clock do
/// not feel.
const CHECK: [&str; 5] = ["check", "--baseline", "latest", "--allow-different", "machine"];

/// With a run of one engine in its history.
fn measured() -> Installation {
    let installation = Installation::new().engine("one", &QUIET);
    let ran = installation.run(&["--frameworks", "one", "--rounds", "8", "--cold-load", "off"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    installation
}

fn slowed(installation: Installation) -> Installation {
    installation.configured("one", &QUIET, "[settings]\nslowdown = 0.08\n")
}

fn check(installation: &Installation, more: &[&str]) -> Ran {
    installation.run(&[&CHECK[..], more].concat())
}

fn runs(installation: &Installation) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(installation.path("results")).unwrap();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

#[test]
fn a_slowdown_of_eight_percent_is_a_regression() {
    let installation = slowed(measured());
    let ran = check(&installation, &["--format", "json"]);
    assert_eq!(ran.code, Some(4), "{}{}", ran.stdout, ran.stderr);
    let document = ran.json();
    let regressed = |finding: &&Value| finding["verdict"] == "regression";
    let found: Vec<(&str, &str)> = document["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(regressed)
        .map(|finding| (finding["framework"].as_str().unwrap(), finding["metric"].as_str().unwrap()))
        .collect();
    // The first token after loading is a step like any other.
    assert_eq!(found, [("one", "cold_start"), ("one", "latency"), ("one", "throughput")], "{document}");
    let newest = runs(&installation).pop().unwrap();
    assert_eq!(
        std::fs::read_to_string(newest.join("check.json")).unwrap(),
        ran.stdout,
        "it is kept with the run"
    );
}

#[test]
fn the_same_build_measured_again_passes_twenty_times_of_twenty() {
    let installation = measured();
    for time in 1..=20 {
        // Each against the one before it.
        let ran = check(&installation, &["--cold-load", "off", "--rounds", "6"]);
        assert_eq!(ran.code, Some(0), "time {time}: {}{}", ran.stdout, ran.stderr);
    }
    assert_eq!(runs(&installation).len(), 21);
}

#[test]
fn what_the_baseline_measured_is_measured_again() {
    let installation = Installation::new().engine("one", &QUIET).engine("two", &QUIET);
    installation.run(&["--frameworks", "one", "--rounds", "7", "--new-tokens", "9", "--no-jit"]);
    let ran = check(&installation, &["--format", "json"]);
    assert!(ran.stderr.contains("measuring what") && ran.stderr.contains("rounds: 7, "), "{}", ran.stderr);
    assert!(ran.stderr.contains("jit: false, new_tokens: [9]"), "{}", ran.stderr);
    let document = ran.json();
    assert_eq!(document["findings"][0]["rounds"], serde_json::json!([7, 7]), "{document}");
    assert!(document["findings"][0]["case"].as_str().unwrap().contains("no JIT"), "{document}");
    let other = check(&installation, &["--new-tokens", "8"]);
    other.refused(&["another case than the baseline's: --new-tokens: 9 (baseline), 8 (asked for)"]);
    assert_eq!(runs(&installation).len(), 2, "nothing was measured for it");
}

#[test]
fn files_from_anywhere_are_judged_like_the_history() {
    let installation = slowed(measured());
    assert_eq!(check(&installation, &[]).code, Some(4));
    let [before, after] = <[PathBuf; 2]>::try_from(runs(&installation)).unwrap();
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let text = |path: PathBuf| path.display().to_string();
    let history = text(installation.path("results/history.jsonl"));
    let told = |baseline: &str, current: &str| {
        let arguments =
            ["check", "--baseline", baseline, "--current", current, "--allow-different", "machine"];
        let ran = Ran::from(installation.guarded(&arguments).output().unwrap());
        assert_eq!(ran.code, Some(4), "{baseline} {current}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.starts_with("regression: "), "the answer first: {}", ran.stdout);
        ran.stdout.lines().find(|line| line.contains("REGRESSION")).unwrap().to_owned()
    };
    let by_directory = told(&text(before.clone()), &text(after.clone()));
    assert_eq!(told(&text(before.join("report.json")), "latest"), by_directory);
    assert_eq!(told(&format!("{history}#{}", name(&before)), &name(&after)), by_directory);
    assert_eq!(told("latest", &text(after.join("report.json"))), by_directory, "the one before that one");
    let improved = Ran::from(
        installation.guarded(&["diff", &text(after), &text(before), "--format", "csv"]).output().unwrap(),
    );
    assert_eq!(improved.code, Some(0), "{}", improved.stderr);
    assert!(improved.stdout.lines().any(|line| line.contains("throughput") && line.ends_with("better")));
}

/// Another machine's history: every fingerprint is another.
fn of_another_machine(installation: &Installation) {
    let path = installation.path("results/history.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut record: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    record["machine"]["fingerprint"] = "another".into();
    record["machine"]["cpu"] = "Another Processor".into();
    std::fs::write(path, format!("{record}\n")).unwrap();
}

#[test]
fn another_machines_baseline_is_refused_before_anything_is_measured() {
    let installation = measured();
    of_another_machine(&installation);
    let name = runs(&installation)[0].file_name().unwrap().to_string_lossy().into_owned();
    let ran = installation.run(&["check", "--baseline", &name]);
    ran.refused(&["another machine's", "Another Processor", "--allow-different machine"]);
    assert_eq!(runs(&installation).len(), 1, "nothing was measured");
    installation.run(&["check", "--baseline", "latest"]).refused(&["no complete run of this machine"]);
    let allowed = installation.run(&["check", "--baseline", &name, "--allow-different", "machine"]);
    assert_eq!(allowed.code, Some(0), "{}{}", allowed.stdout, allowed.stderr);
    assert!(allowed.stdout.contains("NOT THE SAME: processor: Another Processor"), "{}", allowed.stdout);
}

#[test]
fn what_can_never_be_decided_is_refused_before_anything_is_measured() {
    let installation = Installation::new().engine("one", &QUIET);
    installation.run(&["--frameworks", "one", "--rounds", "2", "--cold-load", "off"]);
    check(&installation, &[]).refused(&["has 2 rounds, and a verdict takes 6", "--rounds 6 or more"]);
    assert_eq!(runs(&installation).len(), 1, "nothing was measured");
    let installation = measured();
    check(&installation, &["--rounds", "5"]).refused(&["--rounds 5 can decide nothing"]);
    assert_eq!(runs(&installation).len(), 1, "nothing was measured");
}

#[cfg(target_os = "linux")]
#[test]
fn a_noisy_machine_is_not_measurable() {
    // A worker must be watched for half a second before the kernel's counters say anything.
    let installation = Installation::new().engine("one", &[("load_ms", "900")]);
    installation.run(&["--frameworks", "one", "--rounds", "6", "--cold-load", "off"]);
    let burner = crate::trust::Burner::new();
    let arguments = ["check", "--baseline", "latest", "--patience", "0", "--allow-different", "machine"];
    let mut slow = installation.guarded(&arguments);
    let ran = Ran::from(slow.output().unwrap());
    drop(burner);
    assert_eq!(ran.code, Some(3), "{}{}", ran.stdout, ran.stderr);
    assert!(
        ran.stdout.contains("not measurable: the machine was too noisy in the current run"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_framework_that_fails_now_is_exit_one() {
    let installation = measured().engine("one", &[("fault", "crash"), ("fault_at", "3")]);
    let ran = check(&installation, &["--format", "github"]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("::error title=one failed::"), "{}", ran.stdout);
}

#[test]
fn a_job_summary_is_added_to() {
    let installation = slowed(measured());
    let summary = installation.path("summary.md");
    std::fs::write(&summary, "before\n").unwrap();
    let mut command = installation.driver(&[&CHECK[..], &["--format", "github"]].concat());
    let ran = Ran::from(command.env("GITHUB_STEP_SUMMARY", &summary).output().unwrap());
    assert_eq!(ran.code, Some(4), "{}{}", ran.stdout, ran.stderr);
    let annotation =
        "::error title=Performance regression%3A throughput of one::one: throughput regressed: -";
    assert!(ran.stdout.contains(annotation), "{}", ran.stdout);
    let text = std::fs::read_to_string(&summary).unwrap();
    assert!(
        text.starts_with("before\n## Performance\n\n**regression: cold start of one, throughput of one**"),
        "{text}"
    );
    let refused = installation.run(&["check", "--baseline", "nothing", "--format", "github"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stdout.starts_with("::error title=Performance check refused::"), "{}", refused.stdout);
}

#[test]
fn mistakes_are_told_in_a_sentence() {
    let installation = measured();
    let check = |arguments: &[&str]| installation.run(&[&["check"], arguments].concat());
    check(&[]).refused(&["--baseline"]);
    check(&["--baseline", "no/such/file.json"]).refused(&["no/such/file.json", "no such file"]);
    let directory = installation.path("configs").display().to_string();
    check(&["--baseline", &directory]).refused(&[
        &directory,
        "is a directory",
        "name the directory of one run",
    ]);
    check(&["--baseline", "0000aaaa"]).refused(&["holds no run and no complete run of a commit"]);
    check(&["--baseline", "latest", "--threshold", "load"]).refused(&["percent"]);
    let model = installation.path("model/config.json").display().to_string();
    check(&["--baseline", &model]).refused(&["names no schema"]);
    let current = ["--baseline", "latest", "--current", "latest", "--rounds", "9"];
    check(&current).refused(&["nothing to act on"]);
}

#[cfg(unix)]
mod interleaved {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn mock() -> String {
        let mock = assert_cmd::cargo::cargo_bin("photofinish").with_file_name("engine-mock");
        assert!(mock.is_file(), "build the mock first: cargo build --release -p engine-mock");
        mock.display().to_string()
    }

    /// A build of the mock's worker whose job and answers go through these.
    fn build(installation: &Installation, name: &str, job: &str, hello: &str) -> PathBuf {
        let directory = installation.path(name);
        std::fs::create_dir(&directory).unwrap();
        let (mock, worker) = (mock(), directory.join("engine-mock"));
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = --hello ]; then\n  {mock} --hello | sed -u '{hello}'\nelse\n  sed -u '{job}' | {mock}\nfi\n"
        );
        std::fs::write(&worker, script).unwrap();
        std::fs::set_permissions(&worker, std::fs::Permissions::from_mode(0o755)).unwrap();
        directory
    }

    fn check(installation: &Installation, base: &Path, more: &[&str]) -> Ran {
        let model = installation.path("model").display().to_string();
        let base = base.display().to_string();
        let arguments =
            ["check", "--base-workers", &base, "--frameworks", "one", "--model", &model, "--rounds", "8"];
        installation.run(&[&arguments[..], &["--cold-load", "off"], more].concat())
    }

    #[test]
    fn a_build_is_held_against_another_in_the_same_rounds() {
        let installation = Installation::new().engine("one", &QUIET);
        let faster = build(&installation, "faster", r#"s/"token_ms":"10"/"token_ms":"9.2"/"#, "");
        let same = build(&installation, "same", "", "");
        let ran = check(&installation, &same, &[]);
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        let ran = check(&installation, &faster, &["--format", "json"]);
        assert_eq!(ran.code, Some(4), "{}{}", ran.stdout, ran.stderr);
        let document = ran.json();
        assert_eq!(
            (document["kind"].as_str(), document["findings"][3]["verdict"].as_str()),
            (Some("interleaved"), Some("regression"))
        );
        let report = std::fs::read_to_string(runs(&installation)[1].join("report.json")).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        let labels: Vec<&str> =
            report["rows"].as_array().unwrap().iter().map(|row| row["framework"].as_str().unwrap()).collect();
        assert_eq!(labels, ["one@base", "one"]);
        assert_eq!(report["floor"], serde_json::json!([]), "two builds are no A/A control");
    }

    #[test]
    fn builds_may_differ_in_what_rule_r10_asks_to_be_equal() {
        let installation = Installation::new().engine("one", &QUIET);
        let other = build(&installation, "other", "", "");
        let path = other.join("engine-mock");
        let script = std::fs::read_to_string(&path).unwrap();
        std::fs::write(
            &path,
            script.replace(
                &format!("| {}", mock()),
                &format!("| {} | sed -u 's/\"rustc\":\"[^\"]*\"/\"rustc\":\"another\"/'", mock()),
            ),
        )
        .unwrap();
        let ran = check(&installation, &other, &[]);
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    }

    #[test]
    fn a_base_of_another_protocol_costs_a_sentence() {
        let installation = Installation::new().engine("one", &QUIET);
        let old = build(&installation, "old", "", r#"s/"protocol":[0-9]*/"protocol":1/"#);
        let ran = check(&installation, &old, &[]);
        ran.refused(&["the base's worker of one", "protocol 1", "--baseline"]);
        check(&installation, Path::new("no/such"), &[]).refused(&["--base-workers no/such"]);
    }

    #[test]
    fn kept_workers_are_told_by_their_commit() {
        let installation = Installation::new().engine("one", &QUIET);
        let same = build(&installation, "same", "", "");
        std::fs::write(same.join("commit.txt"), "0123456789abcdef0123456789abcdef01234567").unwrap();
        let ran = check(&installation, &same, &[]);
        assert!(ran.stdout.contains("the workers of commit 012345678, in the same rounds"), "{}", ran.stdout);
    }
}
