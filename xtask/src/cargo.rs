//! Packages of the workspace, built by the cargo that runs this program.

use std::process::Command;

use anyhow::{Result, anyhow};
use setup::Provided;
use tooling::Reporter;
use tooling::process::{self, succeeds};

use crate::workspace::Workspace;

pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let mut command = process::cargo(&workspace.root);
    if let Some(target) = &workspace.target {
        command.env("CARGO_TARGET_DIR", target);
    }
    if !workspace.variables.is_empty() {
        // It would win over RUSTFLAGS.
        command.env_remove("CARGO_ENCODED_RUSTFLAGS");
        command.envs(workspace.variables.iter().map(|(name, value)| (name, value)));
    }
    command
}

/// Builds a package with the pieces that it needs.
pub(crate) fn package(
    workspace: &Workspace,
    name: &str,
    pieces: &[Provided],
    reporter: Reporter,
) -> Result<()> {
    let mut build = cargo(workspace);
    build.args(["build", "--release", "--locked", "--package", name]);
    if reporter.is_quiet() {
        build.arg("--quiet");
    }
    build.envs(pieces.iter().map(|provided| (provided.piece.variable(), &provided.path)));
    if succeeds(&mut build)? {
        Ok(())
    } else {
        Err(anyhow!("{name} does not build; `cargo xtask doctor` says what it needs"))
    }
}
