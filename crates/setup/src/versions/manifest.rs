//! The package of a worker with other dependencies, as a workspace of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use toml::{Table, Value};

/// The origin of a crate instead of the pinned release: `version`, `path`, or `git` and `rev`.
pub(super) type Origins = BTreeMap<String, Table>;

/// Below the repository: a workspace of its own.
const REFERENCES: &str = "references";

/// The directories below `root` of these packages and of all their dependencies.
pub fn packages(root: &Path, names: &[String]) -> Result<BTreeSet<PathBuf>> {
    let open = names.iter().map(|name| Ok(Package::find(root, name)?.directory));
    let mut open = open.collect::<Result<Vec<PathBuf>>>()?;
    let mut found = BTreeSet::new();
    while let Some(directory) = open.pop() {
        if !found.insert(directory.clone()) {
            continue;
        }
        let package = Package::read(root, directory)?;
        for kind in ["dependencies", "build-dependencies"] {
            for (name, value) in &package.own(kind).unwrap_or_default() {
                let (_, dependency) = package.dependency(name, value, &Origins::new())?;
                open.extend(dependency.get("path").and_then(Value::as_str).map(PathBuf::from));
            }
        }
    }
    Ok(found)
}

/// A package of this repository.
pub(super) struct Package {
    pub(super) directory: PathBuf,
    manifest: Table,
    workspace: Table,
    /// Directory of the workspace.
    pub(super) root: PathBuf,
}

impl Package {
    /// The package of this name in the workspace at `root`.
    pub(super) fn find(root: &Path, name: &str) -> Result<Package> {
        for kind in ["crates", REFERENCES] {
            let entries = std::fs::read_dir(root.join(kind)).into_iter().flatten().flatten();
            for directory in entries.map(|entry| entry.path()) {
                let Ok(manifest) = read(&directory.join("Cargo.toml")) else { continue };
                if name_of(&manifest) == Some(name) {
                    return Package::read(root, directory);
                }
            }
        }
        Err(anyhow!("there is no package {name} in {}", root.display()))
    }

    /// The package in this directory. References are a workspace of their own.
    fn read(root: &Path, directory: PathBuf) -> Result<Package> {
        let of_references = root.join(REFERENCES);
        // A reference names crates of the other workspace by `../crates`.
        let real = [&directory, &of_references].map(|path| path.canonicalize().unwrap_or(path.clone()));
        let is_reference = real[0].starts_with(&real[1]) && of_references.join("Cargo.toml").is_file();
        let root = if is_reference { of_references } else { root.to_owned() };
        let manifest = read(&directory.join("Cargo.toml"))?;
        Ok(Package { directory, manifest, workspace: read(&root.join("Cargo.toml"))?, root })
    }

    /// The manifest that builds the package with these origins. Other crates of the framework keep their
    /// release. An origin that is no release also replaces the registry's for other packages.
    pub(super) fn with(&self, origins: &Origins) -> Result<String> {
        let mut package = self.own("package")?;
        for (field, value) in &mut package {
            if is_inherited(value) {
                *value = self.shared("package", field)?;
            }
        }
        package.remove("rust-version");
        let mut written = Table::from_iter([
            ("workspace".to_owned(), table([("resolver", self.resolver())])),
            ("package".to_owned(), Value::Table(package)),
        ]);
        for kind in ["dependencies", "build-dependencies"] {
            let Ok(wanted) = self.own(kind) else { continue };
            let found = wanted.iter().map(|(name, value)| self.dependency(name, value, origins));
            written.insert(kind.to_owned(), Value::Table(found.collect::<Result<_>>()?));
        }
        for kind in ["features", "lib", "bin"] {
            written.extend(self.manifest.get(kind).map(|value| (kind.to_owned(), value.clone())));
        }
        written.extend(self.workspace.get("profile").map(|value| ("profile".to_owned(), value.clone())));
        written.insert("patch".to_owned(), Value::Table(self.patches(origins)));
        Ok(toml::to_string(&written)?)
    }

