//! `cargo xtask install`: the program, and everything that it needs to work without this checkout
//! (docs/how-to/install.md). `setup::Layout` has the place of each part; the program finds them by it.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use configs::Engine;
use setup::tooling::process::{command, file_name, output_of};
use setup::tooling::{self, BadInput, Reporter};
use setup::{BuildRecord, Home, Layout, Piece};

use crate::build::{self, Engines, PROGRAMS, Wanted};
use crate::workspace::{PHOTOFINISH, Workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory that gets bin/photofinish and share/photofinish/ [default: ~/.local, by XDG_DATA_HOME]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) what: What,
    /// Plain lines on long work instead of progress bars, and nothing else
    #[arg(long)]
    quiet: bool,
}

#[derive(Clone, Default, clap::Args)]
pub(crate) struct What {
    /// Names of configs/engines, or `all`; candle, tch, ort and the hybrids, unless given
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub(crate) frameworks: Vec<String>,
    /// The program that downloads models named `hf:owner/name`, too; what `dist` makes has it always
    #[arg(long)]
    pub(crate) hub: bool,
}

#[derive(Debug)]
pub(crate) struct Target {
    programs: PathBuf,
    layout: Layout,
}

impl Target {
    pub(crate) fn below(root: &Path) -> Self {
        Self { programs: root.join("bin"), layout: Layout::below(root) }
    }

