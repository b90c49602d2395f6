//! A test of an installation, as a part of `cargo xtask test`: installed into a temporary directory, the
//! program compares in an empty one; installed alone, as by `cargo install`, it names the missing parts.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use setup::tooling::process::command;

use crate::build::Engines;
use crate::install::{self, Target};
use crate::workspace::{PHOTOFINISH, Workspace};

/// Uses the output of `cargo xtask build`.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let workspace = workspace.shipped();
    let engines = Engines::read(&workspace)?;
    let mut binaries: Vec<String> = engines.packages().into_iter().map(str::to_owned).collect();
    binaries.push("prepare".to_owned());
    binaries.retain(|name| workspace.binary(name).is_file());
    let scratch = tempfile::tempdir()?;
    let target = Target::below(&scratch.path().join("root"));
    let record = install::record(&workspace)?;
    install::put(&workspace, &binaries, &record, &target)?;
    compares(&workspace, &target.program(), scratch.path(), record.git_commit.as_deref())?;
    says_what_is_missing(&workspace, scratch.path())
}

fn compares(workspace: &Workspace, program: &Path, scratch: &Path, commit: Option<&str>) -> Result<()> {
    let empty = scratch.join("empty");
    fs::create_dir(&empty)?;
    let mut compare = user(workspace, program, scratch);
    compare.args(["compare", "--quick", "--model", "synthetic:llama-tiny", "--quiet"]).current_dir(&empty);
    // On a busy machine a rule may strike a row, which is not the subject of this test.
    compare.arg("--allow-unfair");
    let output = compare.output().context("cannot start the installed program")?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "`photofinish compare --quick` ended with {}:\n{said}", output.status);
    let entries =
        fs::read_dir(empty.join("results")).with_context(|| format!("it wrote no results:\n{said}"))?;
    let paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    ensure!(paths.iter().any(|path| path.ends_with("history.jsonl")), "it wrote no history: {paths:?}");
    let environment = paths.iter().map(|path| path.join("environment.json")).find(|path| path.is_file());
    let environment = fs::read(environment.context("its results have no environment.json")?)?;
    let environment: serde_json::Value = serde_json::from_slice(&environment)?;
    ensure!(
        environment["git_commit"].as_str() == commit,
        "its results name the commit {}, and it was built from {commit:?}",
        environment["git_commit"]
    );
    Ok(())
}

fn says_what_is_missing(workspace: &Workspace, scratch: &Path) -> Result<()> {
    let alone = scratch.join("alone/bin");
    fs::create_dir_all(&alone)?;
    let program = alone.join(PHOTOFINISH);
    fs::copy(workspace.binary(PHOTOFINISH), &program).context("cannot copy the program")?;
    let output = user(workspace, &program, scratch).output().context("cannot start the program alone")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(2) && said.contains("cargo xtask install"),
        "alone it ended with {} and said: {said}",
        output.status
    );
    Ok(())
}

/// The program as a user has it: with the files of set-up, and nothing else of ours.
fn user(workspace: &Workspace, program: &Path, scratch: &Path) -> Command {
    let mut command = command(program);
    if let Some(caches) = workspace.cache.parent() {
        command.env("XDG_CACHE_HOME", caches);
    }
    command.env("XDG_DATA_HOME", scratch.join("data")).env("XDG_CONFIG_HOME", scratch.join("config"));
    command
}
