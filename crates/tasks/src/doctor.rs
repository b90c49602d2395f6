//! `cargo xtask doctor`: builds the program and runs `photofinish doctor`.

use std::process::ExitCode;

use anyhow::Result;
use tooling::Reporter;
use tooling::process::{command, status_of};

use crate::cargo;
use crate::workspace::{PHOTOFINISH, Workspace};

pub(crate) fn run(workspace: &Workspace, deep: bool) -> Result<ExitCode> {
    cargo::build(workspace, &["driver"], None, Reporter::new(true))?;
    let mut doctor = command(workspace.binary(PHOTOFINISH));
    doctor.arg("doctor").args(deep.then_some("--deep"));
    let status = status_of(&mut doctor)?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
