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

    fn git(&self, arguments: &[&str]) -> Result<String> {
        output_of(git().arg("-C").arg(&self.root).args(arguments))
    }
}
