//! The frameworks' own implementations, to compare the engines with (docs/reference/frameworks.md).
//!
//! A reference in Python is installed into a virtual environment in the cache directory. Its receipt is a
//! copy of the installed requirements: with another pin the reference counts as not set up. A file next to it
//! names the environment; `references/python/worker` reads it. A reference with separate packages for a GPU
//! is installed separately for it, under a name that ends in `-cuda`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fmt, fs};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;

use crate::tooling::process::{self, command, output_of, succeeds};
use crate::tooling::{self, BadInput, Reporter};
use crate::versions::{self, Build, Version};
use crate::{Piece, Provision, Target, download, receipt};

/// What can be set up by itself: a framework, whose variants share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reference {
    Burn,
    CandleTransformers,
    Fastembed,
    Openai,
    Rten,
    Tract,
    Transformers,
    Genai,
    Llamacpp,
    Openvino,
    Jax,
    Tinygrad,
    Whispercpp,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().ok_or(fmt::Error)?.get_name())
    }
}

impl Reference {
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// Whether its worker is a crate of this repository; that of the others is in Python.
    fn is_compiled(self) -> bool {
        matches!(
            self,
            Self::Burn | Self::CandleTransformers | Self::Fastembed | Self::Openai | Self::Rten | Self::Tract
        )
    }

    /// Package and binary of its worker, if cargo builds it.
    pub fn worker(self) -> Option<String> {
        self.is_compiled().then(|| format!("reference-{self}"))
    }

    pub fn package(self) -> Option<String> {
        if self == Self::Llamacpp { Some(DERIVE.to_owned()) } else { self.worker() }
    }

    /// The libraries that it loads, if they are no Python package.
    pub fn piece(self) -> Option<Piece> {
        (self == Self::Llamacpp).then_some(Piece::Llamacpp)
    }

    /// The virtual environment that it is installed into, in the references' directory; `None` if it is not
    /// Python. References with compatible pins share one; the others' pins would conflict there.
    fn environment(self, target: Target) -> Option<String> {
        match self {
            Self::Transformers | Self::Genai | Self::Llamacpp => Some("venv".to_owned()),
            _ => (!self.is_compiled()).then(|| format!("venv-{}", self.packages(target))),
        }
    }

    /// The name of its packages, and of its receipt. transformers' PyTorch computes on both.
    fn packages(self, target: Target) -> String {
        match (self, target) {
            (Self::Jax | Self::Tinygrad, Target::Cuda) => format!("{self}-cuda"),
            _ => self.to_string(),
        }
    }

    fn computes_on(self, target: Target) -> bool {
        target == Target::Cpu || matches!(self, Self::Transformers | Self::Jax | Self::Tinygrad)
    }

    /// An error if it does not compute there.
    fn require_device(self, target: Target) -> Result<()> {
        ensure!(
            self.computes_on(target),
            BadInput(format!(
                "{self} is driven on the CPU alone: leave --device out; on a GPU there are {}",
                on(target).map(|reference| reference.to_string()).collect::<Vec<_>>().join(", ")
            ))
        );
        Ok(())
    }

    /// An error that says what to install, if a tool besides Python is missing.
    fn require_tools(self, target: Target) -> Result<()> {
        self.require_device(target)?;
        // tinygrad starts it for every kernel.
        let needs_clang = self == Self::Tinygrad && target == Target::Cpu;
        ensure!(
            !needs_clang || output_of(command("clang").arg("--version")).is_ok(),
            BadInput(
                "tinygrad needs clang on PATH: install it (on Debian and Ubuntu: apt-get install clang)"
                    .into()
            )
        );
        Ok(())
    }
}

fn on(target: Target) -> impl Iterator<Item = Reference> {
    Reference::all().filter(move |reference| reference.computes_on(target))
}

/// Its file with the installed requirements.
const RECEIPT: &str = "txt";

/// Its file with the python that runs it, relative to the references' directory.
const PYTHON: &str = "python";

/// Package and binary of the tool that writes GGUF. References that read GGUF find it in the cache directory.
pub const DERIVE: &str = "reference-gguf";

