//! `cargo xtask claims`: tests of published claims.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tooling::Reporter;
use tooling::process::command;

use crate::cargo::build;
use crate::workspace::Workspace;

/// With these flags nothing is measured, so that no driver is needed.
const WITHOUT_RUNS: [&str; 3] = ["--from-results", "--help", "-h"];

pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    let runs = !args.iter().any(|arg| WITHOUT_RUNS.iter().any(|name| arg == name));
    let names = if runs { &["claims", "driver"][..] } else { &["claims"] };
    build(workspace, names, None, Reporter::new(false))?;
    let status = command(workspace.binary("claims"))
        .args(args)
        .current_dir(&workspace.root)
        .status()
        .context("cannot start claims")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