    /// The user's own directories.
    fn usual(home: Home) -> Result<Self> {
        match (home.programs, home.data) {
            (Some(programs), Some(data)) => Ok(Self { programs, layout: Layout::at(data) }),
            _ => Err(BadInput("no home directory: set HOME, or name a directory with --root".into()).into()),
        }
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.programs.join(file_name(PHOTOFINISH))
    }
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let reporter = Reporter::new(args.quiet);
    let target = match &args.root {
        Some(root) => Target::below(&std::path::absolute(root)?),
        None => Target::usual(Home::from_environment())?,
    };
    refuse_others(&target.layout)?;
    let workspace = workspace.shipped();
    let binaries = build(&workspace, &args.what, reporter)?;
    let record = record(&workspace)?;
    put(&workspace, &binaries, &record, &target)?;
    reporter.note(&format!(
        "installed {}, with workers and configurations in {}",
        target.program().display(),
        target.layout.data().display()
    ));
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|directory| directory == target.programs) {
        reporter.note(&format!("{} is not in PATH", target.programs.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds it all; names of the binaries that go into the workers' directory. A worker that does not build is reported
/// and left out.
pub(crate) fn build(workspace: &Workspace, what: &What, reporter: Reporter) -> Result<Vec<String>> {
    let engines = Engines::read(workspace)?;
    let engines = engines.installed(&what.frameworks)?;
    let mut names = names(&engines, what.hub);
    for name in &names {
        // An old file must not be taken for a worker that does not build now.
        let _ = fs::remove_file(workspace.binary(name));
    }
    let tools = build::tools(&engines, what.hub);
    let programs: Vec<&str> = PROGRAMS.into_iter().chain(tools).collect();
    // Python environments are not installed, but the sources are.
    let engines = engines.into_iter().filter(|engine| !engine.worker.contains('/')).collect();
    build::together(workspace, &Wanted { programs, engines, ..Wanted::default() }, reporter)?;
    names.retain(|name| workspace.binary(name).is_file());
    Ok(names)
}

/// The binaries of `prepare`, of these engines' workers and of their tools.
pub(crate) fn names(engines: &[&Engine], hub: bool) -> Vec<String> {
    let workers = engines.iter().map(|engine| engine.worker.as_str()).filter(|worker| !worker.contains('/'));
    let names: BTreeSet<&str> = workers.chain(build::tools(engines, hub)).chain(["prepare"]).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// The version that is being installed, as results show it.
pub(crate) fn record(workspace: &Workspace) -> Result<BuildRecord> {
    let git =
        |arguments: &[&str]| output_of(command("git").arg("-C").arg(&workspace.root).args(arguments)).ok();
    let libtorch = workspace.provision(Reporter::new(true))?.find(Piece::Libtorch)?;
    let flags = workspace.variables.iter().find(|(name, _)| *name == "RUSTFLAGS");
    Ok(BuildRecord {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        git_commit: git(&["rev-parse", "HEAD"]).map(|commit| commit.trim().to_owned()),
        git_modified: git(&["status", "--porcelain", "--untracked-files=no"])
            .map(|changes| !changes.is_empty()),
        rustflags: flags.map(|(_, value)| value.clone()),
        libtorch: libtorch.filter(|found| found.given).map(|found| found.path),
    })
}

/// Puts everything into its place, and replaces an earlier installation there as a whole.
pub(crate) fn put(
    workspace: &Workspace,
    binaries: &[String],
    record: &BuildRecord,
    target: &Target,
) -> Result<()> {
    let data = target.layout.data();
    let parent = data.parent().ok_or_else(|| anyhow!("{} is no directory for it", data.display()))?;
    for directory in [parent, &target.programs] {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    // In the same directory as its final place, so that it can be moved there.
    let staging = tempfile::Builder::new().prefix(".photofinish-").tempdir_in(parent)?;
    let staged = Layout::at(staging.path().join("new"));
    fill(&staged, workspace, binaries, record)?;
    refuse_others(&target.layout)?;
    if data.exists() {
        fs::rename(data, staging.path().join("old"))
            .with_context(|| format!("cannot replace {}", data.display()))?;
    }
    fs::rename(staged.data(), data).with_context(|| format!("cannot install {}", data.display()))?;
    let program = target.program();
    tooling::replace(&workspace.binary(PHOTOFINISH), &program)
        .with_context(|| format!("cannot install {}", program.display()))
}

fn fill(layout: &Layout, workspace: &Workspace, binaries: &[String], record: &BuildRecord) -> Result<()> {
    copy_tree(&workspace.configs(), &layout.configs())?;
    let references = workspace.root.join("references/python");
    copy_tree(&references, &layout.data().join("references/python"))?;
    // Messages and help name pages.
    copy_tree(&workspace.root.join("docs"), &layout.data().join("docs"))?;
    copy_sources(layout, workspace, binaries)?;
    fs::create_dir(layout.workers())?;
    for name in binaries {
        copy(&workspace.binary(name), &layout.workers().join(file_name(name)))?;
    }
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&workspace.root.join(license), &layout.data().join(license))?;
    }
    layout.write_build(record)
}

/// Copies the sources of workers for frameworks that can have other versions, and of those that are built where they are
/// used.
fn copy_sources(layout: &Layout, workspace: &Workspace, binaries: &[String]) -> Result<()> {
    let engines = configs::engines(&workspace.layers()).map_err(|error| BadInput(error.to_string()))?;
    let is_built_there = |engine: &&configs::Engine| {
        let has_versions = engine.versions.as_ref().is_some_and(|versions| !versions.crates.is_empty());
        !engine.worker.contains('/') && (has_versions || !binaries.contains(&engine.worker))
    };
    let workers: BTreeSet<String> =
        engines.iter().filter(is_built_there).map(|engine| engine.worker.clone()).collect();
    let workers: Vec<String> = workers.into_iter().collect();
    if workers.is_empty() {
        return Ok(());
    }
    let (root, sources) = (&workspace.root, layout.sources());
    for package in crate::cargo::sources_of(workspace, &workers)? {
        copy_tree(&package, &sources.join(package.strip_prefix(root.canonicalize()?)?))?;
    }
    copy_tree(&root.join("patches"), &sources.join("patches"))?;
    fs::create_dir_all(sources.join(".cargo"))?;
    let mut files = vec!["Cargo.toml", "Cargo.lock", ".cargo/config.toml"];
    if workers.iter().any(|name| crate::cargo::is_reference(name)) {
        files.extend(["references/Cargo.toml", "references/Cargo.lock"]);
    }
    files.into_iter().try_for_each(|file| copy(&root.join(file), &sources.join(file)))
}

/// A directory of this name that something else made is not ours to replace.
fn refuse_others(layout: &Layout) -> Result<()> {
    let data = layout.data();
    ensure!(
        !data.exists() || layout.build().is_some(),
        BadInput(format!(
            "{} exists, and no earlier installation made it: move it away or name another directory with --root",
            data.display()
        ))
    );
    Ok(())
}

/// Copies files with their permissions, except tests and hidden or generated files.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        if stays_behind(&name) {
            continue;
        }
        if path.is_dir() {
            copy_tree(&path, &to.join(name))?;
        } else {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn stays_behind(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with('.') || ["__pycache__", "fixtures", "tests"].contains(&name.as_ref())
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}
