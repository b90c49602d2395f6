//! `cargo xtask setup --references`: the frameworks' own implementations, for those who want to hold the engines
//! against them (docs/references.md).
//!
//! References in Python share one virtual environment in the cache directory. What was installed for each is kept in
//! a receipt, a copy of its requirements, beside it: another pin in the checkout counts as not set up.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;
use configs::Engine;
use tooling::process::{self, command, output_of, succeeds};
use tooling::{BadInput, Reporter};

use crate::cargo::package;
use crate::workspace::Workspace;

/// What can be set up by itself: a framework, whose variants share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reference {
    CandleTransformers,
    Transformers,
    Genai,
    Llamacpp,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().ok_or(fmt::Error)?.get_name())
    }
}

/// Directory of everything that is set up for references, in the cache directory.
fn directory(workspace: &Workspace) -> PathBuf {
    workspace.cache.join("references")
}

impl Reference {
    pub(crate) const ALL: [Self; 4] =
        [Self::CandleTransformers, Self::Transformers, Self::Genai, Self::Llamacpp];

    /// The reference behind an engine that cargo does not build.
    pub(crate) fn behind(engine: &Engine) -> Option<Self> {
        let in_python = engine.reference && engine.worker.starts_with("{root}/");
        Self::ALL.into_iter().find(|reference| in_python && reference.to_string() == engine.framework)
    }

    /// An error that says how to set it up, unless it is.
    pub(crate) fn check(self, workspace: &Workspace) -> Result<()> {
        let there = match self {
            Self::CandleTransformers => workspace.binary(WORKER).is_file(),
            Self::Llamacpp if !tool(workspace).is_file() => false,
            _ => {
                let installed = fs::read_to_string(self.receipt(workspace));
                installed.is_ok_and(|installed| {
                    self.requirements(workspace).is_ok_and(|(_, pinned)| pinned == installed)
                })
            }
        };
        ensure!(there, "{self}: not set up; cargo xtask setup --references={self}");
        Ok(())
    }

    fn receipt(self, workspace: &Workspace) -> PathBuf {
        directory(workspace).join(format!("{self}.txt"))
    }

    /// The file of pinned requirements, and its text.
    fn requirements(self, workspace: &Workspace) -> Result<(PathBuf, String)> {
        let file = workspace.root.join(format!("references/python/requirements/{self}.txt"));
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok((file, text))
    }

    fn set_up(self, workspace: &Workspace, reporter: Reporter) -> Result<()> {
        match self {
            Self::CandleTransformers => return package(workspace, WORKER, &[], reporter),
            Self::Llamacpp => {
                require_compiler()?;
                package(workspace, DERIVE, &[], reporter)?;
                install_tool(workspace)?;
            }
            _ => {}
        }
        if self.check(workspace).is_ok() {
            return Ok(());
        }
        let (file, text) = self.requirements(workspace)?;
        let python = virtual_environment(workspace, reporter)?;
        reporter.begin(&format!("installing {self}: {}", text.lines().last().unwrap_or_default()));
        let mut pip = command(&python);
        pip.args(["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--requirement"])
            .arg(&file);
        if reporter.is_quiet() {
            pip.arg("--quiet");
        }
        // For what comes as sources: built for this machine, as everything that is measured.
        pip.env("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF");
        // stdout is for results.
        pip.stdout(std::io::stderr());
        ensure!(succeeds(&mut pip)?, "pip did not install {self}; check the network and {}", file.display());
        fs::write(self.receipt(workspace), text).context("cannot write the receipt")
    }
}

/// The package of candle-transformers' worker.
const WORKER: &str = "reference-candle-transformers";
/// Writes GGUF; the references that read it find it in the cache directory.
const DERIVE: &str = "reference-gguf";