    /// A dependency with all inherited fields.
    fn dependency(&self, name: &str, value: &Value, origins: &Origins) -> Result<(String, Value)> {
        let (mut found, from) = match is_inherited(value) {
            true => (as_table(self.shared("dependencies", name)?), &self.root),
            false => (as_table(value.clone()), &self.directory),
        };
        if is_inherited(value) {
            for (field, mut value) in
                as_table(value.clone()).into_iter().filter(|(field, _)| field != "workspace")
            {
                // A package adds features to those of the workspace.
                if let (Value::Array(own), Some(Value::Array(shared))) = (&mut value, found.get(&field)) {
                    own.extend(shared.iter().cloned());
                }
                found.insert(field, value);
            }
        }
        absolute(&mut found, from);
        if let Some(origin) = origins.get(name) {
            ["version", "path", "git"].iter().for_each(|field| drop(found.remove(*field)));
            found.extend(origin.clone());
        }
        Ok((name.to_owned(), Value::Table(found)))
    }

    /// The workspace's patches, and the origins that are no release.
    fn patches(&self, origins: &Origins) -> Table {
        let mut patches = self.workspace.get("patch").cloned().map(as_table).unwrap_or_default();
        for (_, value) in &mut patches {
            let Value::Table(patch) = value else { continue };
            patch.iter_mut().for_each(|(_, value)| {
                if let Value::Table(patched) = value {
                    absolute(patched, &self.root);
                }
            });
        }
        let others = origins.iter().filter(|(_, origin)| !origin.contains_key("version"));
        let others: Vec<_> =
            others.map(|(name, origin)| (name.clone(), Value::Table(origin.clone()))).collect();
        if let Value::Table(registry) = patches.entry("crates-io").or_insert(Value::Table(Table::new())) {
            registry.extend(others);
        }
        patches
    }

    fn own(&self, field: &str) -> Result<Table> {
        let found = self.manifest.get(field).and_then(Value::as_table).cloned();
        found.with_context(|| format!("{} has no {field}", self.directory.join("Cargo.toml").display()))
    }

    fn shared(&self, kind: &str, field: &str) -> Result<Value> {
        let found =
            self.workspace.get("workspace").and_then(|workspace| workspace.get(kind)?.get(field)).cloned();
        found.with_context(|| format!("{} has no {kind}.{field}", self.root.join("Cargo.toml").display()))
    }

    fn resolver(&self) -> Value {
        let found = self.workspace.get("workspace").and_then(|workspace| workspace.get("resolver")).cloned();
        found.unwrap_or_else(|| Value::String("3".to_owned()))
    }
}

fn name_of(manifest: &Table) -> Option<&str> {
    manifest.get("package")?.get("name")?.as_str()
}

fn is_inherited(value: &Value) -> bool {
    value.get("workspace").and_then(Value::as_bool) == Some(true)
}

/// A dependency given as a version alone becomes a table of one field.
fn as_table(value: Value) -> Table {
    match value {
        Value::Table(table) => table,
        version => Table::from_iter([("version".to_owned(), version)]),
    }
}

