//! `cargo xtask install`: the program, and everything that it needs to work without this checkout
//! (docs/how-to/install.md). `setup::Layout` has the place of each part; the program finds them by it.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use configs::Engine;
use flate2::Compression;
use flate2::write::GzEncoder;
use setup::tooling::process::{command, file_name, output_of};
use setup::tooling::{self, BadInput, Reporter};
use setup::{BuildRecord, Home, Layout, Piece, this_platform};

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

#[derive(Default, clap::Args)]
pub(crate) struct What {
    /// Names of configs/engines, or `all`; candle, tch and ort, unless given
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub(crate) frameworks: Vec<String>,
    /// The program that downloads models named `hf:owner/name`, too
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
    let engines = engines.select(&what.frameworks)?;
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

/// Copies the sources of workers for frameworks that can have other versions.
fn copy_sources(layout: &Layout, workspace: &Workspace, binaries: &[String]) -> Result<()> {
    let engines = configs::engines(&workspace.layers()).map_err(|error| BadInput(error.to_string()))?;
    let is_rebuilt = |name: &&String| {
        let mut own = engines.iter().filter(|engine| engine.worker == **name);
        own.any(|engine| engine.versions.as_ref().is_some_and(|versions| !versions.crates.is_empty()))
    };
    let workers: Vec<String> = binaries.iter().filter(is_rebuilt).cloned().collect();
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

// `cargo xtask dist`: an installation as a tar.gz that can be unpacked anywhere, and its checksum
// (docs/how-to/install.md).

/// Kernels for the machines of the last ten years, and not for the one that builds: AVX2, FMA, BMI2.
const TARGET_CPU: Option<&str> = if cfg!(target_arch = "x86_64") { Some("x86-64-v3") } else { None };

pub(crate) fn dist_run(workspace: &Workspace, what: &What, quiet: bool) -> Result<ExitCode> {
    let reporter = Reporter::new(quiet);
    let place = workspace.binaries.with_file_name("dist");
    let workspace = workspace.shipped().built_with(place.join("build"), variables());
    let binaries = build(&workspace, what, reporter)?;
    complete(&workspace, what, &binaries)?;
    // Where it was built from a libtorch of the user's own, other machines do not have that one.
    let record = BuildRecord { libtorch: None, ..self::record(&workspace)? };
    if record.git_modified == Some(true) {
        reporter.warn("files of this checkout differ from its commit; build.json says so");
    }
    let name = format!("photofinish-{}-{}", record.version, this_platform());
    let staging = tempfile::Builder::new().prefix(".staging-").tempdir_in(&place)?;
    let root = staging.path().join(&name);
    put(&workspace, &binaries, &record, &Target::below(&root))?;
    let archive = place.join(format!("{name}.tar.gz"));
    pack(&root, &name, &archive).with_context(|| format!("cannot write {}", archive.display()))?;
    let checksum = write_checksum(&archive)?;
    println!("{}\n{}", archive.display(), checksum.display());
    Ok(ExitCode::SUCCESS)
}

/// One set of flags for driver and workers, on every build machine; each worker reports them (rule R10).
pub(crate) fn variables() -> Vec<(&'static str, String)> {
    let flags = TARGET_CPU.map(|cpu| format!("-C target-cpu={cpu}")).unwrap_or_default();
    vec![("RUSTFLAGS", flags), ("PHOTOFINISH_RELOCATABLE", "1".to_owned())]
}

/// An archive without one of the workers would look complete.
fn complete(workspace: &Workspace, what: &What, binaries: &[String]) -> Result<()> {
    let engines = Engines::read(workspace)?;
    let mut missing = names(&engines.select(&what.frameworks)?, what.hub);
    missing.retain(|name| !binaries.contains(name));
    ensure!(missing.is_empty(), "no archive is made: {} could not be built", missing.join(", "));
    Ok(())
}

/// Writes the directory as `name/`. Equal files give equal archives: order, times and owners are fixed.
fn pack(root: &Path, name: &str, archive: &Path) -> Result<()> {
    let mut tar = tar::Builder::new(GzEncoder::new(File::create(archive)?, Compression::default()));
    tar.mode(tar::HeaderMode::Deterministic);
    append(&mut tar, root, Path::new(name))?;
    tar.into_inner()?.finish()?;
    Ok(())
}

fn append(tar: &mut tar::Builder<impl std::io::Write>, directory: &Path, name: &Path) -> Result<()> {
    tar.append_dir(name, directory)?;
    let entries = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = name.join(path.file_name().context("an entry has a name")?);
        if path.is_dir() {
            append(tar, &path, &name)?;
        } else {
            tar.append_path_with_name(&path, &name)?;
        }
    }
    Ok(())
}

/// Writes the archive's sha256 next to it, in the form that `sha256sum --check` reads.
fn write_checksum(archive: &Path) -> Result<PathBuf> {
    let name = archive.file_name().context("an archive has a name")?.to_string_lossy();
    let file = archive.with_file_name(format!("{name}.sha256"));
    fs::write(&file, format!("{}  {name}\n", setup::sha256(archive)?))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}
