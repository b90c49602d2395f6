//! Building a worker with another version of its framework.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use semver::VersionReq;
use serde::Deserialize;

use super::check_out;
use super::manifest::{Origins, Package};
use super::{Build, NAMED, Version, cause};
use crate::receipt;
use crate::tooling::process::{self, command, output_of};
use crate::tooling::{BadInput, Reporter};

/// The compiler's flags for any processor of its kind.
const FOR_ANY: &str = "-C target-cpu=generic";

/// The framework that a worker is compiled with.
#[derive(Debug, Clone, Copy)]
pub struct Framework<'a> {
    /// Package and binary of the worker.
    pub worker: &'a str,
    /// The framework's crates that the worker depends on; the first one gives the version.
    pub crates: &'a [String],
    /// Features of the worker for versions that lack an API it calls, with the versions that need them.
    pub shims: &'a BTreeMap<String, String>,
    /// The versions that the worker is known to compile with.
    pub supported: &'a str,
    /// The library of another version that the worker is linked with, instead of other crates: the variable
    /// that passes it to the build, and its path.
    pub library: Option<(&'a str, &'a Path)>,
}

/// Sources and destination of built workers.
#[derive(Clone)]
pub struct Builder<'a> {
    pub cache: &'a Path,
    /// Directory of the workspace that has the workers' sources.
    pub sources: &'a Path,
    /// The compiler's flags, if they are not those of the sources.
    pub flags: Option<String>,
    pub reporter: Reporter,
}

/// A worker that was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    pub binary: PathBuf,
    /// The framework's name from the worker: `candle-core 0.11.1+3fa9c1d2ab.modified`.
    pub named: String,
}

/// The dependencies of a package, from `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Resolved>,
}

#[derive(Deserialize)]
struct Resolved {
    name: String,
    version: semver::Version,
    manifest_path: PathBuf,
}

impl Builder<'_> {
    /// The path of a worker with this version, built or not.
    pub fn place(&self, worker: &str, version: &Version) -> PathBuf {
        self.directory(worker, version).join(format!("{worker}{}", std::env::consts::EXE_SUFFIX))
    }

    /// Builds the worker; if nothing has changed since it was built, cargo does nothing.
    ///
    /// # Errors
    /// In one sentence: a version that does not exist, a directory without the framework, the compiler's first error.
    pub fn build(&self, framework: &Framework<'_>, version: &Version) -> Result<Built> {
        let directory = self.directory(framework.worker, version);
        let place = self.place(framework.worker, version);
        // Versions of one worker have the same path in the target directory: no other program may build there
        // before the result is copied.
        std::fs::create_dir_all(self.cache)
            .with_context(|| format!("cannot create {}", self.cache.display()))?;
        let _lock = receipt::lock(self.cache, self.reporter)?;
        let built = self.build_in(&directory, framework, version).and_then(|(built, named)| {
            replace(&built, &place).with_context(|| format!("cannot write {}", place.display()))?;
            Ok(Built { binary: place.clone(), named })
        });
        if built.is_err() {
            // An earlier one must not be taken for it.
            let _ = std::fs::remove_file(&place);
        }
        built
    }

    fn directory(&self, worker: &str, version: &Version) -> PathBuf {
        self.cache.join("versions").join(format!("{worker}-{}", version.slug()))
    }

    fn build_in(
        &self,
        directory: &Path,
        framework: &Framework<'_>,
        version: &Version,
    ) -> Result<(PathBuf, String)> {
        let package = Package::find(self.sources, framework.worker)?;
        if let Version::Git { url, .. } = version {
            self.reporter.note(&format!("waiting for {url}"));
        }
        let manifest = package.with(&origins(framework, version, self.cache)?)?;
        self.lay_out(directory, &package, &manifest)
            .with_context(|| format!("cannot write {}", directory.display()))?;
        let (named, features) = named(directory, framework, version)?;
        let is_debug = *version == Version::Build(Build::Debug);
        // A build with other flags would displace the others in the target directory.
        let is_generic = *version == Version::Build(Build::Generic);
        let target = self.cache.join(if is_generic { "versions/target-generic" } else { "versions/target" });
        let mut build = process::cargo(directory);
        build.arg("build").args((!is_debug).then_some("--release")).env("CARGO_TARGET_DIR", &target);
        build.envs(named.as_ref().map(|named| (NAMED, named)));
        build.envs(framework.library);
        let flags = if is_generic { Some(FOR_ANY.to_owned()) } else { self.flags.clone() };
        build.envs(flags.map(|flags| ("RUSTFLAGS", flags)));
        if !features.is_empty() {
            build.args(["--features", &features.join(",")]);
        }
        let binary = target.join(if is_debug { "debug" } else { "release" }).join(format!(
            "{}{}",
            framework.worker,
            std::env::consts::EXE_SUFFIX
        ));
        let named = match (named, version) {
            (_, Version::Build(Build::Debug)) => "without optimisation".to_owned(),
            (_, Version::Build(Build::Generic)) => "for any processor".to_owned(),
            (named, _) => format!("with {}", named.unwrap_or_default()),
        };
        let mut is_silent = true;
        let built = process::succeeds_logged(&mut build, |line| {
            if line.trim_start().starts_with("Compiling ") && std::mem::take(&mut is_silent) {
                self.reporter.note(&format!("building {} {named}", framework.worker));
            }
        })?;
        if let Err(log) = built {
            let file = directory.join("build.log");
            std::fs::write(&file, &log).with_context(|| format!("cannot write {}", file.display()))?;
            let known = match framework.crates.first() {
                Some(name) => format!("; it is known to compile with {name} {}", framework.supported),
                None => String::new(),
            };
            bail!(
                "{} does not compile {named}: {}{known}; all of the compiler's output: {}",
                framework.worker,
                first_error(&log),
                file.display()
            );
        }
        Ok((binary, named))
    }

    /// Writes the package: its own manifest, and links to all its other files. A lock file is kept while the
    /// manifest is unchanged.
    fn lay_out(&self, directory: &Path, package: &Package, manifest: &str) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        for entry in std::fs::read_dir(&package.directory)? {
            let (from, name) =
                (entry.as_ref().map(|entry| entry.path()), entry.as_ref().map(|entry| entry.file_name()));
            let (Ok(from), Ok(name)) = (from, name) else { continue };
            let is_built = !["Cargo.toml", "tests", "benches"].iter().any(|other| name == *other);
            let link = directory.join(&name);
            if is_built && std::fs::read_link(&link).ok().as_ref() != Some(&from) {
                let _ = std::fs::remove_file(&link);
                link_to(&from, &link)?;
            }
        }
        let flags = self.sources.join(".cargo/config.toml");
        if flags.is_file() {
            std::fs::create_dir_all(directory.join(".cargo"))?;
            std::fs::copy(&flags, directory.join(".cargo/config.toml"))?;
        }
        let (file, lock, base) =
            (directory.join("Cargo.toml"), directory.join("Cargo.lock"), directory.join("base.lock"));
        let ours = std::fs::read(package.root.join("Cargo.lock"))?;
        let is_same = |file: &Path, content: &[u8]| std::fs::read(file).is_ok_and(|found| found == content);
        if is_same(&file, manifest.as_bytes()) && is_same(&base, &ours) && lock.is_file() {
            return Ok(());
        }
        // Dependencies of anything but the framework keep this repository's versions.
        std::fs::write(&lock, &ours)?;
        std::fs::write(&base, &ours)?;
        Ok(std::fs::write(&file, manifest)?)
    }
}

