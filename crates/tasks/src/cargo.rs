//! Packages of the workspace, built by the cargo that runs this program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, anyhow};
use serde::Deserialize;
use setup::Piece;
use setup::tooling::Reporter;
use setup::tooling::process::{self, output_of, succeeds_logged, succeeds_watched};

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

/// The workspaces that there are: that of the programs, references and fuzz targets.
pub(crate) const MANIFESTS: [&str; 3] = ["Cargo.toml", REFERENCES, "fuzz/Cargo.toml"];

/// What `cargo metadata` says of a workspace.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) workspace_default_members: Vec<String>,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) req: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

impl Dependency {
    pub(crate) fn is_for_tests(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

/// The packages of one of the workspaces at `root`.
pub(crate) fn metadata(root: &Path, manifest: &str) -> Result<Metadata> {
    let mut metadata = process::cargo(root);
    metadata.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path", manifest]);
    serde_json::from_str(&output_of(&mut metadata)?).context("cannot read `cargo metadata`")
}

/// The lines of `cargo tree` for these packages of a workspace in one build, each `NAME vVERSION …|FEATURES`.
pub(crate) fn tree(root: &Path, manifest: &str, packages: &[String], edges: &str) -> Result<String> {
    let mut tree = process::cargo(root);
    tree.args([
        "tree",
        "--locked",
        "--manifest-path",
        manifest,
        "--prefix",
        "none",
        "--edges",
        edges,
        "--format",
        "{p}|{f}",
    ]);
    tree.args(packages.iter().flat_map(|name| ["--package", name]));
    // Releases have its program for the hub.
    if packages.iter().any(|name| name == "prepare") {
        tree.args(["--features", "prepare/hub"]);
    }
    output_of(&mut tree)
}

/// The directories of these packages and of all of ours that they are built with.
pub(crate) fn sources_of(workspace: &Workspace, names: &[String]) -> Result<BTreeSet<PathBuf>> {
    let mut packages = BTreeMap::new();
    for manifest in ["Cargo.toml", REFERENCES] {
        if workspace.root.join(manifest).is_file() {
            for package in metadata(&workspace.root, manifest)?.packages {
                let directory = package.manifest_path.parent().context("a manifest is in a directory")?;
                packages.insert(directory.to_owned(), package);
            }
        }
    }
    let named = packages.iter().filter(|(_, package)| names.contains(&package.name));
    let mut open: Vec<PathBuf> = named.map(|(directory, _)| directory.clone()).collect();
    let mut found = BTreeSet::new();
    while let Some(directory) = open.pop() {
        let package =
            packages.get(&directory).with_context(|| format!("no package in {}", directory.display()))?;
        let dependencies = package.dependencies.iter().filter(|dependency| !dependency.is_for_tests());
        if found.insert(directory) {
            open.extend(dependencies.filter_map(|dependency| dependency.path.clone()));
        }
    }
    Ok(found)
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

/// The start of a command that builds packages.
fn release(
    workspace: &Workspace,
    verb: &str,
    is_reference: bool,
    libtorch: Option<&Path>,
    reporter: Reporter,
) -> Command {
    let mut build = cargo(workspace);
    build.args([verb, "--release", "--locked"]);
    if is_reference && workspace.root.join(REFERENCES).is_file() {
        build.args(["--manifest-path", REFERENCES]);
        if let Some(target) = workspace.binaries.parent() {
            build.env("CARGO_TARGET_DIR", target);
        }
    }
    build.envs(libtorch.map(|path| (Piece::Libtorch.variable(), path)));
    if reporter.is_quiet() {
        build.arg("--quiet");
    }
    build
}

/// Links a worker that was just built in other layouts.
pub(crate) fn layouts(
    workspace: &Workspace,
    worker: &str,
    libtorch: Option<&Path>,
    reporter: Reporter,
) -> Result<()> {
    let program = workspace.binary(worker);
    let link = |flag: &str| {
        let mut link = release(workspace, "rustc", is_reference(worker), libtorch, reporter);
        link.args(["--package", worker, "--bin", worker, "--", &format!("-Clink-arg={flag}")]);
        match succeeds_logged(&mut link, |_| ())? {
            Ok(()) => Ok(program.clone()),
            Err(log) => Err(anyhow!("{}", log.lines().last().unwrap_or("cargo gives no reason").trim())),
        }
    };
    setup::layouts::make(&program, link)
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
        let has_reference = names.iter().any(|name| is_reference(name));
        let mut build = release(workspace, "build", has_reference, libtorch, reporter);
        build.arg("--keep-going").args(names.iter().flat_map(|name| packages(name)));
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
