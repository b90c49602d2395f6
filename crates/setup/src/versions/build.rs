//! Building a worker with another version of its framework.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use semver::VersionReq;
use serde::Deserialize;
use toml::{Table, Value};

use super::{Build, NAMED, Version, cause, check_out};
use crate::tooling::process::{self, command, output_of};
use crate::tooling::{self, BadInput, Reporter};
use crate::{layouts, receipt};

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

/// The path of a worker with this version below the cache directory, built or not.
pub fn place(cache: &Path, worker: &str, version: &Version) -> PathBuf {
    directory(cache, worker, version).join(process::file_name(worker))
}

fn directory(cache: &Path, worker: &str, version: &Version) -> PathBuf {
    cache.join("versions").join(format!("{worker}-{}", version.slug()))
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
        place(self.cache, worker, version)
    }

    /// Builds the worker; if nothing has changed since it was built, cargo does nothing.
    ///
    /// # Errors
    /// In one sentence: a version that does not exist, a directory without the framework, the compiler's first error.
    pub fn build(&self, framework: &Framework<'_>, version: &Version) -> Result<()> {
        let place = self.place(framework.worker, version);
        // Versions of one worker have the same path in the target directory: no other program may build there
        // before the result is copied.
        let _lock = receipt::lock(self.cache, self.reporter)?;
        let directory = directory(self.cache, framework.worker, version);
        let built = self.build_in(&directory, framework, version, None).and_then(|built| {
            tooling::replace(&built, &place).with_context(|| format!("cannot write {}", place.display()))
        });
        if built.is_ok() && matches!(version, Version::Place(_) | Version::Git { .. }) {
            let link = |flag: &str| self.build_in(&directory, framework, version, Some(flag));
            if let Err(error) = layouts::make(&place, link) {
                self.reporter.warn(&format!("{} has one layout: {}", framework.worker, cause(&error)));
            }
        }
        if built.is_err() {
            // An earlier one must not be taken for it.
            let _ = fs::remove_file(&place);
        }
        built
    }

    /// `flag`: one more of the linker.
    fn build_in(
        &self,
        directory: &Path,
        framework: &Framework<'_>,
        version: &Version,
        flag: Option<&str>,
    ) -> Result<PathBuf> {
        let worker = framework.worker;
        let package = Package::of_worker(self.sources, worker);
        if let Version::Git { url, .. } = version {
            self.reporter.note(&format!("waiting for {url}"));
        }
        let manifest = package.manifest(&origins(framework, version, self.cache)?)?;
        self.lay_out(directory, &package, &manifest)
            .with_context(|| format!("cannot write {}", directory.display()))?;
        let (named, features) = named(directory, framework, version)?;
        // A build with other flags would displace the others in the target directory.
        let (profile, target, flags) = match version {
            Version::Build(Build::Debug) => ("debug", "versions/target", self.flags.as_deref()),
            Version::Build(Build::Generic) => ("release", "versions/target-generic", Some(FOR_ANY)),
            _ => ("release", "versions/target", self.flags.as_deref()),
        };
        let target = self.cache.join(target);
        let mut build = process::cargo(directory);
        build.arg("rustc").args((profile == "release").then_some("--release")).args(["--bin", worker]);
        build.env("CARGO_TARGET_DIR", &target).envs(flags.map(|flags| ("RUSTFLAGS", flags)));
        build.envs(named.as_ref().map(|named| (NAMED, named))).envs(framework.library);
        if !features.is_empty() {
            build.args(["--features", &features.join(",")]);
        }
        build.args(flag.iter().flat_map(|flag| ["--".to_owned(), format!("-Clink-arg={flag}")]));
        let named = match version {
            Version::Build(Build::Debug) => "without optimisation".to_owned(),
            Version::Build(Build::Generic) => "for any processor".to_owned(),
            Version::Build(Build::Here) => "here".to_owned(),
            _ => format!("with {}", named.unwrap_or_default()),
        };
        let mut is_silent = true;
        let built = process::succeeds_logged(&mut build, |line| {
            if line.trim_start().starts_with("Compiling ") && std::mem::take(&mut is_silent) {
                self.reporter.note(&format!("building {worker} {named}"));
            }
        })?;
        if let Err(log) = built {
            let file = directory.join("build.log");
            fs::write(&file, &log).with_context(|| format!("cannot write {}", file.display()))?;
            let known = match framework.crates.first() {
                Some(name) => format!("; it is known to compile with {name} {}", framework.supported),
                None => String::new(),
            };
            bail!(
                "{worker} does not compile {named}: {}{known}; all of the compiler's output: {}",
                first_error(&log),
                file.display()
            );
        }
        Ok(target.join(profile).join(process::file_name(worker)))
    }

    /// Writes the package: its own manifest, and links to all its other files. A lock file is kept while the
    /// manifest is unchanged.
    fn lay_out(&self, directory: &Path, package: &Package, manifest: &str) -> Result<()> {
        fs::create_dir_all(directory)?;
        for entry in fs::read_dir(&package.directory)? {
            let entry = entry?;
            let link = directory.join(entry.file_name());
            let is_built = !["Cargo.toml", "tests", "benches"].iter().any(|name| entry.file_name() == *name);
            if is_built && fs::read_link(&link).ok() != Some(entry.path()) {
                let _ = fs::remove_file(&link);
                link_to(&entry.path(), &link)?;
            }
        }
        let flags = self.sources.join(".cargo/config.toml");
        if flags.is_file() {
            fs::create_dir_all(directory.join(".cargo"))?;
            fs::copy(&flags, directory.join(".cargo/config.toml"))?;
        }
        let ours = fs::read_to_string(package.root.join("Cargo.lock"))?;
        let [file, lock, base] = ["Cargo.toml", "Cargo.lock", "base.lock"].map(|name| directory.join(name));
        let is_same = |file: &Path, text: &str| fs::read_to_string(file).is_ok_and(|found| found == text);
        if !(is_same(&file, manifest) && is_same(&base, &ours) && lock.is_file()) {
            // Dependencies of anything but the framework keep this repository's versions.
            fs::write(&lock, &ours)?;
            fs::write(&base, &ours)?;
            fs::write(&file, manifest)?;
        }
        Ok(())
    }
}

