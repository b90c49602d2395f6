//! Workers built with another version of their framework than the pinned one: `candle@0.10.2`,
//! `candle@../my-candle`, `candle@git:URL#REVISION`.
//!
//! The worker's sources are those of this repository. Its package gets another manifest, in its own directory below
//! the cache, with its own lock file. Such packages share one target directory, so common dependencies are compiled
//! once. cargo decides what has to be built, so that a second run builds nothing.

mod build;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
pub use build::{Builder, Framework, place};
use clap::ValueEnum;
use sha2::{Digest, Sha256};

use crate::download;
use crate::receipt::hexadecimal;
use crate::tooling::process::{command, output_of};
use crate::tooling::{BadInput, Reporter};

/// Why a program failed, in its own words, without the command line, which says little to people.
fn cause(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.split_once("` failed: ").map_or(text.clone(), |(_, cause)| cause.to_owned())
}

/// Gives the worker the framework's name and version when it is compiled (`worker::framework_version!`).
const NAMED: &str = "PHOTOFINISH_FRAMEWORK";

// The text after the `@` of a column.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    /// `1.24.4`.
    Release(String),
    /// A directory or a file.
    Place(PathBuf),
    /// `git:URL#REVISION`: a commit, a tag or a branch of a repository.
    Git { url: String, revision: String },
    /// `build:debug`: the pinned version, with the worker built in another way.
    Build(Build),
}

/// Another way to build a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Build {
    /// Without optimisation, like `cargo build`.
    Debug,
    /// For any processor of its kind: without the extra instructions of this one.
    Generic,
    /// As the others here: a worker that an installation does not bring.
    #[value(skip)]
    Here,
}

impl Version {
    /// # Errors
    /// A repository without a revision, or an unknown way to build.
    pub fn parse(text: &str) -> Result<Version> {
        if let Some(repository) = text.strip_prefix("git:") {
            let Some((url, revision)) = repository.rsplit_once('#').filter(|(_, name)| !name.is_empty())
            else {
                return Err(BadInput(format!(
                    "{text} names no revision; write git:URL#REVISION, with a commit, a tag or a branch"
                ))
                .into());
            };
            return Ok(Version::Git { url: url.to_owned(), revision: revision.to_owned() });
        }
        if let Some(named) = text.strip_prefix("build:") {
            let unknown =
                |_| BadInput(format!("{text} is no way to build; there are build:debug and build:generic"));
            return Ok(Version::Build(Build::from_str(named, false).map_err(unknown)?));
        }
        Ok(match is_release(text) {
            true => Version::Release(text.to_owned()),
            false => Version::Place(PathBuf::from(text)),
        })
    }

    /// The release, if it is one.
    pub fn release(&self) -> Option<&str> {
        match self {
            Version::Release(release) => Some(release),
            _ => None,
        }
    }

    /// A directory name that no other version has. Whatever a path or a URL contains, it is one component.
    fn slug(&self) -> String {
        match self {
            Version::Release(release) => release.clone(),
            Version::Place(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                slug(&name, &path.to_string_lossy())
            }
            Version::Git { url, revision } => {
                let name = Path::new(url).file_stem().unwrap_or_default().to_string_lossy();
                slug(&format!("{name}-{revision}"), &format!("{url}#{revision}"))
            }
            Version::Build(Build::Debug) => "build-debug".to_owned(),
            Version::Build(Build::Generic) => "build-generic".to_owned(),
            Version::Build(Build::Here) => "build-here".to_owned(),
        }
    }
}

/// One path component: a readable name, and digits that no other whole text has.
fn slug(name: &str, whole: &str) -> String {
    let plain = |byte: char| if byte.is_ascii_alphanumeric() { byte } else { '-' };
    let name: String = name.chars().map(plain).take(40).collect();
    format!("{name}-{}", hexadecimal(&Sha256::digest(whole.as_bytes())[..6]))
}

/// Whether a text is a release number: `1.24.4`.
fn is_release(text: &str) -> bool {
    let number = text.split(['-', '+']).next().unwrap_or_default();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    number.contains('.') && number.split('.').all(is_number) && text.bytes().all(is_plain)
}

// Another release of a Python package, over those of a reference's environment.