pub(crate) fn set_up(workspace: &Workspace, named: &[Reference], reporter: Reporter) -> Result<ExitCode> {
    let asked = if named.is_empty() { &Reference::ALL } else { named };
    fs::create_dir_all(directory(workspace))
        .with_context(|| format!("cannot create {}", directory(workspace).display()))?;
    let _lock = setup::lock(&workspace.cache, reporter)?;
    for reference in asked {
        reference.set_up(workspace, reporter)?;
        reporter.note(&format!("{reference}: set up"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The environment's python, made if it is not there.
fn virtual_environment(workspace: &Workspace, reporter: Reporter) -> Result<PathBuf> {
    let place = directory(workspace).join("venv");
    let python = place.join("bin/python");
    // An interpreter that has since been removed leaves a dangling link.
    if output_of(command(&python).arg("--version")).is_ok() {
        return Ok(python);
    }
    reporter.note(&format!("making a virtual environment in {}", place.display()));
    output_of(command("python3").args(["-m", "venv", "--clear"]).arg(&place)).map_err(|error| {
        anyhow!(BadInput(format!(
            "python3 with venv and pip is needed for references ({error:#}): install it (on Debian and Ubuntu: \
             apt-get install python3-venv)"
        )))
    })?;
    // What was installed in one that is gone is gone, too.
    for reference in Reference::ALL {
        let _ = fs::remove_file(reference.receipt(workspace));
    }
    Ok(python)
}

/// A worker's environment names no directory of cargo's, so the tool lies in the cache directory.
fn install_tool(workspace: &Workspace) -> Result<()> {
    let place = tool(workspace);
    let staged = place.with_extension("new");
    let install = || {
        fs::create_dir_all(directory(workspace).join("bin"))?;
        fs::copy(workspace.binary(DERIVE), &staged)?;
        fs::rename(&staged, &place)
    };
    install().with_context(|| format!("cannot install {}", place.display()))
}

fn tool(workspace: &Workspace) -> PathBuf {
    directory(workspace).join("bin").join(DERIVE)
}

fn require_compiler() -> Result<()> {
    let found = process::cxx_compiler().is_some();
    ensure!(
        found,
        "llama.cpp needs a C++ compiler: install one (on Debian and Ubuntu: apt-get install g++) or set CXX"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Engines;

    fn workspace() -> Workspace {
        Workspace::locate().unwrap()
    }

    #[test]
    fn every_reference_of_configs_can_be_set_up() {
        let workspace = workspace();
        let engines = Engines::read(&workspace).unwrap();
        let references: Vec<_> = engines.all().iter().filter(|engine| engine.reference).collect();
        assert!(references.len() >= Reference::ALL.len());
        for engine in references {
            let known = Reference::ALL.iter().any(|reference| reference.to_string() == engine.framework);
            assert!(known, "{}", engine.name);
            assert_eq!(Reference::behind(engine).is_none(), engine.worker == WORKER, "{}", engine.name);
        }
    }

    #[test]
    fn requirements_are_pinned() {
        for reference in
            Reference::ALL.into_iter().filter(|reference| *reference != Reference::CandleTransformers)
        {
            let (_, text) = reference.requirements(&workspace()).unwrap();
            let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            let loose: Vec<_> = lines.filter(|line| !line.contains("==")).collect();
            assert_eq!(loose, [""; 0], "{reference}");
        }
    }

    #[test]
    fn what_is_not_set_up_is_said_with_the_command() {
        let cache = tempfile::tempdir().unwrap();
        let workspace = Workspace { cache: cache.path().to_owned(), ..workspace() };
        let error = Reference::Genai.check(&workspace).unwrap_err().to_string();
        assert!(error.contains("cargo xtask setup --references=genai"), "{error}");
        fs::create_dir_all(directory(&workspace)).unwrap();
        let (_, text) = Reference::Genai.requirements(&workspace).unwrap();
        fs::write(Reference::Genai.receipt(&workspace), &text).unwrap();
        Reference::Genai.check(&workspace).unwrap();
        fs::write(Reference::Genai.receipt(&workspace), "numpy==1.0\n").unwrap();
        assert!(Reference::Genai.check(&workspace).is_err(), "another pin counts as not set up");
    }
}
