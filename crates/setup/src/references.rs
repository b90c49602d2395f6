//! The frameworks' own implementations, to compare the engines with (docs/reference/frameworks.md).
//!
//! A reference in Python is installed into a virtual environment in the cache directory. Its receipt is a
//! copy of the installed requirements: with another pin the reference counts as not set up. A file next to it
//! names the environment; `references/python/worker` reads it. A reference with separate packages for a GPU
//! is installed separately for it, under a name that ends in `-cuda`.

mod environment;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use tooling::{BadInput, Reporter};

use crate::{Target, staging};
use environment::{Environment, Requirements, require_clang, require_cxx};

/// What can be set up by itself: a framework, whose variants share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reference {
    Burn,
    CandleTransformers,
    Fastembed,
    Rten,
    Tract,
    Transformers,
    Genai,
    Llamacpp,
    Openvino,
    Jax,
    Tinygrad,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().ok_or(fmt::Error)?.get_name())
    }
}

impl Reference {
    pub const ALL: [Self; 11] = [
        Self::Burn,
        Self::CandleTransformers,
        Self::Fastembed,
        Self::Rten,
        Self::Tract,
        Self::Transformers,
        Self::Genai,
        Self::Llamacpp,
        Self::Openvino,
        Self::Jax,
        Self::Tinygrad,
    ];

    /// Package and binary of its worker, if that is a crate of this workspace.
    pub fn worker(self) -> Option<&'static str> {
        match self {
            Self::Burn => Some("reference-burn"),
            Self::CandleTransformers => Some("reference-candle-transformers"),
            Self::Fastembed => Some("reference-fastembed"),
            Self::Rten => Some("reference-rten"),
            Self::Tract => Some("reference-tract"),
            _ => None,
        }
    }

    /// The package that must be built for it, if one must.
    pub fn package(self) -> Option<&'static str> {
        match self {
            Self::Llamacpp => Some(DERIVE),
            _ => self.worker(),
        }
    }

    /// The virtual environment that it is installed into, in the references' directory; `None` if it is not
    /// Python. References with compatible pins share one; the others' pins would conflict there.
    fn environment(self, target: Target) -> Option<&'static str> {
        match (self, target) {
            (Self::Burn | Self::CandleTransformers | Self::Fastembed | Self::Rten | Self::Tract, _) => None,
            (Self::Transformers | Self::Genai | Self::Llamacpp, _) => Some("venv"),
            (Self::Openvino, _) => Some("venv-openvino"),
            (Self::Jax, Target::Cpu) => Some("venv-jax"),
            (Self::Jax, Target::Cuda) => Some("venv-jax-cuda"),
            (Self::Tinygrad, Target::Cpu) => Some("venv-tinygrad"),
            (Self::Tinygrad, Target::Cuda) => Some("venv-tinygrad-cuda"),
        }
    }

    /// The name of its packages, and of its receipt. transformers' PyTorch computes on both.
    fn packages(self, target: Target) -> String {
        match (self, target) {
            (Self::Jax | Self::Tinygrad, Target::Cuda) => format!("{self}-cuda"),
            _ => self.to_string(),
        }
    }

    /// Whether it is supported on such a device here.
    fn computes_on(self, target: Target) -> bool {
        match target {
            Target::Cpu => true,
            Target::Cuda => matches!(self, Self::Transformers | Self::Jax | Self::Tinygrad),
        }
    }

    /// Packages without wheels in the registry for this, or with wheels for other machines only.
    fn built_here(self) -> &'static [&'static str] {
        match self {
            Self::Llamacpp => &["llama-cpp-python"],
            _ => &[],
        }
    }

    /// An error that says what to install, if a tool besides Python is missing.
    fn require_tools(self, target: Target) -> Result<()> {
        ensure!(
            self.computes_on(target),
            BadInput(format!(
                "{self} is driven on the CPU alone: leave --device out; on a GPU there are {}",
                on(target).map(|reference| reference.to_string()).collect::<Vec<_>>().join(", ")
            ))
        );
        match (self, target) {
            (Self::Llamacpp, _) => require_cxx(),
            (Self::Tinygrad, Target::Cpu) => require_clang(),
            _ => Ok(()),
        }
    }
}

fn on(target: Target) -> impl Iterator<Item = Reference> {
    Reference::ALL.into_iter().filter(move |reference| reference.computes_on(target))
}

/// Package and binary of the tool that writes GGUF. References that read GGUF find it in the cache directory.
pub const DERIVE: &str = "reference-gguf";

/// Sources and destinations of references.
#[derive(Debug, Clone)]
pub struct References {
    /// The cache directory; it need not exist.
    pub cache: PathBuf,
    /// `references/python` of the checkout or of the installation.
    pub sources: PathBuf,
    /// Directory of the binaries that are built, not downloaded.
    pub binaries: PathBuf,
    /// The command that people type for set-up.
    pub command: &'static str,
    /// The device that they are to compute on.
    pub target: Target,
}

