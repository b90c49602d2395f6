//! The program in the place of a task: `doctor` and `profile` are commands of it, as `compare` is.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use tooling::Reporter;
use tooling::process::command;

use crate::cargo;
use crate::workspace::{PHOTOFINISH, Workspace};

/// Builds the program and runs one of its commands, which provides what else it needs.
pub(crate) fn run(workspace: &Workspace, name: &str, args: &[OsString]) -> Result<ExitCode> {
    cargo::build(workspace, &["driver"], None, Reporter::new(true))?;
    let mut program = command(workspace.binary(PHOTOFINISH));
    // As `cargo run` sets it: workers whose sources have changed are built again.
    program.arg(name).args(args).env("CARGO_MANIFEST_DIR", &workspace.root);
    replace_this_process(program)
}

/// Signals reach the program itself, and its exit code is this command's.
#[cfg(unix)]
pub(crate) fn replace_this_process(mut program: Command) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(program.exec()).context("cannot start the driver")
}

#[cfg(not(unix))]
pub(crate) fn replace_this_process(mut program: Command) -> Result<ExitCode> {
    let status = program.status().context("cannot start the driver")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
