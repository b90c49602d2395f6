//! The command: one line of JSON on stdout, one sentence on stderr, exit codes that scripts rely on.

use std::path::Path;

use assert_cmd::Command;
use bundle::{Bundle, Precision};
use serde_json::Value;

use crate::common::{Model, entries, tiny};

fn command(source: impl AsRef<Path>, arguments: &[&str], bundles: &Path) -> Command {
    let mut command = Command::cargo_bin("prepare").unwrap();
    command.arg(source.as_ref()).args(arguments).arg("--bundles").arg(bundles);
    command
}

#[test]
fn success_is_one_line_of_json() {
    let bundles = tempfile::tempdir().unwrap();
    let arguments = ["--precision", "bf16,f32", "--name", "mine", "--quiet"];
    let output =
        command(tiny("gpt2"), &arguments, bundles.path()).assert().success().stderr("").get_output().clone();
    let line = String::from_utf8(output.stdout).unwrap();
    assert_eq!(line.matches('\n').count(), 1);
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["name"], "mine");
    assert_eq!(line["precisions"], serde_json::json!(["f32", "bf16"]));
    Bundle::open(line["bundle"].as_str().unwrap()).unwrap().weights(Precision::Bf16).unwrap();
}

#[test]
fn a_missing_tokenizer_is_one_warning() {
    let bundles = tempfile::tempdir().unwrap();
    let mut command = command(tiny("gpt2"), &["--precision", "f32"], bundles.path());
    let stderr = String::from_utf8(command.assert().success().get_output().stderr.clone()).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("warning: ") && stderr.contains("no tokenizer"), "{stderr}");
}

#[test]
fn bad_input_is_one_sentence_and_exit_code_2() {
    let bundles = tempfile::tempdir().unwrap();
    for source in ["/nowhere/at/all", "/nowhere/model.gguf", "hf:nobody"] {
        let mut command = command(source, &["--precision", "f32"], bundles.path());
        let assert = command.assert().code(2).stdout("");
        let stderr = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
    }
    command(tiny("gpt2"), &["--precision", "f64"], bundles.path()).assert().code(2).stdout("");
    assert!(entries(bundles.path()).is_empty());
}

#[test]
fn a_directory_that_cannot_be_made_is_exit_code_1() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let bundles = file.path().join("bundles");
    command(tiny("gpt2"), &["--precision", "f32"], &bundles).assert().code(1).stdout("");
}

/// Runs the command with files limited to 64 KiB, which the weights exceed: like a full disk if the signal is
/// ignored, like a crash in mid-write if not.
#[cfg(unix)]
fn limited(ignore_signal: bool, source: &Path, bundles: &Path) -> assert_cmd::assert::Assert {
    let program = assert_cmd::cargo::cargo_bin("prepare");
    let trap = if ignore_signal { "trap '' XFSZ; " } else { "" };
    let script = format!("{trap}ulimit -f 64; exec \"$0\" \"$@\"");
    let mut command = Command::new("bash");
    command.arg("-c").arg(script).arg(program).arg(source);
    command.args(["--precision", "f32", "--quiet", "--bundles"]).arg(bundles).assert()
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_and_is_exit_code_1() {
    let bundles = tempfile::tempdir().unwrap();
    let assert = limited(true, &tiny("gpt2"), bundles.path()).code(1).stdout("");
    let stderr = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(stderr.contains("cannot write") && stderr.contains("f32.safetensors"), "{stderr}");
    assert!(entries(bundles.path()).iter().all(|name| name.ends_with(".lock")));
}

#[cfg(unix)]
#[test]
fn a_crash_leaves_no_bundle_and_does_not_disturb_the_next_try() {
    let bundles = tempfile::tempdir().unwrap();
    let source = Model::tiny("gpt2").write();
    limited(false, source.path(), bundles.path()).interrupted();
    let left = entries(bundles.path());
    assert!(left.iter().any(|name| name.ends_with(".partial")), "it died in mid-write: {left:?}");
    assert!(left.iter().all(|name| name.starts_with('.')), "{left:?}");
    command(source.path(), &["--precision", "f32"], bundles.path()).assert().success();
    assert_eq!(entries(bundles.path()).len(), 2, "the bundle and its lock");
}
