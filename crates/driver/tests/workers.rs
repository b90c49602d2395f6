//! Whole workers, checked against the protocol: the mock in Rust, the references' worker in Python, and the one of
//! `examples`, whole and broken in many ways.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use bundle::{Bundle, Precision};
use comparison::plan::{self, Failure};
use driver::measure::worker::Worker;
use driver::worker_check::{Outcome, Subject, check, conclusion};

const EXAMPLE: &str = "examples/worker.py";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Directory of the binaries that cargo has built.
fn binaries() -> PathBuf {
    assert_cmd::cargo::cargo_bin("photofinish").parent().unwrap().to_owned()
}

/// The model, which the command uses, too.
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

/// A worker with the environment of the driver, and `path` in front of its PATH.
fn worker(binary: PathBuf, path: &[PathBuf], timeout: Duration) -> Worker {
    let mut environment = driver::measure::worker::environment(2, plan::HugePages::On);
    let others = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::join_paths(path.iter().cloned().chain(std::env::split_paths(&others))).unwrap();
    environment.insert("PATH".into(), all.into_string().unwrap());
    Worker::new(binary, environment, timeout)
}

/// The lines of all phases and the conclusion, or of the phases up to the first that is broken.
fn checked(worker: &Worker, reference: Option<&Worker>, is_to_the_end: bool) -> String {
    let bundle = bundle();
    let subject = Subject {
        worker,
        reference,
        bundle: &bundle,
        precision: Precision::F32,
        device: "cpu",
        threads: 2,
        jit: true,
        options: BTreeMap::new(),
    };
    let mut text = String::new();
    let held = check(&subject, |phase| {
        text += &format!("{phase}\n");
        let is_enough = !is_to_the_end && matches!(phase.outcome, Outcome::Broken(_));
        if is_enough { Err(Failure::Interrupted) } else { Ok(()) }
    });
    text + &held.map(conclusion).unwrap_or_default()
}

#[test]
fn the_mock_holds() {
    let mock = binaries().join("engine-mock");
    assert!(mock.is_file(), "build it first: cargo build --release -p engine-mock");
    let text = checked(&worker(mock, &[], Duration::from_secs(60)), None, true);
    assert!(text.ends_with("The worker holds protocol 13: 10 phases."), "{text}");
}

/// A program of this text, in a directory of its own.
fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("worker.py");
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    (directory, file)
}

#[test]
fn the_references_worker_in_python_holds_and_declines_the_probe() {
    let sources = root().join("references/python");
    let (_directory, launcher) = script(&format!(
        "#!/bin/sh\nPYTHONPATH={} exec python3 -B -m reference_worker fake \"$@\"\n",
        sources.display()
    ));
    let text = checked(&worker(launcher, &[], Duration::from_secs(60)), None, true);
    assert!(text.contains("probe     declined, which it may: unsupported: the machine"), "{text}");
    assert!(text.contains("9 phases; it declines 1, which it may. A comparison needs more"), "{text}");
}

#[test]
fn what_is_no_program_is_said() {
    let (_directory, file) = script("print('hello')\n");
    let text = checked(&worker(file.clone(), &[], Duration::from_secs(5)), None, true);
    assert!(text.contains("#!/usr/bin/env python3"), "{text}");
    assert!(text.ends_with("1 of 10 phases; 9 were not tried; fix these first."), "{text}");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let text = checked(&worker(file, &[], Duration::from_secs(5)), None, true);
    assert!(text.contains("make it executable: chmod +x"), "{text}");
}

fn example() -> String {
    std::fs::read_to_string(root().join(EXAMPLE)).unwrap()
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
fn the_worker_in_python_keeps_the_rules_that_need_numpy() {
    let python = python().first().map_or_else(|| PathBuf::from("python3"), |path| path.join("python3"));
    for file in ["test_denoise.py", "test_graph.py", "test_options.py"] {
        #[expect(clippy::disallowed_methods, reason = "the rules are tested by a program of their own")]
        let mut tests = std::process::Command::new(&python);
        tests.args(["-B", "-m", "unittest", "discover", "-p", file, "-s"]);
        let ran = tests.arg(root().join("references/python/tests")).output().unwrap();
        let told = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && !told.contains("skipped"), "{told}");
    }
}

