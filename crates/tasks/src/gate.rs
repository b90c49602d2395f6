//! `cargo xtask gate`: is a commit slower than another? Both are built and measured interleaved on this machine;
//! the exit code is that of `photofinish check`.
//!
//! Git worktrees hold the commits, so that this checkout is not changed. They share a target directory, in
//! which the common dependencies of the commits, above all the frameworks, are compiled once; binaries of one
//! name overwrite each other there, so that each commit's are taken out before the next is built. It is not
//! this checkout's target directory: cargo names its outputs by paths within a workspace and calls them fresh
//! by the age of the sources, so that one checkout's crates pass for another's. (Sharing it was tried: the
//! second commit was "built" in no time, and was the first.) For the same reason a commit is checked out
//! after the one before it was built: its files are then the newest.
//!
//! The builds of commits are kept in the cache directory (`builds`).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use configs::{DEFAULT_MODEL, Engine};
use setup::Piece;
use setup::tooling::process::{cargo, command, exit_code, file_name, output_of, status_of};
use setup::tooling::{self, BadInput, Reporter, Scratch};

use crate::build::{self, Engines, PROGRAMS, Wanted};
use crate::cargo::layouts;
use crate::compare::Needs;
use crate::install::copy;
use crate::workspace::{PHOTOFINISH, Workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The commit to compare with: a branch, a tag, a hash
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
    tooling::listen()?;
    let mut needs = Needs::read(&asked.args)?;
    needs.settle(&workspace.layers());
    let reporter = Reporter::new(needs.quiet);
    // A mistake in the second costs nothing before the first is built.
    let base = resolve(workspace, &asked.base)?;
    let head = asked.head.as_ref().map(|rev| resolve(workspace, rev)).transpose()?;
    refuse(&asked.args)?;
    // Worktrees without a directory are forgotten, as a killed gate leaves them.
    output_of(git(&workspace.root).args(["worktree", "prune"]))?;
    let directory = Scratch::new()?;
    let begun = now();
    let gate = Gate { workspace, needs: &needs, reporter, directory: directory.path() };
    let base = gate.workers(&asked.base, &base)?;
    let head = match (&asked.head, &head) {
        (Some(rev), Some(commit)) => {
            let build = gate.workers(rev, commit)?;
            // Its configurations are its own, so it stays for the measurement.
            Some((Tree::check_out(workspace, commit, directory.path().join("head"))?, build))
        }
        _ => None,
    };
    let driver = gate.driver(head.as_ref())?;
    tooling::check()?;
    reporter.note(&format!("all is built after {}; now both are measured", words(begun.elapsed())));
    let status = status_of(&mut check(&driver, &base.place, asked, workspace))?;
    Ok(exit_code(status))
}

fn check(driver: &Path, base: &Path, asked: &Args, workspace: &Workspace) -> Command {
    let mut check = command(driver);
    check.arg("check").arg("--base-workers").arg(base).args(&asked.args);
    let given = asked.args.iter().any(|arg| arg.to_string_lossy().starts_with("--results-dir"));
    if !given {
        check.arg("--results-dir").arg(workspace.root.join("results"));
    }
    check.env("PHOTOFINISH_PROVISIONED", "1").stdin(Stdio::null());
    check
}

struct Gate<'a> {
    workspace: &'a Workspace,
    needs: &'a Needs,
    reporter: Reporter,
    /// Where commits are checked out.
    directory: &'a Path,
}

