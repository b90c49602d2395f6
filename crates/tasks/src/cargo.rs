//! Packages of the workspace, built by the cargo that runs this program.

use std::path::Path;
use std::process::Command;

use anyhow::{Error, Result, anyhow};
use setup::Piece;
use tooling::Reporter;
use tooling::process::{self, succeeds_watched};

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

/// Builds packages in one invocation.
pub(crate) fn build(
    workspace: &Workspace,
    names: &[&str],
    libtorch: Option<&Path>,
    reporter: Reporter,
) -> Result<()> {
    let unbuilt = build_what_can_be(workspace, names, libtorch, reporter)?;
    unbuilt.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// Builds packages in one invocation; those that do not build, each with its error.
pub(crate) fn build_what_can_be<'a>(
    workspace: &Workspace,
    names: &[&'a str],
    libtorch: Option<&Path>,
    reporter: Reporter,
) -> Result<Vec<(&'a str, Error)>> {
    let command = |names: &[&str]| {
        let mut build = cargo(workspace);
        build.args(["build", "--release", "--locked", "--keep-going"]);
        build.args(names.iter().flat_map(|name| ["--package", name]));
        build.envs(libtorch.map(|path| (Piece::Libtorch.variable(), path)));
        if reporter.is_quiet() {
            build.arg("--quiet");
        }
        build
    };
    // An older commit may not have declared one set of features for all.
    if !workspace.is_apart() && succeeds_watched(&mut command(names))? {
        return Ok(Vec::new());
    }
    let mut unbuilt = Vec::new();
    for &name in names {
        if !succeeds_watched(&mut command(&[name]))? {
            unbuilt
                .push((name, anyhow!("{name} does not build; `photofinish doctor` names what is missing")));
        }
    }
    Ok(unbuilt)
}