/// Checks the example with these pieces of its text replaced, up to the first phase that is broken. Its logits are
/// compared with candle's.
fn patched(patches: &[(&str, &str)], timeout: Duration) -> String {
    let mut text = example();
    for (old, new) in patches {
        assert_eq!(text.matches(old).count(), 1, "the example should have {old:?} once");
        text = text.replace(old, new);
    }
    let (_directory, file) = script(&text);
    let candle = binaries().join("engine-candle");
    assert!(candle.is_file(), "build it first: cargo build --release -p engine-candle");
    let candle = worker(candle, &[], Duration::from_secs(60));
    checked(&worker(file, &python(), timeout), Some(&candle), false)
}

#[test]
fn the_example_holds() {
    let text = patched(&[], Duration::from_secs(60));
    assert!(text.ends_with("which it may.") && text.matches(" holds: ").count() >= 5, "{text}");
    assert_eq!(text.matches(", which are the reference's").count(), 2, "{text}");
    assert!(example().lines().count() <= 120, "the example is short");
}

/// The protocol allows each of these, and a comparison strikes it or has no figure.
#[test]
fn what_a_comparison_misses_is_named() {
    for (patches, said) in [
        (
            &[("\"preallocated\"", "\"growing\"")][..],
            "line 3, `in_effect.kv_cache`: \"growing\", which rule R13 strikes",
        ),
        (
            &[("peak_bytes=memory()[\"peak_bytes\"], ", "")],
            "`peak_bytes`: null: its column has no peak memory",
        ),
        (
            &[("/ np.sqrt(np.float32(size))", "/ np.float32(size)")],
            "which rule R11 strikes; the first such position is 1 of case.0 in the file",
        ),
        (&[APPENDS, PREFIX], "which rule R11 strikes; without the `context` they would be right"),
    ] {
        let text = patched(patches, Duration::from_secs(60));
        let lacks = text.lines().filter(|line| line.contains("in a comparison: "));
        assert_eq!(lacks.filter(|line| line.contains(said)).count(), 1, "{said}:\n{text}");
        assert!(text.ends_with("A comparison needs more: see above."), "{text}");
    }
}