/// The framework's name with its version, and the features that this version needs. A build without the
/// framework's crates has no name: the worker itself reports which library it loads.
fn named(
    directory: &Path,
    framework: &Framework<'_>,
    version: &Version,
) -> Result<(Option<String>, Vec<String>)> {
    if framework.crates.is_empty() {
        return Ok((None, Vec::new()));
    }
    let found = resolved(directory, framework)?;
    let named = format!("{} {}", found.name, full_version(&found, version));
    Ok((Some(named), shims(framework, &found.version)?))
}

/// The version, with details that a release does not have: the commit, and whether files differ from it.
fn full_version(found: &Resolved, version: &Version) -> String {
    let number = &found.version;
    let short = |commit: &str| commit.chars().take(10).collect::<String>();
    match version {
        Version::Release(_) | Version::Build(_) => number.to_string(),
        Version::Git { .. } | Version::Place(_) => {
            let directory = found.manifest_path.parent().unwrap_or(Path::new("."));
            let git =
                |arguments: &[&str]| output_of(command("git").arg("-C").arg(directory).args(arguments)).ok();
            let commit = git(&["rev-parse", "HEAD"]);
            let modified = git(&["status", "--porcelain", "--untracked-files=no"]);
            match (commit, modified.is_some_and(|changes| !changes.is_empty())) {
                (None, _) => number.to_string(),
                (Some(commit), false) => format!("{number}+{}", short(&commit)),
                (Some(commit), true) => format!("{number}+{}.modified", short(&commit)),
            }
        }
    }
}

