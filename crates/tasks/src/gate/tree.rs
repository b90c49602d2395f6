//! A commit, checked out as a git worktree outside this checkout.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tooling::BadInput;
use tooling::process::{command, output_of};

use crate::workspace::Workspace;

/// A worktree; removed when dropped.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    /// The repository that it belongs to.
    repository: PathBuf,
}

impl Tree {
    pub(super) fn check_out(workspace: &Workspace, commit: &str, root: PathBuf) -> Result<Tree> {
        let mut add = git(&workspace.root);
        add.args(["worktree", "add", "--quiet", "--detach"]).arg(&root).arg(commit);
        output_of(&mut add)?;
        Ok(Tree { root, repository: workspace.root.clone() })
    }

    /// Where the driver looks for a checkout's binaries; made if it is not there.
    pub(super) fn binaries(&self) -> Result<PathBuf> {
        let place = self.root.join("target/release");
        std::fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        Ok(place)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let mut remove = git(&self.repository);
        // If this fails, `prune` removes the worktree later.
        let _ = output_of(remove.args(["worktree", "remove", "--force"]).arg(&self.root));
    }
}

/// Forgets worktrees without a directory, as a killed gate leaves them.
pub(super) fn prune(workspace: &Workspace) -> Result<()> {
    output_of(git(&workspace.root).args(["worktree", "prune"])).map(drop)
}

/// The hash of a commit.
pub(super) fn resolve(workspace: &Workspace, rev: &str) -> Result<String> {
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
        let tree = Tree::check_out(&workspace, &resolve(&workspace, "HEAD").unwrap(), root.clone()).unwrap();
        assert!(root.join("xtask/Cargo.toml").is_file());
        drop(tree);
        assert!(!root.exists());
    }

    #[test]
    fn an_unknown_commit_is_bad_input() {
        let workspace = Workspace::locate().unwrap();
        let error = resolve(&workspace, "no-such-commit").unwrap_err();
        assert!(is_bad_input(&error) && error.to_string().contains("no-such-commit"), "{error}");
    }
}
