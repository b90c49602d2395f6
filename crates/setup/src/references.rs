//! The frameworks' own implementations, for those who want to hold the engines against them (docs/references.md).
//!
//! References in Python share one virtual environment in the cache directory. What was installed for each is kept in
//! a receipt, a copy of its requirements, beside it: another pin counts as not set up.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;
use tooling::process::{self, command, output_of, succeeds};
use tooling::{BadInput, Reporter};

use crate::staging;

/// What can be set up by itself: a framework, whose variants share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reference {
    CandleTransformers,
    Rten,
    Tract,
    Transformers,
    Genai,
    Llamacpp,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().ok_or(fmt::Error)?.get_name())
    }
}

impl Reference {
    pub const ALL: [Self; 6] =
        [Self::CandleTransformers, Self::Rten, Self::Tract, Self::Transformers, Self::Genai, Self::Llamacpp];

    /// The package that must be built for it, if one must.
    pub fn package(self) -> Option<&'static str> {
        match self {
            Self::Llamacpp => Some(DERIVE),
            _ => self.worker(),
        }
    }

    /// Package and binary of its worker, where that is a crate of this workspace: it needs no more than a build.
    fn worker(self) -> Option<&'static str> {
        match self {
            Self::CandleTransformers => Some(WORKER),
            Self::Rten => Some("reference-rten"),
            Self::Tract => Some("reference-tract"),
            _ => None,
        }
    }
}

/// Package and binary of candle-transformers' worker.
pub const WORKER: &str = "reference-candle-transformers";
/// Package and binary of the tool that writes GGUF. The references that read it find it in the cache directory.
pub const DERIVE: &str = "reference-gguf";

/// Where references come from and where they go.
#[derive(Debug, Clone)]
pub struct References {
    /// The cache directory; it need not exist.
    pub cache: PathBuf,
    /// `references/python` of the checkout or of the installation.
    pub sources: PathBuf,
    /// Directory of the binaries that are built and not downloaded.
    pub binaries: PathBuf,
    /// The command that people type for set-up.
    pub command: &'static str,
}

impl References {
    /// Sets up those that are named, all if none is. `build` is called for each first, to build its
    /// [`Reference::package`].
    pub fn set_up(
        &self,
        named: &[Reference],
        reporter: Reporter,
        build: impl Fn(Reference) -> Result<()>,
    ) -> Result<()> {
        let asked = if named.is_empty() { &Reference::ALL } else { named };
        fs::create_dir_all(self.directory())
            .with_context(|| format!("cannot create {}", self.directory().display()))?;
        let _lock = staging::lock(&self.cache, reporter)?;
        for &reference in asked {
            if reference == Reference::Llamacpp {
                require_compiler()?;
            }
            build(reference)?;
            self.install(reference, reporter)?;
            reporter.note(&format!("{reference}: set up"));
        }
        Ok(())
    }

    /// An error that says how to set it up, unless it is.
    pub fn check(&self, reference: Reference) -> Result<()> {
        let there = match reference.worker() {
            Some(worker) => self.binary(worker).is_file(),
            None if reference == Reference::Llamacpp && !self.tool().is_file() => false,
            None => {
                let installed = fs::read_to_string(self.receipt(reference));
                installed.is_ok_and(|installed| {
                    self.requirements(reference).is_ok_and(|(_, pinned)| pinned == installed)
                })
            }
        };
        ensure!(there, "{reference}: not set up; {} --references={reference}", self.command);
        Ok(())
    }

    fn install(&self, reference: Reference, reporter: Reporter) -> Result<()> {
        if let Some(name) = reference.package() {
            let binary = self.binary(name);
            ensure!(
                binary.is_file(),
                "{reference} cannot be set up: there is no {}; install photofinish again",
                binary.display()
            );
        }
        if reference == Reference::Llamacpp {
            self.install_tool()?;
        }
        if self.check(reference).is_ok() {
            return Ok(());
        }
        let (file, text) = self.requirements(reference)?;
        let python = self.virtual_environment(reporter)?;
        reporter.begin(&format!("installing {reference}: {}", text.lines().last().unwrap_or_default()));
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
        ensure!(
            succeeds(&mut pip)?,
            "pip did not install {reference}; check the network and {}",
            file.display()
        );
        fs::write(self.receipt(reference), text).context("cannot write the receipt")
    }

    /// Directory of everything that is set up for references.
    fn directory(&self) -> PathBuf {
        self.cache.join("references")
    }

    fn receipt(&self, reference: Reference) -> PathBuf {
        self.directory().join(format!("{reference}.txt"))
    }

    /// The file of pinned requirements, and its text.
    fn requirements(&self, reference: Reference) -> Result<(PathBuf, String)> {
        let file = self.sources.join(format!("requirements/{reference}.txt"));
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok((file, text))
    }

    /// The environment's python, made if it is not there.
    fn virtual_environment(&self, reporter: Reporter) -> Result<PathBuf> {
        let place = self.directory().join("venv");
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
            let _ = fs::remove_file(self.receipt(reference));
        }
        Ok(python)
    }

    /// A worker's environment names neither cargo's directories nor an installation's, so the tool lies in the cache
    /// directory.
    fn install_tool(&self) -> Result<()> {
        let place = self.tool();
        let staged = place.with_extension("new");
        let install = || {
            fs::create_dir_all(place.parent().unwrap_or(Path::new(".")))?;
            fs::copy(self.binary(DERIVE), &staged)?;
            fs::rename(&staged, &place)
        };
        install().with_context(|| format!("cannot install {}", place.display()))
    }

    fn tool(&self) -> PathBuf {
        self.directory().join("bin").join(DERIVE)
    }

    fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
    }
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

    fn references(cache: &Path) -> References {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../references/python");
        let binaries = cache.join("no-binaries");
        References { cache: cache.to_owned(), sources, binaries, command: "photofinish setup" }
    }

    #[test]
    fn requirements_are_pinned() {
        let references = references(Path::new(""));
        for reference in Reference::ALL.into_iter().filter(|reference| reference.worker().is_none()) {
            let (_, text) = references.requirements(reference).unwrap();
            let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            let loose: Vec<_> = lines.filter(|line| !line.contains("==")).collect();
            assert_eq!(loose, [""; 0], "{reference}");
        }
    }

    #[test]
    fn what_is_not_set_up_is_said_with_the_command() {
        let cache = tempfile::tempdir().unwrap();
        let references = references(cache.path());
        let error = references.check(Reference::Genai).unwrap_err().to_string();
        assert!(error.contains("photofinish setup --references=genai"), "{error}");
        fs::create_dir_all(references.directory()).unwrap();
        let (_, text) = references.requirements(Reference::Genai).unwrap();
        fs::write(references.receipt(Reference::Genai), &text).unwrap();
        references.check(Reference::Genai).unwrap();
        fs::write(references.receipt(Reference::Genai), "numpy==1.0\n").unwrap();
        assert!(references.check(Reference::Genai).is_err(), "another pin counts as not set up");
    }

    #[test]
    fn what_an_installation_lacks_is_named() {
        let cache = tempfile::tempdir().unwrap();
        let set_up = references(cache.path()).set_up(
            &[Reference::CandleTransformers],
            Reporter::new(true),
            |_| Ok(()),
        );
        let error = set_up.unwrap_err().to_string();
        assert!(error.contains(WORKER) && error.contains("install photofinish again"), "{error}");
    }
}