/// The path of a package with this version and its dependencies, installed or not.
pub fn place_of_package(cache: &Path, package: &str, version: &Version) -> PathBuf {
    cache.join("versions/python").join(format!("{package}-{}", version.slug()))
}

/// Installs a package for an interpreter, unless that release is there already. pip's report, which has the hashes of
/// the downloads, is stored next to it.
///
/// # Errors
/// In one sentence: a release that does not exist, or sources that cannot be built.
pub fn install_package(
    cache: &Path,
    python: &Path,
    package: &str,
    version: &Version,
    reporter: Reporter,
) -> Result<PathBuf> {
    let place = place_of_package(cache, package, version);
    let receipt = PathBuf::from(format!("{}.json", place.display()));
    if version.release().is_some() && receipt.is_file() {
        return Ok(place);
    }
    let requirement = match version {
        Version::Release(release) => format!("{package}=={release}"),
        Version::Place(path) => std::path::absolute(path)?.display().to_string(),
        Version::Git { url, revision } => format!("{package} @ git+{url}@{revision}"),
        Version::Build(_) => {
            return Err(BadInput(format!("{package} is a Python package, which is not built here")).into());
        }
    };
    let parent = place.parent().context("it is below the cache")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let staging = tempfile::Builder::new().prefix(".python-").tempdir_in(parent)?;
    let (new, report) = (staging.path().join("new"), staging.path().join("report.json"));
    reporter.note(&format!("installing {requirement}"));
    let mut pip = command(python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    if version.release().is_some() {
        pip.args(["--only-binary", ":all:"]);
    }
    download::from_mirror(&mut pip)?;
    pip.arg("--target").arg(&new).arg("--report").arg(&report).arg(&requirement);
    output_of(&mut pip)
        .map_err(|error| BadInput(format!("pip cannot install {requirement}: {}", cause(&error))))?;
    ensure!(report.is_file(), "pip wrote no report");
    let _ = fs::remove_dir_all(&place);
    fs::rename(&new, &place).with_context(|| format!("cannot install {}", place.display()))?;
    fs::rename(&report, &receipt).with_context(|| format!("cannot write {}", receipt.display()))?;
    Ok(place)
}

// A checkout of a framework's repository, for comparisons of its commits.

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
            let is_shallow = self.git(&["rev-parse", "--is-shallow-repository"]);
            let advice = match is_shallow.is_ok_and(|answer| answer.trim() == "true") {
                true => {
                    "it is a shallow clone: fetch the rest with `git fetch --unshallow` (in a workflow give \
                     actions/checkout `fetch-depth: 0`)"
                }
                false => "name a branch, a tag or a hash",
            };
            BadInput(format!("{} has no commit {revision}; {advice}", self.root))
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

// A revision of a repository, checked out below the cache.

/// The directory with this revision: a commit, a tag or a branch, which is resolved each time.
///
/// # Errors
/// A URL that git cannot read, and a revision that it does not have.
fn check_out(cache: &Path, url: &str, revision: &str) -> Result<PathBuf> {
    let url = if Path::new(url).is_dir() {
        std::path::absolute(url)?.display().to_string()
    } else {
        url.to_owned()
    };
    let name = Path::new(&url).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let place = cache.join("versions/repositories").join(slug(&name, &url));
    let asked = commit_of(&url, revision)?;
    if !place.join("HEAD").is_file() {
        // An interrupted clone has no HEAD.
        let _ = fs::remove_dir_all(&place);
        output_of(git().args(["clone", "--quiet", "--bare", "--", &url]).arg(&place)).map_err(bad)?;
    }
    let repository = Repository { root: place.display().to_string() };
    let find = || repository.git(&["rev-parse", "--verify", "--quiet", &format!("{asked}^{{commit}}")]);
    let commit = find().or_else(|_| {
        // Servers may refuse to send a commit by its hash although a branch contains it.
        for what in ["+refs/heads/*:refs/heads/*", &asked] {
            let _ = repository.git(&["fetch", "--quiet", "--tags", "origin", what]);
        }
        find().map_err(|_| BadInput(format!("{url} has no commit {revision}")))
    })?;
    let commit = commit.trim();
    let tree = cache.join("versions/trees").join(format!("{name}-{commit}"));
    if !tree.join(".git").exists() {
        repository.git(&["worktree", "prune"])?;
        let add = ["worktree", "add", "--quiet", "--force", "--detach", &tree.display().to_string(), commit];
        repository.git(&add).with_context(|| format!("cannot check out {commit}"))?;
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

/// Longest silence of a server, in seconds.
const SILENCE_S: &str = "30";

/// git without prompts, and independent of the repository that it may be called in.
fn git() -> Command {
    let mut git = command("git");
    // Of a server that accepts and says nothing, nothing is awaited for longer (git-config: `http.lowSpeedLimit`).
    git.env("GIT_HTTP_LOW_SPEED_LIMIT", "1")
        .env("GIT_HTTP_LOW_SPEED_TIME", SILENCE_S)
        .env("GIT_TERMINAL_PROMPT", "0")
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

    #[test]
    fn releases_are_numbers_and_all_else_is_a_path_or_a_repository() {
        for release in ["1.24.4", "2.0", "0.12.0-alpha.1"] {
            assert_eq!(Version::parse(release).unwrap().release(), Some(release));
        }
        for place in ["", "1", "1.", "../1.2", "lib.so.1.24", "v1.2", "1.2/x"] {
            assert_eq!(Version::parse(place).unwrap(), Version::Place(place.into()));
        }
        let git = Version::parse("git:https://host/candle.git#refs/pull/1/head").unwrap();
        let (url, revision) = ("https://host/candle.git".to_owned(), "refs/pull/1/head".to_owned());
        assert_eq!(git, Version::Git { url, revision });
        assert_eq!(Version::parse("build:debug").unwrap(), Version::Build(Build::Debug));
        let unknown = Version::parse("build:fast").unwrap_err().to_string();
        assert!(unknown.contains("there are build:debug and build:generic"), "{unknown}");
        let refusal = Version::parse("git:https://host/candle").unwrap_err();
        assert!(crate::tooling::is_bad_input(&refusal) && refusal.to_string().contains("#REVISION"));
    }

    #[test]
    fn every_version_has_a_directory_of_its_own() {
        let slug = |text: &str| Version::parse(text).unwrap().slug();
        assert_eq!(slug("0.10.2"), "0.10.2");
        let others =
            ["/a/candle", "/b/candle", "git:https://host/candle.git#main", "git:https://host/candle.git#v1"];
        let slugs: std::collections::BTreeSet<String> = others.iter().map(|text| slug(text)).collect();
        assert_eq!(slugs.len(), others.len());
        assert!(slugs.iter().all(|slug| !slug.contains('/')), "{slugs:?}");
    }

    fn run(directory: &Path, arguments: &[&str]) -> String {
        let mut git = git();
        git.arg("-C").arg(directory).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        output_of(git.args(arguments)).unwrap().trim().to_owned()
    }

    #[test]
    fn a_branch_a_tag_and_a_commit_are_checked_out() {
        let repository = tempfile::tempdir().unwrap();
        run(repository.path(), &["init", "--quiet", "--initial-branch=main"]);
        let commits = ["one", "two"].map(|text| {
            fs::write(repository.path().join("file"), text).unwrap();
            run(repository.path(), &["add", "file"]);
            run(repository.path(), &["commit", "--quiet", "-m", text]);
            run(repository.path(), &["tag", "-a", "-m", text, text]);
            run(repository.path(), &["rev-parse", "HEAD"])
        });
        let cache = tempfile::tempdir().unwrap();
        let url = repository.path().display().to_string();
        let found = |revision: &str| -> Result<String> {
            let tree = check_out(cache.path(), &url, revision)?;
            Ok(fs::read_to_string(tree.join("file"))?)
        };
        assert_eq!(found("main").unwrap(), "two");
        assert_eq!(found("one").unwrap(), "one");
        assert_eq!(found(&commits[0][..8]).unwrap(), "one");
        // A commit made after the first check-out.
        fs::write(repository.path().join("file"), "three").unwrap();
        run(repository.path(), &["commit", "--quiet", "-a", "-m", "three"]);
        assert_eq!(found("main").unwrap(), "three");
        for (revision, said) in
            [("four", "has no branch or tag four"), ("deadbeef", "has no commit deadbeef")]
        {
            let refusal = found(revision).unwrap_err();
            assert!(
                crate::tooling::is_bad_input(&refusal) && refusal.to_string().contains(said),
                "{refusal:#}"
            );
        }
    }
}
