//! A test of an installation, as a part of `cargo xtask test`: a wheel of what was built is installed by pip into a new
//! environment, where no compiler and no checkout can be found. There the program compares in an empty directory;
//! installed alone, as by `cargo install`, it names the missing parts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use setup::tooling::process::{command, output_of};
use setup::{Layout, this_platform};

use crate::build::Engines;
use crate::install::{self, Target};
use crate::workspace::{PHOTOFINISH, Workspace};
use crate::{bill, wheel};

/// Uses the output of `cargo xtask build`.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let workspace = workspace.shipped();
    let engines = Engines::read(&workspace)?;
    let mut binaries = install::names(&engines.select(&[])?, false);
    binaries.retain(|name| workspace.binary(name).is_file());
    let scratch = tempfile::tempdir()?;
    let root = scratch.path().join("root");
    let record = install::record(&workspace)?;
    install::put(&workspace, &binaries, &record, &Target::below(&root))?;
    let bill = bill::list(&workspace, &binaries, &record)?;
    fs::write(Layout::below(&root).data().join(bill::FILE), bill)?;
    let tag = this_platform().replace('-', "_");
    let wheel = wheel::write(&root, &record.version, &tag, scratch.path())?;
    let program = installed(&wheel, &scratch.path().join("environment"))?;
    compares(&workspace, &program, scratch.path(), record.git_commit.as_deref())?;
    says_what_is_missing(&workspace, scratch.path())
}

/// The program that pip has put into a new environment.
fn installed(wheel: &Path, environment: &Path) -> Result<PathBuf> {
    output_of(command("python3").args(["-m", "venv"]).arg(environment))
        .context("cannot make an environment")?;
    let mut pip = command(environment.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check"]).arg(wheel);
    output_of(&mut pip).context("pip does not install the wheel")?;
    Ok(environment.join("bin").join(PHOTOFINISH))
}

fn compares(workspace: &Workspace, program: &Path, scratch: &Path, commit: Option<&str>) -> Result<()> {
    let empty = scratch.join("empty");
    fs::create_dir(&empty)?;
    let mut compare = user(workspace, program, scratch);
    compare.args(["compare", "--quick", "--model", "synthetic:llama-tiny", "--quiet"]).current_dir(&empty);
    // On a busy machine a rule may strike a row, which is not the subject of this test.
    compare.arg("--allow-unfair");
    // The environment's own programs alone: no compiler, no git.
    compare.env("PATH", program.parent().context("a program is in a directory")?);
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
