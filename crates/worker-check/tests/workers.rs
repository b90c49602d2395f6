//! Whole workers, held against the protocol: the mock in Rust, the references' worker in Python, and the one of
//! `docs/adding-an-engine.md`, whole and broken in many ways.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use bundle::{Bundle, Precision};
use measure::worker::Worker;
use worker_check::{Held, Outcome, Phase, Subject, check};

const PAGE: &str = "docs/adding-an-engine.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Directory of the binaries that cargo has built.
fn binaries() -> PathBuf {
    assert_cmd::cargo::cargo_bin("photofinish").parent().unwrap().to_owned()
}

/// The model that the command takes, too.
fn bundle() -> Bundle {
    static BUNDLES: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, directory) = BUNDLES.get_or_init(|| {
        let bundles = tempfile::tempdir().unwrap();
        let request = prepare::Request {
            source: prepare::Source::parse("synthetic:llama-tiny"),
            name: None,
            precisions: vec![Precision::F32],
            bundles: bundles.path().to_owned(),
            progress: prepare::Progress::Silent,
        };
        let directory = prepare::prepare(&request).unwrap();
        (bundles, directory)
    });
    Bundle::open(directory).unwrap()
}

/// A worker with the environment that the driver gives, and `path` in front of its PATH.
fn worker(binary: PathBuf, path: &[PathBuf], timeout: Duration) -> Worker {
    let mut environment = measure::launch::environment(2, plan::HugePages::On);
    let others = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::join_paths(path.iter().cloned().chain(std::env::split_paths(&others))).unwrap();
    environment.insert("PATH".into(), all.into_string().unwrap());
    Worker { binary, environment, own_caches: Vec::new(), cpus: None, timeout }
}

fn checked(worker: &Worker) -> (Held, Vec<Phase>) {
    let bundle = bundle();
    let subject = Subject {
        worker,
        bundle: &bundle,
        precision: Precision::F32,
        device: "cpu",
        threads: 2,
        jit: true,
        options: BTreeMap::new(),
    };
    let mut phases = Vec::new();
    let held = check(&subject, |phase| phases.push(phase.clone())).unwrap();
    (held, phases)
}

fn text(phases: &[Phase]) -> String {
    phases.iter().map(|phase| format!("{phase}\n")).collect()
}

#[test]
fn the_mock_holds() {
    let mock = binaries().join("engine-mock");
    assert!(mock.is_file(), "build it first: cargo build --release -p engine-mock");
    let (held, phases) = checked(&worker(mock, &[], Duration::from_secs(60)));
    assert!(held.all() && held.declined == 0, "{}", text(&phases));
}

#[test]
fn the_references_worker_in_python_holds_and_declines_the_probe() {
    let directory = tempfile::tempdir().unwrap();
    let launcher = directory.path().join("worker");
    let sources = root().join("references/python");
    let script = format!(
        "#!/bin/sh\nPYTHONPATH={} exec python3 -B -m reference_worker fake \"$@\"\n",
        sources.display()
    );
    std::fs::write(&launcher, script).unwrap();
    std::fs::set_permissions(&launcher, PermissionsExt::from_mode(0o755)).unwrap();
    let (held, phases) = checked(&worker(launcher, &[], Duration::from_secs(60)));
    assert!(held.all() && held.declined == 1, "{}", text(&phases));
    assert!(
        text(&phases).contains("probe     declined, which it may: unsupported: the machine"),
        "{}",
        text(&phases)
    );
}

#[test]
fn what_is_no_program_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("worker.py");
    std::fs::write(&file, "print('hello')\n").unwrap();
    let (_, phases) = checked(&worker(file.clone(), &[], Duration::from_secs(5)));
    assert!(text(&phases).contains("make it executable: chmod +x"), "{}", text(&phases));
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    let (held, phases) = checked(&worker(file, &[], Duration::from_secs(5)));
    assert!(text(&phases).contains("#!/usr/bin/env python3"), "{}", text(&phases));
    assert_eq!((held.broken, held.not_tried), (1, 9));
}

/// The worker of the page.
fn of_page() -> String {
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let between = page.split_once("<!-- worker: begin -->").unwrap().1;
    let between = between.split_once("<!-- worker: end -->").unwrap().0;
    between.trim().strip_prefix("```python\n").unwrap().strip_suffix("```").unwrap().to_owned()
}

