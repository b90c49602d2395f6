//! The list of what an archive and a wheel consist of, and of what they fetch later: CycloneDX 1.6, in JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use setup::BuildRecord;
use setup::tooling::Reporter;

use crate::cargo::{self, HUB, REFERENCES, is_reference};
use crate::workspace::{Workspace, sorted};

/// Its name in the data directory of an installation.
pub(crate) const FILE: &str = "sbom.cyclonedx.json";

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    /// `None` for packages of this repository.
    checksum: Option<String>,
}

/// A package of a registry that is fetched where it is used.
fn fetched(requirement: &str, sha256: &str, bytes: u64, piece: &str) -> Result<Value> {
    let (kind, requirement) = match requirement.strip_prefix("npm:") {
        Some(requirement) => ("npm", requirement),
        None => ("pypi", requirement),
    };
    let (name, version) = requirement.split_once("==").context("a requirement names its version")?;
    Ok(json!({
        "type": "library", "name": name, "version": version,
        "purl": format!("pkg:{kind}/{}@{version}", name.replace('@', "%40")),
        "hashes": [{ "alg": "SHA-256", "content": sha256 }],
        "properties": [
            { "name": "photofinish:fetched", "value": "where it is used" },
            { "name": "photofinish:piece", "value": piece },
            { "name": "photofinish:bytes", "value": bytes.to_string() },
        ],
    }))
}

pub(crate) fn list(workspace: &Workspace, binaries: &[String], record: &BuildRecord) -> Result<String> {
    let mut components = crates(workspace, binaries)?;
    for archive in workspace.provision(Reporter::new(true))?.archives() {
        let piece = archive.piece.to_string();
        components.push(fetched(&archive.requirement, &archive.sha256, archive.bytes, &piece)?);
    }
    for name in configs::models(&workspace.layers())? {
        for package in configs::model(&workspace.layers(), &name)?.packages {
            components.push(fetched(
                &package.requirement,
                &package.sha256,
                package.bytes,
                &format!("model {name}"),
            )?);
        }
    }
    components.extend(packages_of_references(workspace)?);
    let bill = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": { "component": {
            "type": "application", "name": "photofinish", "version": record.version,
            "properties": [{ "name": "photofinish:commit", "value": record.git_commit }],
        }},
        "components": components,
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

/// The Python packages that set-up installs for references, with the hashes of all files that it accepts for each.
fn packages_of_references(workspace: &Workspace) -> Result<Vec<Value>> {
    let mut hashes: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for file in sorted(&workspace.root.join("references/python/requirements"))? {
        if file.extension().is_none_or(|ending| ending != "txt") {
            continue;
        }
        let mut package = None;
        for word in fs::read_to_string(&file)?.split_whitespace() {
            if let Some(hash) = word.strip_prefix("--hash=sha256:") {
                let package =
                    package.clone().with_context(|| format!("{}: a hash of nothing", file.display()))?;
                hashes.entry(package).or_default().insert(hash.to_owned());
            } else if let Some((name, version)) = word.split_once("==") {
                package = Some((name.to_owned(), version.to_owned()));
            }
        }
    }
    let component = |((name, version), hashes): ((String, String), BTreeSet<String>)| {
        let hashes: Vec<Value> =
            hashes.into_iter().map(|hash| json!({ "alg": "SHA-256", "content": hash })).collect();
        json!({
            "type": "library", "name": name, "version": version,
            "purl": format!("pkg:pypi/{name}@{version}"), "hashes": hashes,
            "properties": [{ "name": "photofinish:fetched", "value": "by `setup --references`" }],
        })
    };
    Ok(hashes.into_iter().map(component).collect())
}

/// The crates that these programs are built of, each once, with the checksum of its package.
fn crates(workspace: &Workspace, binaries: &[String]) -> Result<Vec<Value>> {
    let (references, ours): (Vec<String>, Vec<String>) =
        binaries.iter().filter(|name| *name != HUB).cloned().partition(|name| is_reference(name));
    let ours = ours.into_iter().chain(["driver".to_owned()]).collect();
    let mut found = BTreeMap::new();
    for (manifest, names) in [("Cargo.toml", ours), (REFERENCES, references)] {
        if names.is_empty() {
            continue;
        }
        let used: BTreeSet<String> = cargo::tree(&workspace.root, manifest, &names, "normal")?
            .lines()
            .filter_map(|line| {
                let mut words = line.split([' ', '|']);
                Some(format!("{} {}", words.next()?, words.next()?.strip_prefix('v')?))
            })
            .collect();
        let lock = workspace.root.join(manifest).with_file_name("Cargo.lock");
        let lock: Lock =
            toml::from_str(&fs::read_to_string(&lock)?).with_context(|| format!("{}", lock.display()))?;
        for package in lock.package {
            let key = format!("{} {}", package.name, package.version);
            if let Some(checksum) = package.checksum.as_ref().filter(|_| used.contains(&key)) {
                let component = json!({
                    "type": "library", "name": package.name, "version": package.version,
                    "purl": format!("pkg:cargo/{}@{}", package.name, package.version),
                    "hashes": [{ "alg": "SHA-256", "content": checksum }],
                });
                found.insert(key, component);
            }
        }
    }
    Ok(found.into_values().collect())
}
