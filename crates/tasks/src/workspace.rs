//! Where things are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use configs::{Engine, Layers};
use setup::tooling::process::command;
use setup::tooling::{BadInput, Reporter};
use setup::{Home, Provision, References, Target};
pub(crate) use setup::{PROGRAM as PHOTOFINISH, Reference};

use crate::build::{self, build};

#[derive(Clone)]
pub(crate) struct Workspace {
    /// Directory of the workspace's Cargo.toml.
    pub(crate) root: PathBuf,
    /// `${XDG_CACHE_HOME:-~/.cache}/photofinish`; need not exist.
    pub(crate) cache: PathBuf,
    /// Where cargo puts release binaries.
    pub(crate) binaries: PathBuf,
    /// The target directory, if it is not cargo's default.
    pub(crate) target: Option<PathBuf>,
    /// Variables with which everything is built.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// The user's own configuration, which overrides that of the checkout; need not exist.
    pub(crate) user_configs: Option<PathBuf>,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Self> {
        let root = own_checkout()?;
        // This binary is one of them, wherever the target directory is.
        let executable = std::env::current_exe().context("cannot find where this program is")?;
        let binaries = executable.parent().context("this program is in no directory")?;
        let home = Home::from_environment();
        let cache = home.cache().ok_or_else(|| {
            BadInput("no cache directory: set XDG_CACHE_HOME or HOME to an absolute path".into())
        })?;
        Ok(Self {
            root: root.to_owned(),
            cache,
            binaries: binaries.to_owned(),
            target: None,
            variables: Vec::new(),
            user_configs: home.config(),
        })
    }

    /// The checkout at `root`, built in a corner of this one's target directory.
    pub(crate) fn apart(&self, root: &Path) -> Self {
        let target = self.binaries.parent().unwrap_or(&self.binaries).join("gate");
        let user_configs = None;
        let binaries = target.join("release");
        Self { root: root.to_owned(), binaries, target: Some(target), user_configs, ..self.clone() }
    }

    /// This checkout, built with these variables in `target`.
    pub(crate) fn built_with(&self, target: PathBuf, variables: Vec<(&'static str, String)>) -> Self {
        Self { binaries: target.join("release"), target: Some(target), variables, ..self.clone() }
    }

    /// Whether this is another checkout than the one that this program was built from.
    pub(crate) fn is_apart(&self) -> bool {
        own_checkout().is_ok_and(|own| own != self.root)
    }

    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
    }

    pub(crate) fn configs(&self) -> PathBuf {
        self.root.join("configs")
    }

    /// The checkout's configuration, with the user's over it.
    pub(crate) fn layers(&self) -> Layers {
        Layers::single(self.configs()).under(self.user_configs.clone())
    }

    /// The shipped files, without the user's own configuration.
    pub(crate) fn shipped(&self) -> Self {
        Self { user_configs: None, ..self.clone() }
    }

    /// Native libraries and the model, from the cache directory or downloaded into it.
    pub(crate) fn provision(&self, reporter: Reporter) -> Result<Provision> {
        Provision::new(&self.configs(), &self.cache, reporter)
    }
}

fn own_checkout() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("the package tasks has no directory above it")
}

// The program in the place of a task: `doctor` and `profile` are commands of it, as `compare` is.

/// Builds the program and runs one of its commands, which provides what else it needs.
pub(crate) fn run(workspace: &Workspace, name: &str, args: &[OsString]) -> Result<ExitCode> {
    build::build(workspace, &["driver"], None, Reporter::new(true))?;
    let mut program = command(workspace.binary(PHOTOFINISH));
    // As `cargo run` sets it: workers whose sources have changed are built again.
    program.arg(name).args(args).env("CARGO_MANIFEST_DIR", &workspace.root);
    replace_this_process(program)
}

/// Signals reach the program itself, and its exit code is this command's.
#[cfg(unix)]
pub(crate) fn replace_this_process(mut program: Command) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(program.exec()).context("cannot start the driver")
}

#[cfg(not(unix))]
pub(crate) fn replace_this_process(mut program: Command) -> Result<ExitCode> {
    let status = program.status().context("cannot start the driver")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

// `cargo xtask setup --references`: builds the references of crate `setup` that are compiled here
// (docs/reference/frameworks.md).

/// The references of this checkout.
pub(crate) fn all(workspace: &Workspace, target: Target) -> References {
    References {
        cache: workspace.cache.clone(),
        sources: workspace.root.join("references/python"),
        binaries: workspace.binaries.clone(),
        command: "cargo xtask setup",
        target,
    }
}

/// The reference of an engine that cargo does not build.
pub(crate) fn behind(engine: &Engine) -> Option<Reference> {
    let in_python = engine.reference && engine.worker.starts_with("{root}/");
    Reference::ALL.into_iter().find(|reference| in_python && reference.to_string() == engine.framework)
}

pub(crate) fn set_up(
    workspace: &Workspace,
    target: Target,
    named: &[Reference],
    reporter: Reporter,
) -> Result<()> {
    all(workspace, target).set_up(named, reporter, |reference| match reference.package() {
        Some(name) => build(workspace, &[name], None, reporter),
        None => Ok(()),
    })
}

// `cargo xtask calibrate`: the statistics against simulated comparisons.

pub(crate) fn calibrate_run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    build(workspace, &["evidence"], None, Reporter::new(false))?;
    // The page's default place is relative to the root.
    let status = command(workspace.binary("calibrate"))
        .args(args)
        .current_dir(&workspace.root)
        .status()
        .context("cannot start calibrate")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

// `cargo xtask claims`: tests of published claims.

/// With these flags nothing is measured, so that no driver is needed.
const WITHOUT_RUNS: [&str; 3] = ["--from-results", "--help", "-h"];

pub(crate) fn claims_run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    let runs = !args.iter().any(|arg| WITHOUT_RUNS.iter().any(|name| arg == name));
    let names = if runs { &["evidence", "driver"][..] } else { &["evidence"] };
    build(workspace, names, None, Reporter::new(false))?;
    let status = command(workspace.binary("claims"))
        .args(args)
        .current_dir(&workspace.root)
        .status()
        .context("cannot start claims")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use crate::build::Engines;

    use super::*;

    #[test]
    fn every_reference_of_configs_can_be_set_up() {
        let workspace = Workspace::locate().unwrap().shipped();
        let engines = Engines::read(&workspace).unwrap();
        let references: Vec<_> = engines.all().iter().filter(|engine| engine.reference).collect();
        assert!(references.len() >= Reference::ALL.len());
        for engine in references {
            let known = Reference::ALL.iter().find(|reference| reference.to_string() == engine.framework);
            let known = known.unwrap_or_else(|| panic!("{} is not known", engine.name));
            let cargo_builds_it = known.worker() == Some(engine.worker.as_str());
            assert_eq!(behind(engine).is_none(), cargo_builds_it, "{}", engine.name);
        }
    }
}