#[derive(Debug, Clone)]
pub struct References {
    /// The cache directory; it need not exist.
    pub cache: PathBuf,
    /// `references/python` of the checkout or of the installation.
    pub sources: PathBuf,
    /// Directory of the binaries that are built, not downloaded.
    pub binaries: PathBuf,
    /// Whether a binary that is not there may be one that [`Build::Here`] has made.
    pub builds_here: bool,
    /// The command that people type for set-up.
    pub command: &'static str,
    /// The device that they are to compute on.
    pub target: Target,
}

impl References {
    /// Sets up the named ones, all if none is named. `provide` is called for each first, to provide its
    /// [`Reference::piece`] and to build its [`Reference::package`]. If all are set up, one that fails does
    /// not stop the others.
    pub fn set_up(
        &self,
        named: &[Reference],
        reporter: Reporter,
        provide: impl Fn(Reference) -> Result<()>,
    ) -> Result<()> {
        for reference in named {
            reference.require_tools(self.target)?;
        }
        fs::create_dir_all(self.directory())
            .with_context(|| format!("cannot create {}", self.directory().display()))?;
        let one = |reference: Reference| {
            reference.require_tools(self.target)?;
            provide(reference)?;
            let _lock = receipt::lock(&self.cache, reporter)?;
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

    /// Downloads what the named ones are installed from into a directory, all if none is named.
    pub(crate) fn download(&self, named: &[Reference], to: &Path, provision: &Provision) -> Result<()> {
        named.iter().try_for_each(|reference| reference.require_device(self.target))?;
        let all: Vec<Reference> = on(self.target).collect();
        for &reference in if named.is_empty() { &all } else { named } {
            if let Some(piece) = reference.piece() {
                provision.download(&[piece], to)?;
            }
            if reference.environment(self.target).is_none() {
                continue;
            }
            require_python()?;
            let (file, _) = self.requirements(reference)?;
            let mut pip = process::python();
            pip.args(["-m", "pip", "download", "--dest"]).arg(to);
            provision.reporter.begin(&format!("downloading {reference}"));
            run_pip(&mut pip, "downloaded", reference, &file, provision.reporter)?;
        }
        Ok(())
    }

    /// An error that says how to set it up, if it is not set up.
    pub fn check(&self, reference: Reference) -> Result<()> {
        let there = match reference.environment(self.target) {
            None => reference.package().is_some_and(|worker| self.binary(&worker).is_file()),
            Some(name) => {
                let says = |kind, expected: &str| {
                    fs::read_to_string(self.file(reference, kind)).is_ok_and(|found| found == expected)
                };
                (reference.package().is_none() || self.tool().is_file())
                    && self.environment(&name).python().is_file()
                    && says(PYTHON, &relative_python(&name))
                    && self.requirements(reference).is_ok_and(|(_, pinned)| says(RECEIPT, &pinned))
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
        Ok(self.environment(&environment).python())
    }

    fn install(&self, reference: Reference, reporter: Reporter) -> Result<()> {
        if let Some(name) = reference.package() {
            let binary = self.binary(&name);
            ensure!(
                binary.is_file(),
                "{reference} cannot be set up: there is no {}; install photofinish again",
                binary.display()
            );
        }
        if reference == Reference::Llamacpp {
            // A worker's environment has neither cargo's directories nor an installation's, so the tool is in the
            // cache directory.
            let place = self.tool();
            fs::create_dir_all(place.parent().unwrap_or(Path::new(".")))
                .and_then(|()| tooling::replace(&self.binary(DERIVE), &place))
                .with_context(|| format!("cannot install {}", place.display()))?;
        }
        if self.check(reference).is_ok() {
            return Ok(());
        }
        let Some(name) = reference.environment(self.target) else { return Ok(()) };
        let (file, text) = self.requirements(reference)?;
        let environment = self.environment(&name);
        if environment.make(reporter)? {
            // Packages installed in a removed environment are gone, too.
            let gone = on(self.target).filter(|other| other.environment(self.target).as_ref() == Some(&name));
            gone.for_each(|other| drop(fs::remove_file(self.file(other, RECEIPT))));
        }
        reporter.begin(&format!("installing {reference}"));
        environment.install(reference, &file, reporter)?;
        fs::write(self.file(reference, PYTHON), relative_python(&name))
            .and_then(|()| fs::write(self.file(reference, RECEIPT), text))
            .context("cannot write the receipt")
    }

    fn directory(&self) -> PathBuf {
        self.cache.join("references")
    }

    fn file(&self, reference: Reference, kind: &str) -> PathBuf {
        self.directory().join(format!("{}.{kind}", reference.packages(self.target)))
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

    fn tool(&self) -> PathBuf {
        self.directory().join("bin").join(DERIVE)
    }

    fn binary(&self, name: &str) -> PathBuf {
        let usual = self.binaries.join(process::file_name(name));
        if self.builds_here && !usual.is_file() {
            return versions::place(&self.cache, name, &Version::Build(Build::Here));
        }
        usual
    }
}

fn relative_python(environment: &str) -> String {
    format!("{environment}/bin/python\n")
}

// A virtual environment that references in Python are installed into, and pip's errors in words for people.

const OLDEST_PYTHON: (u32, u32) = (3, 11);

/// The platforms of the wheels with hashes in the requirements.
const PINNED_FOR: &str = "CPython 3.11 to 3.13 on Linux, x86_64 or aarch64";

struct Environment {
    place: PathBuf,
}

impl Environment {
    fn python(&self) -> PathBuf {
        self.place.join("bin/python")
    }

    /// Creates it unless it exists; returns whether it was created.
    fn make(&self, reporter: Reporter) -> Result<bool> {
        // An interpreter that was removed since leaves a dangling link.
        if output_of(command(self.python()).arg("--version")).is_ok() {
            return Ok(false);
        }
        require_python()?;
        reporter.note(&format!("making a virtual environment in {}", self.place.display()));
        output_of(process::python().args(["-m", "venv", "--clear"]).arg(&self.place))
            .map_err(without_venv)?;
        Ok(true)
    }

    /// Installs the packages of a file that has every one with its version and hashes.
    fn install(&self, reference: Reference, file: &Path, reporter: Reporter) -> Result<()> {
        let mut pip = command(self.python());
        pip.args(["-m", "pip", "install"]);
        run_pip(&mut pip, "set up", reference, file, reporter)
    }
}

/// Runs a command of pip's on a file of requirements; an error says what the reference is not.
fn run_pip(
    pip: &mut Command,
    done: &str,
    reference: Reference,
    file: &Path,
    reporter: Reporter,
) -> Result<()> {
    let log = tempfile::NamedTempFile::new().context("cannot write a log of pip's")?;
    pip.args(["--no-input", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:"])
        .arg("--log")
        .arg(log.path())
        .arg("--requirement")
        .arg(file);
    let mirror = download::from_mirror(pip)?;
    if reporter.is_quiet() {
        pip.arg("--quiet");
    }
    // stdout is for results.
    pip.stdout(std::io::stderr());
    if succeeds(pip)? {
        return Ok(());
    }
    let said = std::fs::read(log.path()).unwrap_or_default();
    let mirror = mirror.map(|mirror| mirror.to_string());
    let explained = explained(&String::from_utf8_lossy(&said), reference, file, mirror.as_deref());
    bail!("{reference} is not {done}: {explained}")
}

/// One sentence on why pip failed, from its log.
fn explained(log: &str, name: Reference, file: &Path, mirror: Option<&str>) -> String {
    let file = file.display();
    if log.contains("DO NOT MATCH THE HASHES") {
        return format!(
            "a package differs from its hash in {file}; run `python3 -m pip cache purge` and set it up again, and if \
             it still differs, ask the operator of your package index"
        );
    }
    // Without a network pip also says that no version was found.
    let unreachable = log.contains("Retrying (Retry(");
    let missing = log.lines().find_map(|line| line.split_once("No matching distribution found for "));
    let missing = missing.and_then(|(_, rest)| rest.split_whitespace().next()).filter(|_| !unreachable);
    match (missing, mirror) {
        (Some(package), Some(mirror)) => {
            format!(
                "{mirror} has no {package} for this Python; add it with `setup --to DIR --references={name}`"
            )
        }
        (Some(package), None) => format!(
            "your package index has no {package} for this system and this Python; references are pinned for \
             {PINNED_FOR}: put such a python3 first on PATH and set it up again"
        ),
        (None, Some(mirror)) => format!("pip cannot download from {mirror}"),
        (None, None) => {
            format!("pip cannot download; check the network, set {} or check {file}", download::MIRROR)
        }
    }
}

fn require_python() -> Result<()> {
    let print = "import sys; print(*sys.version_info[:2])";
    let version = output_of(process::python().args(["-c", print])).map_err(without_venv)?;
    let found = parsed(&version).with_context(|| format!("python3 says that its version is {version:?}"))?;
    let (major, minor) = found;
    ensure!(
        found >= OLDEST_PYTHON,
        BadInput(format!(
            "python3 is Python {major}.{minor}, and references are pinned for {PINNED_FOR}: put a newer python3 first on \
             PATH"
        ))
    );
    Ok(())
}

/// Major and minor version, printed with a space between.
fn parsed(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.trim().split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn without_venv(error: anyhow::Error) -> anyhow::Error {
    anyhow!(BadInput(format!(
        "python3 with venv and pip is needed for references ({error:#}): install it (on Debian and Ubuntu: apt-get \
         install python3-venv)"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(cache: &Path) -> References {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../references/python");
        let binaries = cache.join("no-binaries");
        let (cache, target) = (cache.to_owned(), Target::Cpu);
        References { cache, sources, binaries, builds_here: false, command: "photofinish setup", target }
    }

    fn in_python() -> impl Iterator<Item = (Reference, References)> {
        let references = references(Path::new(""));
        let all = [Target::Cpu, Target::Cuda]
            .into_iter()
            .flat_map(|target| on(target).map(move |one| (one, target)));
        let in_python = all.filter(|(reference, target)| reference.environment(*target).is_some());
        in_python.map(move |(reference, target)| (reference, References { target, ..references.clone() }))
    }

    #[test]
    fn every_package_is_pinned_by_version_and_hash_and_no_registry_is_named() {
        for (reference, references) in in_python() {
            let (file, text) = references.requirements(reference).unwrap();
            let text = text.replace("\\\n", " ");
            let pins: Vec<_> =
                text.lines().filter(|line| !line.is_empty() && !line.trim().starts_with('#')).collect();
            let loose = pins.iter().find(|pin| !pin.contains("==") || !pin.contains("--hash=sha256:"));
            assert_eq!(loose, None, "{reference}");
            assert!(!text.contains("://") && !text.contains("--index"), "{reference}");
            let asked = fs::read_to_string(file.with_extension("in")).unwrap();
            for asked in asked.lines().filter(|line| !line.starts_with('#')) {
                // For `package[extra]==1.0` the closure has the package, and the dependencies of the extra.
                let (package, version) = asked.split_once("==").unwrap();
                let pin = format!("{}=={version}", package.split('[').next().unwrap());
                assert!(
                    pins.iter().any(|it| it.starts_with(&pin)),
                    "{reference}: {asked} is not in its closure"
                );
            }
        }
    }

    #[test]
    fn references_that_share_an_environment_agree_on_every_pin() {
        let mut pinned = std::collections::BTreeMap::new();
        for (reference, references) in in_python() {
            let (_, text) = references.requirements(reference).unwrap();
            for pin in text.lines().filter(|line| line.contains("==") && !line.trim().starts_with('#')) {
                // With the Python version that it is for, unless it is for all.
                let (package, rest) = pin.trim_end_matches('\\').split_once("==").unwrap();
                let (version, python) = rest.split_once(';').unwrap_or((rest, ""));
                let place =
                    (reference.environment(references.target), package.to_owned(), python.trim().to_owned());
                let before = pinned.entry(place).or_insert_with(|| version.trim().to_owned());
                assert_eq!(*before, version.trim(), "{reference}: {package}");
            }
        }
    }

    #[test]
    fn what_is_not_set_up_is_said_with_the_command() {
        let cache = tempfile::tempdir().unwrap();
        let references = references(cache.path());
        let error = references.check(Reference::Openvino).unwrap_err().to_string();
        assert!(error.contains("photofinish setup --references=openvino"), "{error}");
        let python = references.environment("venv-openvino").python();
        fs::create_dir_all(python.parent().unwrap()).unwrap();
        fs::write(&python, "").unwrap();
        let (_, text) = references.requirements(Reference::Openvino).unwrap();
        fs::write(references.file(Reference::Openvino, RECEIPT), &text).unwrap();
        assert!(references.check(Reference::Openvino).is_err(), "the worker would not find its environment");
        fs::write(references.file(Reference::Openvino, PYTHON), "venv-openvino/bin/python\n").unwrap();
        references.check(Reference::Openvino).unwrap();
        fs::write(references.file(Reference::Openvino, RECEIPT), "numpy==1.0\n").unwrap();
        assert!(references.check(Reference::Openvino).is_err(), "another pin counts as not set up");
        fs::write(references.file(Reference::Openvino, RECEIPT), &text).unwrap();
        fs::remove_file(&python).unwrap();
        assert!(references.check(Reference::Openvino).is_err(), "an interpreter that is gone runs nothing");
    }

    #[test]
    fn on_a_gpu_packages_of_its_own_are_asked_for_and_what_has_none_is_refused() {
        let cache = tempfile::tempdir().unwrap();
        let on_gpu = References { target: Target::Cuda, ..references(cache.path()) };
        let error = on_gpu.check(Reference::Jax).unwrap_err().to_string();
        assert_eq!(error, "jax: not set up; photofinish setup --device cuda --references=jax");
        let error = on_gpu.set_up(&[Reference::Genai], Reporter::new(true), |_| Ok(())).unwrap_err();
        assert!(tooling::is_bad_input(&error));
        assert!(error.to_string().ends_with("on a GPU there are transformers, jax, tinygrad"), "{error}");
    }

    #[test]
    fn what_an_installation_lacks_is_named() {
        let cache = tempfile::tempdir().unwrap();
        for reference in Reference::all() {
            let Some(worker) = reference.worker() else { continue };
            let set_up = references(cache.path()).set_up(&[reference], Reporter::new(true), |_| Ok(()));
            let error = set_up.unwrap_err().to_string();
            assert!(error.contains(&worker) && error.contains("install photofinish again"), "{error}");
        }
    }

    #[test]
    fn failures_of_pip_are_told_apart() {
        let none = "ERROR: No matching distribution found for x==1.0\n";
        for (log, said) in [
            (
                "2026 ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have",
                "differs from its hash in openvino.txt; run `python3 -m pip cache purge`",
            ),
            (
                none,
                "has no x==1.0 for this system and this Python; references are pinned for CPython 3.11 to 3.13",
            ),
            // Nobody is sent to look for another Python.
            (
                &format!("WARNING: Retrying (Retry(total=4\n{none}"),
                "cannot download; check the network, set PHOTOFINISH_MIRROR or check openvino.txt",
            ),
        ] {
            let explained = explained(log, Reference::Openvino, Path::new("openvino.txt"), None);
            assert!(explained.contains(said), "{log}: {explained}");
        }
        let explained = explained(none, Reference::Openvino, Path::new("openvino.txt"), Some("/mirror"));
        assert!(explained.starts_with("/mirror has no x==1.0 for this Python"), "{explained}");
    }

    #[test]
    fn versions_of_python_are_compared_as_numbers() {
        assert!(parsed("3 9\n").unwrap() < OLDEST_PYTHON);
        assert!(parsed("3 11\n").unwrap() >= OLDEST_PYTHON);
        assert_eq!(parsed("Python"), None);
    }
}