/// Pieces of the example, and their broken replacements.
const BUILD: &str = r#""build": {"profile": "release", "toolchain": f"CPython {sys.version.split()[0]}"}"#;
const STARTED: &str = "    send(\"started\", runtime_ns=now() - BEGAN, memory=memory())\n";
const MARKS: &str = r#""marks_ns": marks, "#;
const SAMPLE: &str = r#"send("sample", **sample)"#;
const TWICE: &str = "send(\"sample\", **sample)\n            send(\"sample\", **sample)";
const LOADED: &str = "    start, model = now(), Model(file, job[\"model\"])\n";
const DONE: &str = "    send(\"done\")\n";
const FAILED: &str = "    send(\"failed\", ";
const MEASURED: &str = "    count, warm, ran, gaps, wall_ns = ";
/// The context is in no request, and then in no file of logits.
const APPENDS: (&str, &str) = ("        if context[0]:\n", "        if False:\n");
const PREFIX: (&str, &str) =
    (r#"np.hstack([case["context"], case["prompts"]])"#, r#"np.array(case["prompts"])"#);

/// A test for each way of breaking the example: its name, the time limit in seconds, the replacements in the
/// worker's text, and the parts of a line that must be printed.
macro_rules! broken {
    ($($name:ident($seconds:literal) $patches:expr => $said:expr;)*) => { $(
        #[test]
        fn $name() {
            let text = patched(&$patches, Duration::from_secs($seconds));
            let is_said = text.lines().any(|line| $said.iter().all(|part| line.contains(part)));
            assert!(text.contains("does not hold") && is_said, "no line says {:?}:\n{text}", $said);
        }
    )* };
}

broken! {
    a_field_of_another_type_is_named(60) [(BUILD, r#""build": "release""#)]
        => ["line 1, `build`: invalid type: string \"release\"", "docs/reference/protocol.md"];
    seconds_in_the_place_of_nanoseconds_are_named(60)
        [("from time import monotonic_ns as now", "from time import monotonic as now")]
        => ["`runtime_ns`: invalid type: floating point", "time.monotonic_ns()"];
    a_missing_field_is_named(60) [("wall_ns=wall_ns, ", "")]
        => ["missing field `wall_ns`"];
    a_missing_event_is_named(60) [(STARTED, "")]
        => ["line 2: `loaded` came where `started` must come, or `started` is missing"];
    a_wrong_order_is_named(60) [("send(\"cold_start\", ", "send(\"warmup\", ")]
        => ["line 4: `warmup` came where `cold_start` must come"];
    an_answer_for_another_case_is_named(60) [(SAMPLE, r#"send("sample", **{**sample, "case": 0})"#)]
        => ["line 10, `case`: 0, but the turn asked for case 1"];
    too_few_tokens_are_named(60) [("np.transpose(tokens).tolist()", "np.transpose(tokens)[:, 1:].tolist()")]
        => ["`iterations[0].cases[0].output.tokens[0]`: 2 tokens, but 3 were asked for"];
    a_count_of_marks_that_does_not_fit_is_named(60) [(MARKS, r#""marks_ns": marks[1:], "#)]
        => ["marks_ns`: 2 for 3 new tokens"];
    a_cold_start_that_ends_at_its_first_token_is_named(60)
        [("request(model, 0, cases[0], count, start)", "request(model, 0, cases[0], 1, start)")]
        => ["line 4, `marks_ns`: 1 for 3"];
    a_time_of_zero_is_named(60) [(MARKS, r#""marks_ns": [0, *marks[1:]], "#)]
        => ["line 4, `marks_ns`: 0 is impossible", "time.monotonic_ns()"];
    a_time_longer_than_what_passed_is_named(60)
        [(MARKS, r#""marks_ns": [mark * 1000 for mark in marks], "#)]
        => ["`marks_ns`:", "is impossible: the driver saw"];
    two_answers_to_one_turn_are_named(60) [(SAMPLE, TWICE)] => ["line 8: a second answer to turn 1"];
    output_that_is_not_flushed_is_named(5) [("file=out, flush=True", "file=out")]
        => ["the lines were in a buffer; flush stdout after every line"];
    a_worker_that_waits_for_something_else_is_named(5)
        [(MEASURED, &format!("    sys.stdin.read()\n{MEASURED}"))] => ["`cold_start` did not come within 5 s"];
    chatter_on_stdout_is_named(60) [(LOADED, &format!("{LOADED}    print('Loading …', file=out)\n"))]
        => ["line 3: not a JSON object: \"Loading …\"", "print everything else to stderr"];
    an_exit_code_is_named(60) [(DONE, &format!("{DONE}    os._exit(3)\n"))]
        => ["exit code 3 after `done`; exit with 0"];
    a_failure_that_is_not_told_is_named(60) [(FAILED, &format!("    raise\n{FAILED}"))]
        => ["`hello` did not come: it ended with exit code 1", "NotImplementedError", "send {\"event\": \"failed\""];
    a_parity_file_of_another_shape_is_named(60)
        [("for n, piece in enumerate(pieces)])", "for n, piece in enumerate(pieces)])[:, 1:].copy()")]
        => ["case.0 in the file has shape [1, 7, 256]", "here [1, 8, 256]"];
    tokens_that_are_not_its_own_choice_are_named(60)
        [("model.last.argmax(-1)", "model.last.argmin(-1)")]
        => ["`file`: its logits choose token", "but request 0 answered"];
    a_context_that_is_left_out_of_requests_alone_is_named(60) [APPENDS]
        => ["case.0 in the file, but request 0 answered", "after the case's `context`"];
    another_precision_than_asked_is_named(60)
        [(r#"IN_EFFECT = {"precision": "f32""#, r#"IN_EFFECT = {"precision": "f16""#)]
        => ["line 3, `in_effect.precision`: \"f16\", but the job asked for \"f32\""];
    a_hash_that_was_asked_for_and_not_sent_is_named(60)
        [(r#".hexdigest() if turn["hash"] else None"#, r#".hexdigest() if False else None"#)]
        => ["`weights_sha256`: null, but the sha256 of the file"];
}
