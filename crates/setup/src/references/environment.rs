//! A virtual environment that references in Python are installed into, and pip's errors in words for people.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tooling::process::{self, command, output_of, succeeds};
use tooling::{BadInput, Reporter};

const OLDEST_PYTHON: (u32, u32) = (3, 11);
/// The platforms of the wheels with hashes in the requirements.
const PINNED_FOR: &str = "CPython 3.11 to 3.13 on Linux, x86_64 or aarch64";

pub(super) struct Environment {
    pub(super) place: PathBuf,
}

/// Packages installed together.
pub(super) struct Requirements<'a> {
    /// For people.
    pub(super) name: &'a str,
    /// Every package with its version and hashes.
    pub(super) file: &'a Path,
    /// Packages that are built here from source; all others are wheels.
    pub(super) from_source: &'a [&'a str],
}

impl Environment {
    pub(super) fn python(&self) -> PathBuf {
        self.place.join("bin/python")
    }

    /// Creates it unless it exists; returns whether it was created.
    pub(super) fn make(&self, reporter: Reporter) -> Result<bool> {
        // An interpreter that was removed since leaves a dangling link.
        if output_of(command(self.python()).arg("--version")).is_ok() {
            return Ok(false);
        }
        require_python()?;
        reporter.note(&format!("making a virtual environment in {}", self.place.display()));
        output_of(command("python3").args(["-m", "venv", "--clear"]).arg(&self.place))
            .map_err(without_venv)?;
        Ok(true)
    }

    pub(super) fn install(&self, requirements: &Requirements, reporter: Reporter) -> Result<()> {
        let log = tempfile::NamedTempFile::new().context("cannot write a log of pip's")?;
        let mut pip = command(self.python());
        pip.args(["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--require-hashes"])
            .args(["--only-binary", ":all:"])
            .args(requirements.from_source.iter().flat_map(|package| ["--no-binary", package]))
            .arg("--log")
            .arg(log.path())
            .arg("--requirement")
            .arg(requirements.file);
        if reporter.is_quiet() {
            pip.arg("--quiet");
        }
        // For source packages: built for this machine, like everything that is measured.
        pip.env("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF");
        // stdout is for results.
        pip.stdout(std::io::stderr());
        if succeeds(&mut pip)? {
            return Ok(());
        }
        let said = std::fs::read(log.path()).unwrap_or_default();
        bail!("{}", explained(&String::from_utf8_lossy(&said), requirements))
    }
}

/// One sentence on why pip failed, from its log.
fn explained(log: &str, requirements: &Requirements) -> String {
    let (name, file) = (requirements.name, requirements.file.display());
    if log.contains("DO NOT MATCH THE HASHES") {
        return format!(
            "{name} is not set up: a package differs from its hash in {file}; run `python3 -m pip cache purge` and set \
             it up again, and if it still differs, ask the operator of your package index"
        );
    }
    // Without a network pip also says that no version was found.
    let unreachable = log.contains("Retrying (Retry(");
    let missing = log.lines().find_map(|line| line.split_once("No matching distribution found for "));
    match missing.and_then(|(_, rest)| rest.split_whitespace().next()) {
        Some(package) if !unreachable => format!(
            "{name} is not set up: your package index has no {package} for this system and this Python; references are \
             pinned for {PINNED_FOR}: put such a python3 first on PATH and set it up again"
        ),
        _ => format!("pip did not install {name}; check the network and {file}"),
    }
}

fn require_python() -> Result<()> {
    let print = "import sys; print(*sys.version_info[:2])";
    let version = output_of(command("python3").args(["-c", print])).map_err(without_venv)?;
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

/// The C compiler that tinygrad starts for every kernel.
pub(super) fn require_clang() -> Result<()> {
    let found = output_of(command("clang").arg("--version")).is_ok();
    ensure!(
        found,
        BadInput(
            "tinygrad needs clang on PATH: install it (on Debian and Ubuntu: apt-get install clang)".into()
        )
    );
    Ok(())
}

pub(super) fn require_cxx() -> Result<()> {
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

    fn said(log: &str) -> String {
        let file = Path::new("openvino.txt");
        explained(log, &Requirements { name: "openvino", file, from_source: &[] })
    }

    #[test]
    fn a_package_of_another_hash_is_told_from_a_failure() {
        let log =
            "2026 ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have";
        assert!(
            said(log).contains("differs from its hash in openvino.txt; run `python3 -m pip cache purge`")
        );
    }

    #[test]
    fn a_package_without_a_wheel_is_named() {
        let log =
            "2026 ERROR: Could not find a version\n2026 ERROR: No matching distribution found for x==1.0\n";
        let said = said(log);
        assert!(
            said.contains("has no x==1.0 for this system") && said.contains("CPython 3.11 to 3.13"),
            "{said}"
        );
    }

    #[test]
    fn without_a_network_nobody_is_sent_to_look_for_another_python() {
        let log = "WARNING: Retrying (Retry(total=4\nERROR: No matching distribution found for x==1.0\n";
        assert_eq!(said(log), "pip did not install openvino; check the network and openvino.txt");
    }

    #[test]
    fn versions_of_python_are_compared_as_numbers() {
        assert!(parsed("3 9\n").unwrap() < OLDEST_PYTHON);
        assert!(parsed("3 11\n").unwrap() >= OLDEST_PYTHON);
        assert_eq!(parsed("Python"), None);
    }
}
