//! `cargo xtask gate`: is a commit slower than another? Both are built and measured interleaved on this machine;
//! the exit code is that of `photofinish check`.
//!
//! Git worktrees hold the commits, so that this checkout stays as it is. They share a target directory, in which what
//! the commits have in common, the frameworks above all, is compiled once; binaries of one name overwrite each other
//! there, so each commit's are taken out before the next is built. It is not this checkout's: cargo names what it
//! builds by paths within a workspace and calls it fresh by the age of the sources, so that one checkout's crates
//! pass for another's. (Sharing it was tried: the second commit was "built" in no time, and was the first.) For the
//! same reason a commit is checked out after the one before it was built: its files are then the newest.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result};
use configs::DEFAULT_MODEL;
use tooling::process::{command, output_of};
use tooling::{BadInput, Reporter};

use crate::build;
use crate::cargo::package;
use crate::catalog::{self, Engines};
use crate::compare::Needs;
use crate::workspace::{PHOTOFINISH, Workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The commit to hold against: a branch, a tag, a hash
    #[arg(long, value_name = "REV")]
    base: String,
    /// The commit to judge [default: this checkout as it is]
    #[arg(long, value_name = "REV")]
    head: Option<String>,
    /// Flags of `photofinish check` and of a comparison: --threshold 3%, --frameworks candle, --format github, ..
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "DRIVER FLAG")]
    args: Vec<OsString>,
}