/// The origins of the framework's crates.
fn origins(framework: &Framework<'_>, version: &Version, cache: &Path) -> Result<Origins> {
    if framework.library.is_some() {
        return Ok(Origins::new());
    }
    match version {
        // The pinned version.
        Version::Build(_) => Ok(Origins::new()),
        Version::Release(release) => {
            let origin = toml::Table::from_iter([("version".to_owned(), format!("={release}").into())]);
            Ok(framework.crates.iter().map(|name| (name.clone(), origin.clone())).collect())
        }
        Version::Git { url, revision } => {
            origins(framework, &Version::Place(check_out(cache, url, revision)?), cache)
        }
        Version::Place(path) => {
            let like = format!("name a directory with the sources of {}, or a release", framework.crates[0]);
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            if !path.join("Cargo.toml").is_file() {
                return Err(BadInput(format!("{} has no Cargo.toml; {like}", path.display())).into());
            }
            let metadata = metadata(&path, &["--no-deps"])?;
            let is_asked = |package: &&Resolved| framework.crates.contains(&package.name);
            let origin = |package: &Resolved| {
                let directory = package.manifest_path.parent().unwrap_or(&path).display().to_string();
                (package.name.clone(), toml::Table::from_iter([("path".to_owned(), directory.into())]))
            };
            let found: Origins = metadata.packages.iter().filter(is_asked).map(origin).collect();
            if found.is_empty() {
                let asked = framework.crates.join(", ");
                return Err(BadInput(format!("{} holds none of {asked}; {like}", path.display())).into());
            }
            Ok(found)
        }
    }
}

/// The framework's first crate, as resolved by cargo for this package.
fn resolved(directory: &Path, framework: &Framework<'_>) -> Result<Resolved> {
    let name = &framework.crates[0];
    let found = metadata(directory, &[])?.packages.into_iter().find(|package| package.name == *name);
    found.with_context(|| format!("{} does not depend on {name}", framework.worker))
}

fn metadata(directory: &Path, arguments: &[&str]) -> Result<Metadata> {
    let mut metadata = process::cargo(directory);
    metadata.args(["metadata", "--format-version", "1"]).args(arguments);
    let text = output_of(&mut metadata)
        .map_err(|error| BadInput(format!("cargo finds no such version: {}", cause(&error))))?;
    serde_json::from_str(&text).context("cannot read what `cargo metadata` prints")
}

/// The features that a version needs.
fn shims(framework: &Framework<'_>, version: &semver::Version) -> Result<Vec<String>> {
    // Otherwise a range does not include a pre-release.
    let plain = semver::Version::new(version.major, version.minor, version.patch);
    let mut features = Vec::new();
    for (feature, range) in framework.shims {
        let range = VersionReq::parse(range).with_context(|| format!("shims.{feature}: {range}"))?;
        if range.matches(&plain) {
            features.push(feature.clone());
        }
    }
    Ok(features)
}

/// The first error in cargo's output, with its place.
fn first_error(log: &str) -> String {
    let mut lines = log.lines();
    let is_error = |line: &&str| line.starts_with("error");
    let Some(error) = lines.find(is_error) else { return "cargo gives no reason".to_owned() };
    let place = lines.next().and_then(|line| line.trim_start().strip_prefix("--> "));
    place.map_or(error.to_owned(), |place| format!("{error} ({place})"))
}

/// Replaces a file that may be running with a copy.
fn replace(from: &Path, to: &Path) -> std::io::Result<()> {
    let new = to.with_extension("new");
    std::fs::copy(from, &new)?;
    std::fs::rename(new, to)
}

#[cfg(unix)]
fn link_to(from: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(from, link)
}

#[cfg(not(unix))]
fn link_to(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::Error::other("workers are built with other versions on Unix alone"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framework(shims: &BTreeMap<String, String>) -> Vec<Vec<String>> {
        let crates = ["fast".to_owned()];
        let framework = Framework {
            worker: "engine-fast",
            crates: &crates,
            shims,
            supported: "1.0 to 1.2",
            library: None,
        };
        let versions = ["1.0.3", "1.1.0-alpha.2", "1.1.0"];
        versions.map(|version| super::shims(&framework, &version.parse().unwrap()).unwrap()).to_vec()
    }

    #[test]
    fn a_version_has_the_features_that_it_needs() {
        let shims = BTreeMap::from([("before-1-1".to_owned(), "<1.1".to_owned())]);
        assert_eq!(framework(&shims), [vec!["before-1-1".to_owned()], Vec::new(), Vec::new()]);
    }

    #[test]
    fn the_first_error_is_told_with_its_place() {
        let log = "   Compiling fast v1.0.0\nwarning: unused\nerror[E0432]: unresolved import `fast::pool`\n  --> /s/src/a.rs:10:5\n   |\nerror: could not compile `engine-fast`\n";
        assert_eq!(first_error(log), "error[E0432]: unresolved import `fast::pool` (/s/src/a.rs:10:5)");
        assert_eq!(first_error("killed"), "cargo gives no reason");
    }

    #[test]
    fn a_directory_without_the_framework_is_bad_input() {
        let directory = tempfile::tempdir().unwrap();
        let crates = ["fast".to_owned()];
        let shims = BTreeMap::new();
        let framework =
            Framework { worker: "engine-fast", crates: &crates, shims: &shims, supported: "", library: None };
        let refusal =
            origins(&framework, &Version::Place(directory.path().to_owned()), directory.path()).unwrap_err();
        assert!(crate::tooling::is_bad_input(&refusal));
        assert!(
            refusal
                .to_string()
                .ends_with("has no Cargo.toml; name a directory with the sources of fast, or a release")
        );
    }
}