/// The framework's name with its version, and the features that this version needs. A build without the
/// framework's crates has no name: the worker itself reports which library it loads.
fn named(
    directory: &Path,
    framework: &Framework<'_>,
    version: &Version,
) -> Result<(Option<String>, Vec<String>)> {
    let Some(name) = framework.crates.first() else { return Ok((None, Vec::new())) };
    let found = metadata(directory, &[])?.packages.into_iter().find(|package| package.name == *name);
    let found = found.with_context(|| format!("{} does not depend on {name}", framework.worker))?;
    let named = format!("{name} {}", full_version(&found, version));
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

#[cfg(unix)]
fn link_to(from: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(from, link)
}

#[cfg(not(unix))]
fn link_to(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::Error::other("workers are built with other versions on Unix alone"))
}

// The package of a worker with other dependencies, as a workspace of its own.

/// The origin of a crate instead of the pinned release: `version` or `path`.
type Origins = BTreeMap<String, Table>;

/// The sources of a worker.
struct Package {
    directory: PathBuf,
    /// Directory of its workspace: references have one of their own.
    root: PathBuf,
}

impl Package {
    fn of_worker(sources: &Path, name: &str) -> Package {
        let (root, below) = match name.strip_prefix("reference-") {
            Some(name) => (sources.join("references"), name.to_owned()),
            None => (sources.to_owned(), format!("crates/{name}")),
        };
        Package { directory: root.join(below), root }
    }

    /// The manifest that builds the package with these origins: what it inherits is in the same file. Other crates of the
    /// framework keep their release. An origin that is no release also replaces the registry's for other packages.
    fn manifest(&self, origins: &Origins) -> Result<String> {
        let mut manifest = read(&self.directory.join("Cargo.toml"))?;
        // It is built, by whichever compiler there is, and not tested.
        manifest.retain(|field, _| !["dev-dependencies", "lints", "test", "bench"].contains(&field));
        table(&mut manifest, "package")?.remove("rust-version");
        let mut shared = read(&self.root.join("Cargo.toml"))?;
        let workspace = table(&mut shared, "workspace")?;
        workspace.retain(|field, _| ["resolver", "package", "dependencies"].contains(&field));
        for (name, dependency) in table(workspace, "dependencies")? {
            self.place(dependency);
            if let Some(origin) = origins.get(name) {
                let mut other = match dependency {
                    Value::Table(found) => found.clone(),
                    _ => Table::new(),
                };
                ["version", "path", "git"].iter().for_each(|field| drop(other.remove(*field)));
                other.extend(origin.clone());
                *dependency = Value::Table(other);
            }
        }
        let patches = table(table(&mut shared, "patch")?, "crates-io")?;
        patches.iter_mut().for_each(|(_, patch)| self.place(patch));
        let others = origins.iter().filter(|(_, origin)| !origin.contains_key("version"));
        patches.extend(others.map(|(name, origin)| (name.clone(), Value::Table(origin.clone()))));
        let of_root = ["workspace", "patch", "profile"];
        manifest.extend(shared.into_iter().filter(|(field, _)| of_root.contains(&field.as_str())));
        Ok(toml::to_string(&manifest)?)
    }

    /// Makes the path of a workspace's dependency absolute.
    fn place(&self, dependency: &mut Value) {
        if let Some(Value::String(path)) = dependency.get_mut("path") {
            *path = self.root.join(&*path).display().to_string();
        }
    }
}