/// Directory of a python with numpy and safetensors: the one that `cargo xtask test` sets up, or the user's.
fn python() -> Vec<PathBuf> {
    let set_up = binaries().with_file_name("readers").join("bin");
    let path = [std::env::var_os("PHOTOFINISH_PYTHON").map(PathBuf::from), Some(set_up)];
    let found: Vec<PathBuf> =
        path.into_iter().flatten().filter(|path| path.join("python3").is_file()).collect();
    let python = found.first().map_or_else(|| PathBuf::from("python3"), |path| path.join("python3"));
    #[expect(clippy::disallowed_methods, reason = "a test looks for python3")]
    let ran = std::process::Command::new(&python).args(["-c", "import numpy, safetensors"]).output();
    let works = ran.is_ok_and(|ran| ran.status.success());
    assert!(
        works,
        "{} has no numpy and safetensors: `cargo xtask test` installs them, or name the bin directory of a virtual \
         environment in PHOTOFINISH_PYTHON",
        python.display()
    );
    found
}

#[test]
fn the_sampler_of_masked_diffusion_chooses_by_its_rules() {
    let python = python().first().map_or_else(|| PathBuf::from("python3"), |path| path.join("python3"));
    #[expect(clippy::disallowed_methods, reason = "the rules are tested by a program of their own")]
    let mut tests = std::process::Command::new(python);
    tests.args(["-B", "-m", "unittest", "discover", "-p", "test_denoise.py", "-s"]);
    let ran = tests.arg(root().join("references/python/tests")).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && !told.contains("skipped"), "{told}");
}

