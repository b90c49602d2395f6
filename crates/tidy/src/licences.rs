//! Rules on crates of others, by the lists of deny.toml: licences, crates that nothing may need, sources. `cargo deny`
//! reads the same file and asks for advisories, too, which takes a network.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use spdx::{Expression, ParseMode};
use tooling::process::{cargo, command, output_of};

use crate::Finding;

const FILE: &str = "deny.toml";

/// The part of deny.toml that is read here.
#[derive(Deserialize)]
struct Deny {
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
    #[serde(default)]
    clarify: Vec<Clarified>,
}

/// What the licence of a crate is that names none in its manifest.
#[derive(Deserialize)]
struct Clarified {
    #[serde(rename = "crate")]
    name: String,
    expression: String,
}

/// Licences that one crate alone may have.
#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    /// `None` for crates of the workspace.
    source: Option<String>,
}

/// Holds every crate that a build or a test takes here against deny.toml.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    let deny: Deny = toml::from_str(&text).with_context(|| format!("cannot read {FILE}"))?;
    let rustc = output_of(command("rustc").arg("-vV"))?;
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    // What other systems alone need is not downloaded here.
    let mut metadata = cargo(root);
    metadata.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", host]);
    let metadata: Metadata =
        serde_json::from_str(&output_of(&mut metadata)?).context("cannot read `cargo metadata`")?;
    Ok(metadata.packages.iter().flat_map(|package| deny.findings(package)).collect())
}

impl Deny {
    fn findings(&self, package: &Package) -> Vec<Finding> {
        let Some(source) = &package.source else { return Vec::new() };
        let name = &package.name;
        let finding = |rule, found: String, remedy| Finding { rule, place: name.clone(), found, remedy };
        let mut findings = Vec::new();
        if let Some(found) = self.refused(name, package.license.as_deref()) {
            let remedy = "do without it, or add the licence to deny.toml if it suits MIT or Apache-2.0";
            findings.push(finding("licences are those that deny.toml lists", found, remedy));
        }
        if self.bans.deny.iter().any(|banned| banned.name == *name) {
            let remedy = "switch off the feature that needs it (`cargo tree -i` shows the way in)";
            findings.push(finding("nothing needs what deny.toml bans", format!("{name} is needed"), remedy));
        }
        if !source.starts_with("registry+") {
            let remedy = "depend on a published version";
            findings.push(finding(
                "crates come from the registry",
                format!("{name} comes from {source}"),
                remedy,
            ));
        }
        findings
    }

    /// What is wrong with a crate's licence.
    fn refused(&self, name: &str, license: Option<&str>) -> Option<String> {
        let clarified = self.licenses.clarify.iter().find(|clarified| clarified.name == name);
        let clarified = clarified.map(|clarified| clarified.expression.as_str());
        let Some(license) = clarified.or(license) else { return Some(format!("{name} names no licence")) };
        let Ok(expression) = Expression::parse_mode(license, ParseMode::LAX) else {
            return Some(format!("{name} has the licence {license:?}, which cannot be read"));
        };
        let own = self.licenses.exceptions.iter().filter(|exception| exception.name == name);
        let allowed: Vec<&String> =
            self.licenses.allow.iter().chain(own.flat_map(|exception| &exception.allow)).collect();
        let is_allowed = expression.evaluate(|asked| allowed.iter().any(|one| **one == asked.to_string()));
        (!is_allowed).then(|| format!("{name} has the licence {license}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: &str = r#"
        [licenses]
        allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]
        exceptions = [{ crate = "font", allow = ["OFL-1.1"] }]
        clarify = [{ crate = "quiet", expression = "MIT" }]
        [bans]
        deny = [{ crate = "openssl-sys" }]
    "#;

    fn found(name: &str, license: Option<&str>, source: &str) -> Vec<String> {
        let deny: Deny = toml::from_str(LISTS).unwrap();
        let (license, source) = (license.map(str::to_owned), Some(source.to_owned()));
        let package = Package { name: name.to_owned(), license, source };
        deny.findings(&package).into_iter().map(|finding| finding.found).collect()
    }

    #[test]
    fn a_licence_is_one_that_deny_toml_lists() {
        let found = |name, license| found(name, Some(license), "registry+x");
        for fine in ["MIT", "MIT OR GPL-3.0-only", "MIT/Apache-2.0", "(MIT OR LGPL-2.1-only) AND Apache-2.0"]
        {
            assert_eq!(found("a", fine), [""; 0], "{fine}");
        }
        assert_eq!(found("a", "Apache-2.0 WITH LLVM-exception"), [""; 0]);
        assert_eq!(found("a", "MIT AND GPL-3.0-only"), ["a has the licence MIT AND GPL-3.0-only"]);
        assert_eq!(found("a", "whatever"), ["a has the licence \"whatever\", which cannot be read"]);
        assert_eq!(found("font", "MIT AND OFL-1.1"), [""; 0]);
        assert_eq!(found("a", "OFL-1.1"), ["a has the licence OFL-1.1"]);
    }

    #[test]
    fn a_crate_names_a_licence_is_not_banned_and_is_published() {
        assert_eq!(found("a", None, "registry+x"), ["a names no licence"]);
        assert_eq!(found("quiet", None, "registry+x"), [""; 0]);
        assert_eq!(found("openssl-sys", Some("MIT"), "registry+x"), ["openssl-sys is needed"]);
        assert_eq!(found("a", Some("MIT"), "git+x"), ["a comes from git+x"]);
    }
}