/// The table of this name, made if there is none.
fn table<'a>(parent: &'a mut Table, name: &str) -> Result<&'a mut Table> {
    let found = parent.entry(name).or_insert_with(|| Value::Table(Table::new()));
    found.as_table_mut().with_context(|| format!("{name} is no table"))
}

fn read(file: &Path) -> Result<Table> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    text.parse().with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: BTreeMap<String, String> = BTreeMap::new();

    fn framework<'a>(crates: &'a [String], shims: &'a BTreeMap<String, String>) -> Framework<'a> {
        Framework { worker: "engine-fast", crates, shims, supported: "", library: None }
    }

    #[test]
    fn a_version_has_the_features_that_it_needs() {
        let needs = BTreeMap::from([("before-1-1".to_owned(), "<1.1".to_owned())]);
        for (version, expected) in [("1.0.3", &["before-1-1"][..]), ("1.1.0-alpha.2", &[]), ("1.1.0", &[])] {
            let found = shims(&framework(&[], &needs), &version.parse().unwrap()).unwrap();
            assert_eq!(found, expected, "{version}");
        }
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
        let (crates, version) = (["fast".to_owned()], Version::Place(directory.path().to_owned()));
        let refusal = origins(&framework(&crates, &NONE), &version, directory.path()).unwrap_err();
        assert!(tooling::is_bad_input(&refusal));
        let expected = "has no Cargo.toml; name a directory with the sources of fast, or a release";
        assert!(refusal.to_string().ends_with(expected), "{refusal}");
    }

    const WORKSPACE: &str = r#"
        workspace.resolver = "3"
        workspace.members = ["crates/*"]
        workspace.package.edition = "2024"
        workspace.lints.rust.unused = "deny"
        workspace.dependencies.engine = { path = "crates/engine" }
        workspace.dependencies.fast = { version = "=1.2.0", features = ["x"] }
        workspace.dependencies.fast-nn = "=1.2.0"
        patch.crates-io.zip = { path = "patches/zip" }
        profile.release.debug = false
    "#;
    const PACKAGE: &str = r#"
        package = { name = "engine-fast", edition.workspace = true, rust-version = "1.95" }
        lints.workspace = true
        features.before-1-1 = []
        dependencies.engine.workspace = true
        dependencies.fast = { workspace = true, optional = true, features = ["y"] }
        dev-dependencies.tested.workspace = true
    "#;

    /// The manifest of a worker with this origin of `fast`; `ROOT` is in the place of the repository.
    fn manifest(field: &str, value: &str) -> Table {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("crates/engine-fast")).unwrap();
        fs::write(root.path().join("Cargo.toml"), WORKSPACE).unwrap();
        fs::write(root.path().join("crates/engine-fast/Cargo.toml"), PACKAGE).unwrap();
        let origin = Table::from_iter([(field.to_owned(), Value::String(value.to_owned()))]);
        let package = Package::of_worker(root.path(), "engine-fast");
        let manifest = package.manifest(&Origins::from([("fast".to_owned(), origin)])).unwrap();
        manifest.replace(&root.path().display().to_string(), "ROOT").parse().unwrap()
    }

    #[test]
    fn a_package_stands_alone_and_has_another_release() {
        let expected = r#"
            package = { name = "engine-fast", edition.workspace = true }
            features.before-1-1 = []
            dependencies.engine.workspace = true
            dependencies.fast = { workspace = true, optional = true, features = ["y"] }
            workspace.resolver = "3"
            workspace.package.edition = "2024"
            workspace.dependencies.engine = { path = "ROOT/crates/engine" }
            workspace.dependencies.fast = { version = "=1.1.0", features = ["x"] }
            workspace.dependencies.fast-nn = "=1.2.0"
            patch.crates-io.zip = { path = "ROOT/patches/zip" }
            profile.release.debug = false
        "#;
        assert_eq!(manifest("version", "=1.1.0"), expected.parse().unwrap());
    }

    #[test]
    fn what_is_no_release_takes_the_place_of_the_registrys_for_all() {
        let of_path = manifest("path", "/mine/fast");
        let fast = &of_path["workspace"]["dependencies"]["fast"];
        assert_eq!((fast["path"].as_str(), fast.get("version")), (Some("/mine/fast"), None));
        assert_eq!(of_path["patch"]["crates-io"]["fast"]["path"].as_str(), Some("/mine/fast"));
    }

    #[test]
    fn a_reference_is_of_its_own_workspace() {
        let package = Package::of_worker(Path::new("ROOT"), "reference-fast");
        assert_eq!(
            (package.root, package.directory),
            ("ROOT/references".into(), "ROOT/references/fast".into())
        );
    }
}
