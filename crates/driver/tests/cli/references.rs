//! References run by the driver: the Python worker on a fake framework, which computes the same as the mock.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{Installation, array, outcome, row, rule};

fn python_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../references/python").canonicalize().unwrap()
}

/// The mock as `ours`, and the fake framework as `theirs` with these lines of configuration.
pub(crate) fn installation(more: &str) -> Installation {
    let installation = Installation::new().engine("ours", &[]);
    let text = format!(
        "#!/bin/sh\nPYTHONPATH={} exec python3 -B -m reference_worker fake \"$@\"\n",
        python_sources().display()
    );
    installation.script("launcher", &text);
    installation.of_worker("theirs", "fake", "{root}/launcher", &format!("reference = true\n{more}"));
    installation
}

const COMPARE: &str = "--frameworks ours,theirs --rounds 2";

#[test]
fn a_reference_takes_part_and_its_own_ways_are_noted() {
    let report = installation("").json(0, COMPARE);
    let difference = &row(&report, "theirs")["agreement"]["max_abs"];
    assert_eq!(*difference, 0.0, "the whole protocol gives what the worker in Rust gives");
    for id in ["R10", "R13"] {
        assert_ne!(array(&rule(&report, id)["notes"]), [Value::Null; 0], "{id}");
    }
}

#[test]
fn a_reference_that_computes_something_else_is_struck() {
    let report = installation("[options]\nperturb = \"2\"\n").json(1, COMPARE);
    let broken = rule(&report, "R11")["broken_by"].clone();
    let labels: Vec<&Value> = array(&broken).iter().map(|one| &one["framework"]).collect();
    assert_eq!(labels, ["ours", "theirs"], "which of two that differ is wrong is not known: {broken}");
}

#[test]
fn a_reference_that_is_not_set_up_is_a_row_with_the_command() {
    let installation = installation("");
    std::os::unix::fs::symlink(python_sources(), installation.path("python")).unwrap();
    let more = "reference = true\n[env]\nPHOTOFINISH_REFERENCE = \"genai\"\n\
        PHOTOFINISH_REFERENCES = \"{cache}/references\"\n";
    installation.of_worker("theirs", "genai", "{root}/python/worker", more);
    let report = installation.json(1, COMPARE);
    let (_, reason) = outcome(&report, "theirs");
    assert!(reason.contains("cargo xtask setup --references=genai"), "{reason}");
}

/// Its rules one by one, in its own language.
#[test]
fn the_worker_in_python_keeps_its_rules() {
    let tests = python_sources().join("tests");
    let run = Command::new("python3").args(["-B", "-m", "unittest", "discover", "-s"]).arg(tests).output();
    let run = run.expect("python3 is needed, as for set-up");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && !said.contains("Ran 0 tests"), "{said}");
}
