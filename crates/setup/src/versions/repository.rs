//! A checkout of a framework's repository, for comparisons of its commits.

use std::path::Path;

use anyhow::Result;
use tooling::BadInput;
use tooling::process::output_of;

use super::tree::git;

/// The repository that a directory is part of.
#[derive(Debug, Clone)]
pub struct Repository {
    root: String,
}

/// A commit, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// As few digits as identify it.
    pub hash: String,
    pub subject: String,
}

impl Repository {
    /// # Errors
    /// A directory outside any repository.
    pub fn at(directory: &Path) -> Result<Repository> {
        let root = output_of(git().arg("-C").arg(directory).args(["rev-parse", "--show-toplevel"]));
        let root = root.map_err(|error| {
            BadInput(format!("{} is no checkout of a git repository: {error:#}", directory.display()))
        })?;
        Ok(Repository { root: root.trim().to_owned() })
    }

    pub fn root(&self) -> &str {
        &self.root
    }

    /// The hash of a revision; a release is also found by its tag.
    ///
    /// # Errors
    /// A revision that does not exist.
    pub fn commit(&self, revision: &str) -> Result<String> {
        let found = [revision.to_owned(), format!("v{revision}")].into_iter().find_map(|name| {
            let name = format!("{name}^{{commit}}");
            self.git(&["rev-parse", "--verify", "--quiet", "--end-of-options", &name]).ok()
        });
        let commit = found.ok_or_else(|| {
            BadInput(format!("{} has no commit {revision}; name a branch, a tag or a hash", self.root))
        })?;
        Ok(commit.trim().to_owned())
    }

    /// A commit as the version of a column.
    pub fn version(&self, commit: &str) -> String {
        format!("git:{}#{commit}", self.root)
    }

    /// The commits after one up to another along first parents, the oldest first. A merge counts as one
    /// commit.
    pub fn between(&self, good: &str, bad: &str) -> Result<Vec<String>> {
        let range = format!("{good}..{bad}");
        let list = self.git(&["rev-list", "--reverse", "--first-parent", &range])?;
        Ok(list.lines().map(str::to_owned).collect())
    }

    /// Whether tracked files differ from the commit that is checked out.
    pub fn is_modified(&self) -> Result<bool> {
        Ok(!self.git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty())
    }

    pub fn told(&self, commit: &str) -> Result<Commit> {
        let text = self.git(&["show", "--no-patch", "--format=%h%n%s", commit])?;
        let (hash, subject) = text.trim_end().split_once('\n').unwrap_or((commit, ""));
        Ok(Commit { hash: hash.to_owned(), subject: subject.to_owned() })
    }

    fn git(&self, arguments: &[&str]) -> Result<String> {
        output_of(git().arg("-C").arg(&self.root).args(arguments))
    }
}