fn table<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Table(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Makes the path of a dependency absolute.
fn absolute(dependency: &mut Table, from: &Path) {
    if let Some(Value::String(path)) = dependency.get_mut("path") {
        *path = from.join(&*path).display().to_string();
    }
}

fn read(file: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    text.parse().with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn package() -> (tempfile::TempDir, Package) {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write(
            "Cargo.toml",
            "[workspace]\nresolver = \"3\"\n[workspace.package]\nversion = \"0.1.0\"\nedition = \"2024\"\n\
             [workspace.dependencies]\nengine = { path = \"crates/engine\" }\nfast = { version = \"=1.2.0\", features = [\"x\"] }\n\
             fast-nn = \"=1.2.0\"\n[patch.crates-io]\nzip = { path = \"patches/zip\" }\n[profile.release]\ndebug = false\n",
        );
        write(
            "crates/engine-fast/Cargo.toml",
            "[package]\nname = \"engine-fast\"\nversion.workspace = true\nedition.workspace = true\n[lints]\nworkspace = true\n\
             [features]\nbefore-1-1 = []\n[dependencies]\nengine.workspace = true\nfast = { workspace = true, optional = true, features = [\"y\"] }\n\
             fast-nn.workspace = true\nbeside = { path = \"../beside\" }\n[dev-dependencies]\ntested.workspace = true\n",
        );
        let package = Package::find(root.path(), "engine-fast").unwrap();
        (root, package)
    }

    fn origin(field: &str, value: &str) -> Table {
        Table::from_iter([(field.to_owned(), Value::String(value.to_owned()))])
    }

    #[test]
    fn a_package_stands_alone_and_has_another_release() {
        let (root, package) = package();
        let origins = Origins::from([("fast".to_owned(), origin("version", "=1.1.0"))]);
        let written: Table = package.with(&origins).unwrap().parse().unwrap();
        let at = |path: &str| {
            let (first, rest) = path.split_once('/').unwrap();
            rest.split('/').fold(written.get(first).cloned(), |found, name| found?.get(name).cloned())
        };
        let text = |path: &str| at(path).and_then(|value| value.as_str().map(str::to_owned));
        assert_eq!(text("package/edition").as_deref(), Some("2024"));
        assert_eq!(text("dependencies/fast/version").as_deref(), Some("=1.1.0"));
        assert_eq!(at("dependencies/fast/features").unwrap().as_array().unwrap().len(), 2, "its own, too");
        assert_eq!(at("dependencies/fast/optional"), Some(Value::Boolean(true)));
        assert_eq!(
            text("dependencies/fast-nn/version").as_deref(),
            Some("=1.2.0"),
            "it is no part of what was asked"
        );
        let path = |below: &str| Some(root.path().join(below).display().to_string());
        assert_eq!(text("dependencies/engine/path"), path("crates/engine"));
        assert_eq!(text("dependencies/beside/path"), path("crates/engine-fast/../beside"));
        assert_eq!(text("patch/crates-io/zip/path"), path("patches/zip"));
        assert_eq!(at("patch/crates-io/fast"), None);
        assert_eq!(at("profile/release/debug"), Some(Value::Boolean(false)));
        assert!(written.get("dev-dependencies").is_none() && written.get("lints").is_none());
    }

    #[test]
    fn a_package_is_built_from_what_it_depends_on() {
        let (root, _) = package();
        for (name, dependency) in [("engine", ""), ("beside", "engine.workspace = true\n")] {
            let directory = root.path().join("crates").join(name);
            fs::create_dir_all(&directory).unwrap();
            let text = format!("[package]\nname = \"{name}\"\n[dependencies]\n{dependency}");
            fs::write(directory.join("Cargo.toml"), text).unwrap();
        }
        let found = packages(root.path(), &["engine-fast".to_owned()]).unwrap();
        let names = ["crates/engine", "crates/engine-fast", "crates/engine-fast/../beside"];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), names.map(|name| root.path().join(name)));
    }

    #[test]
    fn a_reference_is_of_its_own_workspace_and_what_it_depends_on_is_not() {
        let (root, _) = package();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let engine = "engine = { path = \"../crates/engine\" }\n";
        write("references/Cargo.toml", &format!("[workspace]\n[workspace.dependencies]\n{engine}"));
        let own = "[package]\nname = \"reference-fast\"\n[dependencies]\nengine.workspace = true\n";
        write("references/fast/Cargo.toml", own);
        let engine = "[package]\nname = \"engine\"\n[dependencies]\nfast-nn.workspace = true\n";
        write("crates/engine/Cargo.toml", engine);
        let found = packages(root.path(), &["reference-fast".to_owned()]).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        let package = Package::find(root.path(), "reference-fast").unwrap();
        assert_eq!(package.root, root.path().join("references"));
    }

    #[test]
    fn what_is_no_release_takes_the_place_of_the_registrys_for_all() {
        let (_root, package) = package();
        let origins = Origins::from([("fast".to_owned(), origin("path", "/mine/fast"))]);
        let written: Table = package.with(&origins).unwrap().parse().unwrap();
        let fast = written["dependencies"]["fast"].as_table().unwrap();
        assert_eq!(fast["path"].as_str(), Some("/mine/fast"));
        assert!(!fast.contains_key("version"));
        assert_eq!(written["patch"]["crates-io"]["fast"]["path"].as_str(), Some("/mine/fast"));
    }
}
