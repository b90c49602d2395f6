//! Packages of the workspace, built by the cargo that runs this program.

use std::path::Path;
use std::process::Command;

use anyhow::{Error, Result, anyhow};
use setup::Piece;
use setup::tooling::Reporter;
use setup::tooling::process::{self, succeeds_watched};

use crate::workspace::Workspace;

/// Only models of `hf:` need this program.
pub(crate) const HUB: &str = "hub";

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

/// The manifest of the workspace of references.
pub(crate) const REFERENCES: &str = "references/Cargo.toml";

/// That of the fuzz targets.
const FUZZ: &str = "fuzz/Cargo.toml";

/// The workspaces that there are.
pub(crate) const MANIFESTS: [&str; 3] = ["Cargo.toml", REFERENCES, FUZZ];

/// The manifest of a package's workspace: references and fuzz targets have one of their own.
pub(crate) fn manifest_of(package: &str) -> &'static str {
    match package {
        "fuzz" => FUZZ,
        name if is_reference(name) => REFERENCES,
        _ => "Cargo.toml",
    }
}

/// Cargo's arguments that build a program: `hub` is a part of `prepare` that is built only where it is named.
fn packages(program: &str) -> Vec<&str> {
    match program {
        HUB => vec!["--package", "prepare", "--features", "prepare/hub"],
        _ => vec!["--package", program],
    }
}

pub(crate) fn is_reference(name: &str) -> bool {
    name.starts_with("reference-")
}

/// Builds packages in one invocation, and each reference in one of its own, so that none has features that another asks
/// for; those that do not build, each with its error.
pub(crate) fn build_what_can_be<'a>(
    workspace: &Workspace,
    names: &[&'a str],
    libtorch: Option<&Path>,
    reporter: Reporter,
) -> Result<Vec<(&'a str, Error)>> {
    let command = |names: &[&str]| {
        let mut build = cargo(workspace);
        build.args(["build", "--release", "--locked", "--keep-going"]);
        if names.iter().any(|name| is_reference(name)) && workspace.root.join(REFERENCES).is_file() {
            build.args(["--manifest-path", REFERENCES]);
            if let Some(target) = workspace.binaries.parent() {
                build.env("CARGO_TARGET_DIR", target);
            }
        }
        build.args(names.iter().flat_map(|name| packages(name)));
        build.envs(libtorch.map(|path| (Piece::Libtorch.variable(), path)));
        if reporter.is_quiet() {
            build.arg("--quiet");
        }
        build
    };
    let (references, ours): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_reference(name));
    // An older commit may not have declared one set of features for all.
    let are_built = !workspace.is_apart() && (ours.is_empty() || succeeds_watched(&mut command(&ours))?);
    let mut unbuilt = Vec::new();
    for name in ours.into_iter().filter(|_| !are_built).chain(references) {
        if !succeeds_watched(&mut command(&[name]))? {
            unbuilt
                .push((name, anyhow!("{name} does not build; `photofinish doctor` names what is missing")));
        }
    }
    Ok(unbuilt)
}