impl Gate<'_> {
    /// The workers of a commit: kept ones, or built now.
    fn workers(&self, rev: &str, commit: &str) -> Result<Build> {
        let (workspace, reporter) = (self.workspace, self.reporter);
        let build = Build::at(&workspace.cache.join("gate"), commit, toolchain(workspace)?)?;
        let name = format!("{rev} ({})", commit.get(..9).unwrap_or(commit));
        let engines = Engines::read(workspace)?;
        let files: Vec<String> = files(&engines.select(&self.needs.frameworks)?);
        let what = files.join(", ");
        if build.has(&files) {
            reporter.note(&format!("{name}: {what} as built before, in {}", build.place.display()));
        } else {
            reporter.note(&format!("{name}: building {what}; the first build of a commit takes minutes"));
            let begun = now();
            let tree = Tree::check_out(workspace, commit, self.directory.join(commit))?;
            let apart = workspace.apart(&tree.root);
            let built = build_workers(&apart, self.needs, reporter)
                .with_context(|| format!("cannot build the workers of {rev}"))?;
            build.keep(&apart.binaries, &built)?;
            reporter.note(&format!("{name}: built in {}", words(begun.elapsed())));
        }
        build.note_use(commit, reporter)?;
        Ok(build)
    }

    fn driver(&self, head: Option<&(Tree, Build)>) -> Result<PathBuf> {
        let (workspace, reporter) = (self.workspace, self.reporter);
        // This checkout's driver in every case: an older commit's may have no gate.
        reporter.note(if head.is_some() {
            "this checkout: building the driver"
        } else {
            "this checkout: building the driver and the workers"
        });
        let begun = now();
        let model = self.needs.model.as_deref().unwrap_or(DEFAULT_MODEL);
        let pieces = build::pieces_of_model(workspace, model)?;
        let wanted = Wanted { programs: PROGRAMS.to_vec(), pieces, ..Wanted::default() };
        build::together(workspace, &wanted, reporter)?;
        let driver = match head {
            Some((tree, build)) => {
                // Where the driver looks for a checkout's binaries.
                let place = tree.root.join("target/release");
                fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
                let workers = fs::read_dir(&build.place)
                    .with_context(|| format!("cannot read {}", build.place.display()))?;
                for worker in workers {
                    let worker = worker?;
                    copy(&worker.path(), &place.join(worker.file_name()))?;
                }
                for tool in [PHOTOFINISH, "prepare"] {
                    copy(&workspace.binary(tool), &place.join(file_name(tool)))?;
                }
                place.join(file_name(PHOTOFINISH))
            }
            None => {
                build_workers(workspace, self.needs, reporter)?;
                workspace.binary(PHOTOFINISH)
            }
        };
        reporter.note(&format!("this checkout: built in {}", words(begun.elapsed())));
        Ok(driver)
    }
}

/// Fewest rounds that can support a verdict: `statistics::MIN_ROUNDS`, which a test holds this against.
const MIN_ROUNDS: usize = 6;

/// Refuses arguments that `photofinish check` would refuse after minutes of building.
fn refuse(args: &[OsString]) -> Result<()> {
    let rounds = Needs::values(args, "--rounds")?.pop();
    let few = rounds.as_ref().filter(|text| text.parse().is_ok_and(|rounds: usize| rounds < MIN_ROUNDS));
    let is_quick = rounds.is_none() && args.iter().any(|arg| arg == "--quick");
    let flag = match few {
        Some(rounds) => format!("--rounds {rounds}"),
        None if is_quick => "--quick".to_owned(),
        None => return Ok(()),
    };
    Err(BadInput(format!(
        "{flag} can decide nothing: a verdict takes {MIN_ROUNDS} rounds; leave it out, or give --rounds {MIN_ROUNDS} or \
         more"
    ))
    .into())
}

/// Builds the requested workers, each in several layouts if the linker can; with the names of their files.
fn build_workers(workspace: &Workspace, needs: &Needs, reporter: Reporter) -> Result<Vec<String>> {
    let engines = Engines::read(workspace)?;
    let selected = engines.select(&needs.frameworks)?;
    for engine in &selected {
        // An old file in the same place must not be taken for a worker of this commit if the build fails.
        let _ = fs::remove_file(workspace.binary(&engine.worker));
    }
    let mut files = files(&selected);
    let wanted = Wanted { engines: selected.clone(), ..Wanted::default() };
    build::together(workspace, &wanted, reporter)?;
    let libtorch = workspace.provision(reporter.without_bars())?.place(Piece::Libtorch)?;
    for engine in selected.iter().filter(|engine| files.contains(&file_name(&engine.worker))) {
        let program = workspace.binary(&engine.worker);
        if !program.is_file() {
            continue;
        }
        let libtorch = engine.native.contains(&Piece::Libtorch.to_string()).then_some(libtorch.as_path());
        if let Err(error) = layouts(workspace, &engine.worker, libtorch, reporter) {
            reporter.warn(&format!("{} has one layout: {error:#}", engine.worker));
        }
    }
    for file in files.clone() {
        let made = setup::layouts::files(&workspace.binaries.join(file)).into_iter();
        files.extend(made.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())));
    }
    Ok(files)
}

