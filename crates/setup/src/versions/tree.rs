//! A revision of a repository, checked out below the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tooling::BadInput;
use tooling::process::{command, output_of};

use super::asked::slug;
use super::cause;

/// The directory with this revision: a commit, a tag or a branch, which is resolved each time.
///
/// # Errors
/// A URL that git cannot read, and a revision that it does not have.
pub(super) fn check_out(cache: &Path, url: &str, revision: &str) -> Result<PathBuf> {
    let url = if Path::new(url).is_dir() {
        std::path::absolute(url)?.display().to_string()
    } else {
        url.to_owned()
    };
    let name = Path::new(&url).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let repository = cache.join("versions/repositories").join(slug(&name, &url));
    let asked = commit_of(&url, revision)?;
    if !repository.join("HEAD").is_file() {
        // An interrupted clone has no HEAD.
        let _ = std::fs::remove_dir_all(&repository);
        output_of(git().args(["clone", "--quiet", "--bare", "--", &url]).arg(&repository)).map_err(bad)?;
    }
    let find = || {
        let mut find = git();
        find.arg("-C").arg(&repository);
        output_of(find.args(["rev-parse", "--verify", "--quiet", &format!("{asked}^{{commit}}")]))
    };
    let commit = find().or_else(|_| {
        // Servers may refuse to send a commit by its hash although a branch contains it.
        for what in ["+refs/heads/*:refs/heads/*", &asked] {
            let mut fetch = git();
            fetch.arg("-C").arg(&repository).args(["fetch", "--quiet", "--tags", "origin", what]);
            let _ = output_of(&mut fetch);
        }
        find().map_err(|_| BadInput(format!("{url} has no commit {revision}")))
    })?;
    let commit = commit.trim();
    let tree = cache.join("versions/trees").join(format!("{name}-{commit}"));
    if !tree.join(".git").exists() {
        let mut prune = git();
        output_of(prune.arg("-C").arg(&repository).args(["worktree", "prune"]))?;
        let mut add = git();
        add.arg("-C").arg(&repository).args(["worktree", "add", "--quiet", "--force", "--detach"]);
        output_of(add.arg(&tree).arg(commit)).with_context(|| format!("cannot check out {commit}"))?;
    }
    Ok(tree)
}

/// The commit of a tag or a branch; a text that looks like a commit is one.
fn commit_of(url: &str, revision: &str) -> Result<String> {
    if revision.len() >= 7 && revision.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(revision.to_owned());
    }
    let all = output_of(git().args(["ls-remote", "--", url])).map_err(bad)?;
    // An annotated tag's commit has a line of its own.
    let names = ["refs/tags/{}^{}", "refs/tags/{}", "refs/heads/{}", "{}"]
        .map(|form| form.replacen("{}", revision, 1));
    let commit = |name: &String| {
        let mut lines = all.lines().filter_map(|line| line.split_once('\t'));
        lines.find(|(_, found)| found == name).map(|(commit, _)| commit.to_owned())
    };
    names.iter().find_map(commit).ok_or_else(|| {
        BadInput(format!("{url} has no branch or tag {revision}; write a commit with seven digits or more"))
            .into()
    })
}

/// git without prompts, and independent of the repository that it may be called in.
pub(super) fn git() -> Command {
    let mut git = command("git");
    git.env("GIT_TERMINAL_PROMPT", "0")
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE");
    git
}

fn bad(error: anyhow::Error) -> anyhow::Error {
    BadInput(format!("git cannot read it: {}", cause(&error))).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> (tempfile::TempDir, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| {
            let mut git = git();
            git.arg("-C").arg(directory.path()).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
            output_of(git.args(arguments)).unwrap()
        };
        run(&["init", "--quiet", "--initial-branch=main"]);
        let commits = ["one", "two"].map(|text| {
            std::fs::write(directory.path().join("file"), text).unwrap();
            run(&["add", "file"]);
            run(&["commit", "--quiet", "-m", text]);
            run(&["tag", "-a", "-m", text, text]);
            run(&["rev-parse", "HEAD"]).trim().to_owned()
        });
        (directory, commits.to_vec())
    }

    #[test]
    fn a_branch_a_tag_and_a_commit_are_checked_out() {
        let (repository, commits) = repository();
        let cache = tempfile::tempdir().unwrap();
        let url = repository.path().display().to_string();
        let text = |revision: &str| {
            let tree = check_out(cache.path(), &url, revision)?;
            Ok(std::fs::read_to_string(tree.join("file"))?)
        };
        let found = |revision: &str| -> Result<String> { text(revision) };
        assert_eq!(found("main").unwrap(), "two");
        assert_eq!(found("one").unwrap(), "one");
        assert_eq!(found(&commits[0][..8]).unwrap(), "one");
        // A commit made after the first check-out.
        std::fs::write(repository.path().join("file"), "three").unwrap();
        let mut commit = git();
        commit.arg("-C").arg(repository.path()).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        output_of(commit.args(["commit", "--quiet", "-a", "-m", "three"])).unwrap();
        assert_eq!(found("main").unwrap(), "three");
        for (revision, said) in
            [("four", "has no branch or tag four"), ("deadbeef", "has no commit deadbeef")]
        {
            let refusal = found(revision).unwrap_err();
            assert!(tooling::is_bad_input(&refusal) && refusal.to_string().contains(said), "{refusal:#}");
        }
    }
}
