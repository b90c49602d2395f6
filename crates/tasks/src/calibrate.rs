//! `cargo xtask calibrate`: the statistics against simulated comparisons.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tooling::Reporter;
use tooling::process::command;

use crate::cargo::build;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    build(workspace, &["calibrate"], None, Reporter::new(false))?;
    // The page's default place is relative to the root.
    let status = command(workspace.binary("calibrate"))
        .args(args)
        .current_dir(&workspace.root)
        .status()
        .context("cannot start calibrate")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
