//! Builds of commits, kept in the cache directory: a commit does not change, so its workers are built once.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use tooling::Reporter;
use tooling::process::{cargo, command, output_of};

use crate::workspace::Workspace;

/// Builds that are kept; the one that was used longest ago is removed first.
const KEPT: usize = 8;
/// Lists the toolchain and the inputs of the workers in this directory.
const RECEIPT: &str = "built-with.txt";
/// The commit, for the driver's report.
const COMMIT: &str = "commit.txt";

/// The kept workers of one commit.
pub(super) struct Build {
    place: PathBuf,
    built_with: String,
}

impl Build {
    /// The place of a commit's workers. Those that another compiler or another machine built are removed.
    pub(super) fn open(workspace: &Workspace, commit: &str) -> Result<Build> {
        Build::at(&workspace.cache.join("gate"), commit, toolchain(workspace)?)
    }

    fn at(builds: &Path, commit: &str, built_with: String) -> Result<Build> {
        let place = builds.join(commit);
        if fs::read_to_string(place.join(RECEIPT)).is_ok_and(|found| found != built_with) {
            fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
        }
        Ok(Build { place, built_with })
    }

    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Whether all these files exist.
    pub(super) fn has<'a>(&self, mut files: impl Iterator<Item = &'a String>) -> bool {
        self.place.join(RECEIPT).is_file() && files.all(|file| self.place.join(file).is_file())
    }

    /// Copies files that were just built. One that could not be built was reported, and is a row with its reason.
    pub(super) fn keep<'a>(&self, from: &Path, files: impl Iterator<Item = &'a String>) -> Result<()> {
        fs::create_dir_all(&self.place).with_context(|| format!("cannot make {}", self.place.display()))?;
        for file in files {
            let (built, kept) = (from.join(file), self.place.join(file));
            if built.is_file() {
                // An interrupted copy must not be taken for a worker.
                let staged = kept.with_extension("new");
                fs::copy(&built, &staged)
                    .and_then(|_| fs::rename(&staged, &kept))
                    .with_context(|| format!("cannot keep {}", kept.display()))?;
            }
        }
        fs::write(self.place.join(RECEIPT), &self.built_with).context("cannot write the receipt")
    }

    /// Notes the commit and that the build is used now, and removes builds that have not been used for long.
    pub(super) fn note_use(&self, commit: &str, reporter: Reporter) -> Result<()> {
        fs::write(self.place.join(COMMIT), commit)
            .with_context(|| format!("cannot write into {}", self.place.display()))?;
        let builds = self.place.parent().unwrap_or(&self.place);
        for stale in stale(builds)? {
            reporter.note(&format!("removing an old build, {}", stale.display()));
            fs::remove_dir_all(&stale).with_context(|| format!("cannot remove {}", stale.display()))?;
        }
        Ok(())
    }
}

/// The builds beyond those that are kept, by the time of their last use.
fn stale(builds: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(builds).with_context(|| format!("cannot read {}", builds.display()))?;
    let used = |place: &Path| fs::metadata(place.join(COMMIT)).and_then(|file| file.modified());
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()).filter(|place| place.is_dir()))
        .map(|place| (used(&place).unwrap_or(SystemTime::UNIX_EPOCH), place))
        .collect();
    found.sort();
    let excess = found.len().saturating_sub(KEPT);
    Ok(found.into_iter().take(excess).map(|(_, place)| place).collect())
}

/// The compiler, its flags, and the features it detects on this machine's processor.
fn toolchain(workspace: &Workspace) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output_of(command(&rustc).arg("-vV"))?;
    let mut native = command(&rustc);
    let features = output_of(native.args(["--print", "cfg", "-C", "target-cpu=native"]))?;
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let cargo = output_of(cargo(&workspace.root).arg("--version"))?;
    let given =
        ["LIBTORCH", "CXX"].map(|name| format!("{name}={}\n", std::env::var(name).unwrap_or_default()));
    Ok(format!("{version}{cargo}RUSTFLAGS={flags}\n{}{features}", given.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(builds: &Path, commit: &str, worker: &str, with: &str) -> Build {
        let built = tempfile::tempdir().unwrap();
        fs::write(built.path().join(worker), commit).unwrap();
        let build = Build::at(builds, commit, with.to_owned()).unwrap();
        build.keep(built.path(), [worker.to_owned(), "never-built".to_owned()].iter()).unwrap();
        build.note_use(commit, Reporter::new(true)).unwrap();
        build
    }

    #[test]
    fn a_build_is_there_for_the_same_compiler_and_with_the_workers_that_were_built() {
        let builds = tempfile::tempdir().unwrap();
        keep(builds.path(), "a", "engine-candle", "rustc 1");
        let again = Build::at(builds.path(), "a", "rustc 1".into()).unwrap();
        assert!(again.has(["engine-candle".to_owned()].iter()));
        assert!(!again.has(["engine-candle".to_owned(), "never-built".to_owned()].iter()));
        let other = Build::at(builds.path(), "a", "rustc 2".into()).unwrap();
        assert!(!other.has(["engine-candle".to_owned()].iter()) && !other.place().exists());
    }

    #[test]
    fn builds_that_were_used_longest_ago_are_removed() {
        let builds = tempfile::tempdir().unwrap();
        for number in 0..KEPT + 2 {
            let build = keep(builds.path(), &number.to_string(), "w", "rustc 1");
            let used = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 + number as u64);
            let file = fs::File::options().write(true).open(build.place().join(COMMIT)).unwrap();
            file.set_modified(used).unwrap();
        }
        assert!(stale(builds.path()).unwrap().is_empty());
        let is_there = |number: &usize| builds.path().join(number.to_string()).is_dir();
        let kept: Vec<usize> = (0..KEPT + 2).filter(is_there).collect();
        assert_eq!(kept, (2..KEPT + 2).collect::<Vec<_>>(), "the first two went when the last two came");
    }
}