impl References {
    /// Sets up the named ones, all if none is named. `build` is called for each first, to build its
    /// [`Reference::package`]. If all are set up, one that fails does not stop the others.
    pub fn set_up(
        &self,
        named: &[Reference],
        reporter: Reporter,
        build: impl Fn(Reference) -> Result<()>,
    ) -> Result<()> {
        for reference in named {
            reference.require_tools(self.target)?;
        }
        fs::create_dir_all(self.directory())
            .with_context(|| format!("cannot create {}", self.directory().display()))?;
        let _lock = staging::lock(&self.cache, reporter)?;
        let one = |reference: Reference| {
            reference.require_tools(self.target)?;
            build(reference)?;
            self.install(reference, reporter)?;
            reporter.note(&format!("{reference}: set up"));
            Ok(())
        };
        if !named.is_empty() {
            return named.iter().try_for_each(|&reference| one(reference));
        }
        let mut left_out = Vec::new();
        for reference in on(self.target) {
            if let Err(error) = one(reference) {
                reporter.note(&format!("{reference}: {error:#}"));
                left_out.push(reference.to_string());
            }
        }
        ensure!(left_out.is_empty(), "not set up, for the reasons above: {}", left_out.join(", "));
        Ok(())
    }

    /// An error that says how to set it up, if it is not set up.
    pub fn check(&self, reference: Reference) -> Result<()> {
        let there = match (reference.environment(self.target), reference.worker()) {
            (_, Some(worker)) => self.binary(worker).is_file(),
            (None, None) => true,
            (Some(_), None) if reference.package().is_some() && !self.tool().is_file() => false,
            (Some(name), None) => {
                let said = |file| fs::read_to_string(file).ok();
                let pinned = self.requirements(reference).ok().map(|(_, text)| text);
                self.environment(name).python().is_file()
                    && said(self.whereabouts(reference)).is_some_and(|said| said == relative_python(name))
                    && pinned.is_some()
                    && said(self.receipt(reference)) == pinned
            }
        };
        let device = match self.target {
            Target::Cpu => "",
            Target::Cuda => " --device cuda",
        };
        ensure!(there, "{reference}: not set up; {}{device} --references={reference}", self.command);
        Ok(())
    }

    /// The interpreter of the reference with this name.
    ///
    /// # Errors
    /// How to set it up, if it is not set up.
    pub fn python(&self, name: &str) -> Result<PathBuf> {
        let unknown = |_| BadInput(format!("{name} is set up by nothing here"));
        let reference = Reference::from_str(name, true).map_err(unknown)?;
        self.check(reference)?;
        let environment = reference.environment(self.target);
        let environment = environment.with_context(|| format!("{name} has no environment in Python"))?;
        Ok(self.environment(environment).python())
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
        let Some(name) = reference.environment(self.target) else { return Ok(()) };
        let (file, text) = self.requirements(reference)?;
        let environment = self.environment(name);
        if environment.make(reporter)? {
            // Packages installed in a removed environment are gone, too.
            let gone = on(self.target).filter(|other| other.environment(self.target) == Some(name));
            gone.for_each(|other| drop(fs::remove_file(self.receipt(other))));
        }
        reporter.begin(&format!("installing {reference}"));
        let from_source = reference.built_here();
        let requirements = Requirements { name: &reference.to_string(), file: &file, from_source };
        environment.install(&requirements, reporter)?;
        fs::write(self.whereabouts(reference), relative_python(name))
            .and_then(|()| fs::write(self.receipt(reference), text))
            .context("cannot write the receipt")
    }

    /// Directory of everything that is set up for references.
    fn directory(&self) -> PathBuf {
        self.cache.join("references")
    }

    fn receipt(&self, reference: Reference) -> PathBuf {
        self.directory().join(format!("{}.txt", reference.packages(self.target)))
    }

    /// The file of pinned requirements, and its text.
    fn requirements(&self, reference: Reference) -> Result<(PathBuf, String)> {
        let file = self.sources.join(format!("requirements/{}.txt", reference.packages(self.target)));
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok((file, text))
    }

    fn environment(&self, name: &str) -> Environment {
        Environment { place: self.directory().join(name) }
    }

    /// The file that names the python that runs it, relative to the references' directory.
    fn whereabouts(&self, reference: Reference) -> PathBuf {
        self.directory().join(format!("{}.python", reference.packages(self.target)))
    }

    /// A worker's environment has neither cargo's directories nor an installation's, so the tool is in the
    /// cache directory.
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

fn relative_python(environment: &str) -> String {
    format!("{environment}/bin/python\n")
}

#[cfg(test)]
mod tests;