/// Checks the page's worker with these pieces of its text replaced, and returns what is said.
fn patched(patches: &[(&str, &str)], timeout: Duration) -> (Held, Vec<Phase>) {
    let mut text = of_page();
    for (old, new) in patches {
        assert_eq!(text.matches(old).count(), 1, "the page's worker should have {old:?} once");
        text = text.replace(old, new);
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("worker.py");
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    checked(&worker(file, &python(), timeout))
}

#[test]
fn the_worker_of_the_page_holds() {
    let (held, phases) = patched(&[], Duration::from_secs(60));
    assert!(held.all(), "{}", text(&phases));
    assert!(phases[..4].iter().all(|phase| matches!(phase.outcome, Outcome::Holds(_))), "{}", text(&phases));
    assert!(of_page().lines().count() < 100, "the page shows a short worker");
}

/// What is said of the worker when it is broken by these replacements: all of `said`, in one line.
fn breaks(patches: &[(&str, &str)], said: &[&str]) {
    let (held, phases) = patched(patches, Duration::from_secs(60));
    assert!(!held.all());
    let text = text(&phases);
    let is_said = text.lines().any(|line| said.iter().all(|part| line.contains(part)));
    assert!(is_said, "no line says {said:?}:\n{text}");
}

#[test]
fn a_field_of_another_type_is_named() {
    let build = r#""build": {"profile": "release", "toolchain": f"CPython {sys.version.split()[0]}"}"#;
    breaks(
        &[(build, r#""build": "release""#)],
        &["line 1, `build`: expected an object", "send {\"profile\""],
    );
}

#[test]
fn seconds_in_the_place_of_nanoseconds_are_named() {
    breaks(
        &[("from time import monotonic_ns as now", "from time import monotonic as now")],
        &["`runtime_ns`: expected a whole number, 0 or more, found the number"],
    );
}

#[test]
fn a_missing_field_is_named() {
    breaks(
        &[("memory=memory(), wall_ns=wall_ns,", "memory=memory(),")],
        &["`wall_ns`: missing: expected a whole number"],
    );
}

#[test]
fn a_missing_event_is_named() {
    let started = "    send(\"started\", runtime_ns=now() - BEGAN, memory=memory())\n";
    breaks(&[(started, "")], &["line 2: `loaded` comes before `started`, or `started` is missing"]);
}

#[test]
fn a_wrong_order_is_named() {
    let cold = "    send(\"cold_start\", first_token_ns=cold[\"first_token_ns\"], gaps_ns=cold[\"gaps_ns\"], memory=memory())\n";
    let warm = "    send(\"warmup\", iterations=iterations, settled=False, memory=memory())\n";
    breaks(&[(cold, ""), (warm, &format!("{warm}{cold}"))], &["line 4: `warmup` comes before `cold_start`"]);
}

#[test]
fn an_answer_for_another_case_is_named() {
    breaks(
        &[(r#"send("sample", case=turn["case"], **sample)"#, r#"send("sample", case=0, **sample)"#)],
        &["line 7, `case`: 0, but turn 2 asked for case 1"],
    );
}

#[test]
fn too_few_tokens_are_named() {
    breaks(
        &[(r#"np.transpose(tokens).tolist()"#, r#"np.transpose(tokens)[:, 1:].tolist()"#)],
        &["`iterations[0].cases[0].tokens[0]`: 2 tokens, but 3 were asked for"],
    );
}

#[test]
fn a_count_of_gaps_that_does_not_fit_is_named() {
    breaks(
        &[("first, *gaps = ", "first, *gaps = [1] + ")],
        &["gaps_ns`: 3 gaps for 3 new tokens", "2 in all"],
    );
}

#[test]
fn a_cold_start_that_ends_at_its_first_token_is_named() {
    breaks(
        &[("cold = request(cases[0], count)", "cold = request(cases[0], 1)")],
        &["line 4, `gaps_ns`: 0 gaps for 3"],
    );
}

#[test]
fn a_time_of_zero_is_named() {
    breaks(
        &[(r#"{"first_token_ns": first, "#, r#"{"first_token_ns": 0, "#)],
        &["line 4, `first_token_ns`: 0 ns is impossible", "time.monotonic_ns()"],
    );
}

#[test]
fn a_time_longer_than_what_passed_is_named() {
    breaks(
        &[(r#"{"first_token_ns": first, "#, r#"{"first_token_ns": first * 10**9, "#)],
        &["`first_token_ns`:", "is impossible: the driver saw"],
    );
}

#[test]
fn two_answers_to_one_turn_are_named() {
    let sample = r#"        send("sample", case=turn["case"], **sample)"#;
    breaks(&[(sample, &format!("{sample}\n{sample}"))], &["line 7: a second answer to turn 1"]);
}

#[test]
fn output_that_is_not_flushed_is_named() {
    let (held, phases) = patched(&[("file=out, flush=True", "file=out")], Duration::from_secs(5));
    let text = text(&phases);
    assert!(
        !held.all() && text.contains("the lines lay in a buffer; flush stdout after every line"),
        "{text}"
    );
}

#[test]
fn a_worker_that_waits_for_something_else_is_named() {
    let patch = ("    cases, count, wall_ns = ", "    sys.stdin.read()\n    cases, count, wall_ns = ");
    let (held, phases) = patched(&[patch], Duration::from_secs(5));
    let text = text(&phases);
    assert!(!held.all() && text.contains("`cold_start` did not come within 5 s"), "{text}");
}

#[test]
fn chatter_on_stdout_is_named() {
    let patch = (
        "    weights = load_file(file)\n",
        "    weights = load_file(file)\n    print('Loading …', file=out)\n",
    );
    breaks(&[patch], &["line 3: not a JSON object: \"Loading …\"", "print everything else to stderr"]);
}

#[test]
fn an_exit_code_is_named() {
    let (held, phases) = patched(
        &[("        send(\"done\")\n", "        send(\"done\")\n        os._exit(3)\n")],
        Duration::from_secs(60),
    );
    let text = text(&phases);
    assert!(!held.all() && text.contains("exit code 3 after `done`; exit with 0"), "{text}");
}

#[test]
fn a_failure_that_is_not_told_is_named() {
    let told =
        "    send(\"failed\", kind=kind, reason=f\"{type(error).__name__}: {error}\")\n    sys.exit(1)\n";
    breaks(
        &[(told, "    raise\n")],
        &[
            "`hello` did not come: it ended with exit code 1",
            "NotImplementedError",
            "send {\"event\": \"failed\"",
        ],
    );
}

#[test]
fn a_parity_file_of_another_shape_is_named() {
    breaks(
        &[("logits(ids)[:, kept:].copy()", "logits(ids)[:, kept + 1:].copy()")],
        &["case.0 in the file has shape [1, 7, 256]", "here [1, 8, 256]"],
    );
}

#[test]
fn tokens_that_are_not_its_own_choice_are_named() {
    breaks(
        &[("logits(feed)[:, -1].argmax(-1)", "logits(feed)[:, -1].argmin(-1)")],
        &["`file`: its logits choose token", "but request 0 answered"],
    );
}

#[test]
fn another_precision_than_asked_is_named() {
    breaks(
        &[(r#"IN_EFFECT = {"precision": "f32""#, r#"IN_EFFECT = {"precision": "f16""#)],
        &["line 3, `in_effect.precision`: \"f16\", but the job asked for \"f32\""],
    );
}

#[test]
fn a_hash_that_was_asked_for_and_not_sent_is_named() {
    breaks(
        &[(r#".hexdigest() if turn["hash"] else None"#, r#".hexdigest() if False else None"#)],
        &["`weights_sha256`: null, but the turn asked for it"],
    );
}