pub(crate) fn run(workspace: &Workspace, asked: &Args) -> Result<ExitCode> {
    let needs = Needs::read(&asked.args)?;
    let reporter = Reporter::new(needs.quiet());
    let directory = tempfile::Builder::new().prefix("photofinish-gate-").tempdir()?;
    // A mistake in the second costs nothing before the first is built.
    for rev in [Some(&asked.base), asked.head.as_ref()].into_iter().flatten() {
        resolve(workspace, rev)?;
    }
    let base = Tree::built(workspace, &asked.base, directory.path().join("base"), &needs, reporter)?;
    let head = match &asked.head {
        Some(rev) => Some(Tree::built(workspace, rev, directory.path().join("head"), &needs, reporter)?),
        None => None,
    };
    // This checkout's, whatever is judged: an older commit's may know no gate.
    provide(workspace, &needs, reporter)?;
    let driver = match &head {
        Some(head) => {
            let tools = [PHOTOFINISH, "prepare"].map(str::to_owned);
            head.take(workspace, tools.iter())?;
            head.binaries().join(file_name(PHOTOFINISH))
        }
        None => {
            build_workers(workspace, &needs, reporter)?;
            workspace.binary(PHOTOFINISH)
        }
    };
    let mut check = command(driver);
    check.arg("check").arg("--base-workers").arg(base.binaries()).args(&asked.args);
    let given = asked.args.iter().any(|arg| arg.to_string_lossy().starts_with("--results-dir"));
    if !given {
        check.arg("--results-dir").arg(workspace.root.join("results"));
    }
    let status = check
        .env("PHOTOFINISH_PROVISIONED", "1")
        .stdin(Stdio::null())
        .status()
        .context("cannot start the driver")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// The driver, and what the model takes.
fn provide(workspace: &Workspace, needs: &Needs, reporter: Reporter) -> Result<()> {
    let provision = workspace.provision(reporter)?;
    for piece in catalog::pieces_of_model(workspace, needs.model().unwrap_or(DEFAULT_MODEL))? {
        provision.provide(piece)?;
    }
    for name in ["driver", "prepare"] {
        package(workspace, name, &[], reporter)?;
    }
    Ok(())
}

/// The workers that are asked for; with their names.
fn build_workers(workspace: &Workspace, needs: &Needs, reporter: Reporter) -> Result<Vec<String>> {
    let engines = Engines::read(workspace)?;
    let selected = engines.select(needs.frameworks())?;
    for engine in &selected {
        // One that does not build must not be taken for another commit's, which lies in the same place.
        let _ = std::fs::remove_file(workspace.binary(&engine.worker));
    }
    let provision = workspace.provision(reporter)?;
    build::workers(workspace, &selected, &provision, reporter)?;
    Ok(selected.iter().map(|engine| engine.worker.clone()).collect())
}

fn file_name(name: &str) -> String {
    format!("{name}{}", std::env::consts::EXE_SUFFIX)
}

/// A commit, checked out beside this checkout; gone again when dropped.
struct Tree {
    root: PathBuf,
    /// The repository that it belongs to.
    repository: PathBuf,
}

impl Tree {
    /// Checks a commit out and builds its workers.
    fn built(
        workspace: &Workspace,
        rev: &str,
        root: PathBuf,
        needs: &Needs,
        reporter: Reporter,
    ) -> Result<Tree> {
        let tree = Tree::check_out(workspace, rev, root)?;
        let apart = workspace.apart(&tree.root);
        let workers = build_workers(&apart, needs, reporter)
            .with_context(|| format!("cannot build the workers of {rev}"))?;
        tree.take(&apart, workers.iter())?;
        Ok(tree)
    }

    fn check_out(workspace: &Workspace, rev: &str, root: PathBuf) -> Result<Tree> {
        let commit = resolve(workspace, rev)?;
        let mut add = git(&workspace.root);
        add.args(["worktree", "add", "--quiet", "--detach"]).arg(&root).arg(commit);
        output_of(&mut add)?;
        Ok(Tree { root, repository: workspace.root.clone() })
    }

    /// Where the driver looks for a checkout's binaries.
    fn binaries(&self) -> PathBuf {
        self.root.join("target/release")
    }

    /// Copies binaries that were just built.
    fn take<'a>(&self, workspace: &Workspace, names: impl Iterator<Item = &'a String>) -> Result<()> {
        let to = self.binaries();
        std::fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
        // What cargo does not build is started from the checkout.
        for name in names.filter(|name| !name.contains('/')) {
            let from = workspace.binary(name);
            // One that could not be built was reported, and is a row with its reason.
            if from.is_file() {
                std::fs::copy(&from, to.join(file_name(name)))
                    .with_context(|| format!("cannot copy {}", from.display()))?;
            }
        }
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let mut remove = git(&self.repository);
        // What is left behind, `git worktree prune` removes.
        let _ = output_of(remove.args(["worktree", "remove", "--force"]).arg(&self.root));
    }
}

/// The hash of a commit.
fn resolve(workspace: &Workspace, rev: &str) -> Result<String> {
    let commit = format!("{rev}^{{commit}}");
    let mut resolve = git(&workspace.root);
    resolve.args(["rev-parse", "--verify", "--quiet", "--end-of-options", &commit]);
    let unknown =
        |_| BadInput(format!("git knows no commit {rev:?} here; in a shallow clone, fetch it first"));
    Ok(output_of(&mut resolve).map_err(unknown)?.trim().to_owned())
}

fn git(directory: &Path) -> std::process::Command {
    let mut git = command("git");
    git.arg("-C").arg(directory);
    git
}

#[cfg(test)]
mod tests {
    use super::*;
    use tooling::is_bad_input;

    #[test]
    fn a_commit_is_checked_out_and_gone_again() {
        let workspace = Workspace::locate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("base");
        let tree = Tree::check_out(&workspace, "HEAD", root.clone()).unwrap();
        assert!(root.join("xtask/Cargo.toml").is_file());
        drop(tree);
        assert!(!root.exists());
    }

    #[test]
    fn an_unknown_commit_is_bad_input() {
        let workspace = Workspace::locate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let error =
            Tree::check_out(&workspace, "no-such-commit", directory.path().join("base")).err().unwrap();
        assert!(is_bad_input(&error) && error.to_string().contains("no-such-commit"), "{error}");
    }
}