/// The files of the engines' workers, each once. Workers that cargo does not build are started from the
/// checkout.
fn files(engines: &[&Engine]) -> Vec<String> {
    let built = engines.iter().filter(|engine| !engine.worker.contains('/'));
    let names: BTreeSet<String> = built.map(|engine| file_name(&engine.worker)).collect();
    names.into_iter().collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a build took is told to people, and measures nothing"
)]
fn now() -> Instant {
    Instant::now()
}

/// A duration in words: "1 min 24 s".
fn words(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

// Builds of commits, kept in the cache directory: a commit does not change, so its workers are built once.

/// Builds that are kept; the one that was used longest ago is removed first.
const KEPT: usize = 8;

/// Lists the toolchain and the inputs of the workers in this directory.
const RECEIPT: &str = "built-with.txt";

/// The commit, for the driver's report.
const COMMIT: &str = "commit.txt";

struct Build {
    place: PathBuf,
    built_with: String,
}

impl Build {
    /// The place of a commit's workers. Those that another compiler or another machine built are removed.
    fn at(builds: &Path, commit: &str, built_with: String) -> Result<Build> {
        let place = builds.join(commit);
        if fs::read_to_string(place.join(RECEIPT)).is_ok_and(|found| found != built_with) {
            fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
        }
        Ok(Build { place, built_with })
    }

    fn has(&self, files: &[String]) -> bool {
        self.place.join(RECEIPT).is_file() && files.iter().all(|file| self.place.join(file).is_file())
    }

    /// Copies files that were just built. One that could not be built was reported, and is a row with its reason.
    fn keep(&self, from: &Path, files: &[String]) -> Result<()> {
        fs::create_dir_all(&self.place).with_context(|| format!("cannot make {}", self.place.display()))?;
        for file in files.iter().filter(|file| from.join(file).is_file()) {
            let kept = self.place.join(file);
            // An interrupted copy must not be taken for a worker.
            tooling::replace(&from.join(file), &kept)
                .with_context(|| format!("cannot keep {}", kept.display()))?;
        }
        fs::write(self.place.join(RECEIPT), &self.built_with).context("cannot write the receipt")
    }

    /// Notes the commit and that the build is used now, and removes builds that have not been used for long.
    fn note_use(&self, commit: &str, reporter: Reporter) -> Result<()> {
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
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|place| place.is_dir()).collect();
    let used = |place: &PathBuf| fs::metadata(place.join(COMMIT)).and_then(|file| file.modified()).ok();
    found.sort_by_cached_key(used);
    found.truncate(found.len().saturating_sub(KEPT));
    Ok(found)
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
    let layouts = setup::layouts::LAYOUTS;
    Ok(format!("{version}{cargo}RUSTFLAGS={flags}\n{}{layouts} layouts\n{features}", given.concat()))
}

// A commit, checked out as a git worktree outside this checkout.

/// A worktree; removed when dropped.
struct Tree {
    root: PathBuf,
    /// The repository that it belongs to.
    repository: PathBuf,
}

impl Tree {
    fn check_out(workspace: &Workspace, commit: &str, root: PathBuf) -> Result<Tree> {
        let mut add = git(&workspace.root);
        add.args(["worktree", "add", "--quiet", "--detach"]).arg(&root).arg(commit);
        output_of(&mut add)?;
        Ok(Tree { root, repository: workspace.root.clone() })
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let mut remove = git(&self.repository);
        // If this fails, the next gate prunes it.
        let _ = output_of(remove.args(["worktree", "remove", "--force"]).arg(&self.root));
    }
}

fn resolve(workspace: &Workspace, rev: &str) -> Result<String> {
    let commit = format!("{rev}^{{commit}}");
    let mut resolve = git(&workspace.root);
    resolve.args(["rev-parse", "--verify", "--quiet", "--end-of-options", &commit]);
    let unknown =
        |_| BadInput(format!("git knows no commit {rev:?} here; in a shallow clone, fetch it first"));
    Ok(output_of(&mut resolve).map_err(unknown)?.trim().to_owned())
}

fn git(directory: &Path) -> Command {
    let mut git = command("git");
    git.arg("-C").arg(directory);
    git
}

#[cfg(test)]
mod tests {
    use setup::tooling::is_bad_input;

    use super::*;

    #[test]
    fn rounds_that_can_decide_nothing_are_refused_before_anything_is_built() {
        assert_eq!(MIN_ROUNDS, statistics::MIN_ROUNDS);
        let refused = |args: &[&str]| refuse(&args.iter().map(OsString::from).collect::<Vec<_>>());
        let error = refused(&["--frameworks", "candle", "--rounds", "2"]).unwrap_err();
        assert!(is_bad_input(&error) && error.to_string().contains("a verdict takes 6"), "{error}");
        assert!(refused(&["--rounds=5"]).is_err() && refused(&["--quick"]).is_err());
        for args in [&["--rounds", "6"][..], &["--rounds=auto"], &[]] {
            refused(args).unwrap();
        }
    }

    #[test]
    fn times_are_told_in_minutes_and_seconds() {
        assert_eq!([59, 84].map(|seconds| words(Duration::from_secs(seconds))), ["59 s", "1 min 24 s"]);
    }

    #[test]
    fn variants_of_an_engine_are_one_file() {
        let engines = Engines::read(&Workspace::locate().unwrap()).unwrap();
        let names = ["tch".to_owned(), "tch-base".to_owned(), "transformers".to_owned()];
        let selected = engines.select(&names).unwrap();
        assert_eq!(files(&selected), [file_name("engine-tch")]);
    }

    fn keep(builds: &Path, commit: &str, worker: &str, with: &str) -> Build {
        let built = tempfile::tempdir().unwrap();
        fs::write(built.path().join(worker), commit).unwrap();
        let build = Build::at(builds, commit, with.to_owned()).unwrap();
        build.keep(built.path(), &[worker, "never-built"].map(str::to_owned)).unwrap();
        build.note_use(commit, Reporter::new(true)).unwrap();
        build
    }

    #[test]
    fn a_build_is_there_for_the_same_compiler_and_with_the_workers_that_were_built() {
        let builds = tempfile::tempdir().unwrap();
        keep(builds.path(), "a", "engine-candle", "rustc 1");
        let worker = ["engine-candle".to_owned()];
        let again = Build::at(builds.path(), "a", "rustc 1".into()).unwrap();
        assert!(again.has(&worker) && !again.has(&[worker[0].clone(), "never-built".to_owned()]));
        let other = Build::at(builds.path(), "a", "rustc 2".into()).unwrap();
        assert!(!other.has(&worker) && !other.place.exists());
    }

    #[test]
    fn builds_that_were_used_longest_ago_are_removed() {
        let builds = tempfile::tempdir().unwrap();
        for number in 0..KEPT + 2 {
            let build = keep(builds.path(), &number.to_string(), "w", "rustc 1");
            let used = std::time::UNIX_EPOCH + Duration::from_secs(1000 + number as u64);
            let file = fs::File::options().write(true).open(build.place.join(COMMIT)).unwrap();
            file.set_modified(used).unwrap();
        }
        assert!(stale(builds.path()).unwrap().is_empty());
        let is_there = |number: &usize| builds.path().join(number.to_string()).is_dir();
        let kept: Vec<usize> = (0..KEPT + 2).filter(is_there).collect();
        assert_eq!(kept, (2..KEPT + 2).collect::<Vec<_>>(), "the first two went when the last two came");
    }

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
