//! The rules of docs/explanation/architecture.md that a machine can check, and rules on pages and code.

mod pages;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};
use setup::tooling;

use crate::cargo::{metadata, tree};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    rule: &'static str,
    found: String,
    remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.rule, self.found, self.remedy)
    }
}

/// Checks the checkout at `root`: prints the arrows and the findings, and ends in an error if a rule is broken.
pub(crate) fn run(root: &Path) -> Result<()> {
    let texts = tooling::texts(root)?;
    let graph = Graph::read(root)?;
    for (name, ours) in graph.arrows() {
        println!("{name} → {}", if ours.is_empty() { "none of ours".into() } else { ours.join(", ") });
    }
    let mut findings = graph.check();
    findings.extend(texts.iter().flat_map(|(name, text)| sources::check(name, text)));
    findings.extend(pages::links(&texts, &tooling::files(root)?));
    findings.extend(pages::book(&texts));
    findings.extend(pages::idioms(&texts));
    findings.extend(pages::words(&texts));
    for finding in &findings {
        println!("tidy: {finding}");
    }
    match findings.len() {
        0 => println!("tidy: every rule holds"),
        count => bail!("{count} breaches of the rules of the architecture"),
    }
    Ok(())
}

// The allowed dependencies between crates, as data.

/// Our crates, and which of ours each may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("bundle", &["protocol"]),
    ("comparison", &["bundle", "configs", "protocol", "statistics"]),
    ("configs", &["bundle", "protocol"]),
    // Only tests of engines use it; it is part of no program.
    ("conformance", &["bundle", "prepare", "protocol", "worker"]),
    ("driver", &["bundle", "comparison", "configs", "gpu", "protocol", "render", "setup", "statistics"]),
    ("engine-candle", &["bundle", "onnx", "worker"]),
    ("engine-hybrid", &["bundle", "engine-candle", "engine-ort", "engine-tch", "worker"]),
    ("engine-mock", &["bundle", "gpu", "worker"]),
    ("engine-ort", &["bundle", "onnx", "worker"]),
    ("engine-tch", &["bundle", "onnx", "worker"]),
    ("evidence", &["comparison", "engine-mock", "statistics"]),
    ("features", &[]),
    ("gpu", &[]),
    ("onnx", &["bundle"]),
    ("prepare", &["bundle", "onnx", "protocol"]),
    ("protocol", &[]),
    ("render", &["comparison", "configs", "protocol", "statistics"]),
    ("setup", &["xtask"]),
    ("statistics", &[]),
    ("tasks", &["configs", "gpu", "protocol", "setup", "xtask"]),
    ("worker", &["bundle", "gpu", "protocol"]),
    ("xtask", &[]),
];

/// Crates of ours without code: they only name features, and any crate may depend on them.
const FEATURES: [&str; 1] = ["features"];

/// Crates of the frameworks, and our crates of this workspace that may depend on each, also indirectly.
/// `prepare` reads GGUF with candle-core.
const FRAMEWORKS: &[(&str, &[&str])] = &[
    ("candle-core", &["conformance", "engine-candle", "engine-hybrid", "prepare"]),
    ("candle-nn", &["engine-candle", "engine-hybrid"]),
    ("tch", &["engine-hybrid", "engine-tch"]),
    ("torch-sys", &["engine-hybrid", "engine-tch"]),
    ("ort", &["engine-hybrid", "engine-ort"]),
    ("ort-sys", &["engine-hybrid", "engine-ort"]),
];

/// The crate that links a native library when it is built.
const NATIVE: &str = "torch-sys";

// Rules on dependencies between crates.

struct Graph {
    members: BTreeMap<String, Member>,
}

struct Member {
    /// As the manifest names them, without those for tests: name and required version.
    dependencies: Vec<(String, String)>,
    /// Every crate in its build, without those for tests.
    tree: BTreeSet<String>,
    is_default: bool,
}

impl Graph {
    fn read(root: &Path) -> Result<Self> {
        let metadata = metadata(root, "Cargo.toml")?;
        let mut members = BTreeMap::new();
        for package in metadata.packages {
            let dependencies = package.dependencies.into_iter().filter(|found| !found.is_for_tests());
            let lines = tree(root, "Cargo.toml", std::slice::from_ref(&package.name), "normal,build")?;
            let member = Member {
                dependencies: dependencies.map(|found| (found.name, found.req)).collect(),
                tree: lines.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect(),
                is_default: metadata.workspace_default_members.contains(&package.id),
            };
            members.insert(package.name, member);
        }
        Ok(Self { members })
    }

    fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (name, member) in &self.members {
            let mut find = |rule, found, remedy| findings.push(Finding { rule, found, remedy });
            let allowed = ALLOWED.iter().find(|(ours, _)| ours == name).map(|(_, allowed)| *allowed);
            if allowed.is_none() {
                find(
                    "dependencies among our crates",
                    format!("{name} is not in the table"),
                    "add it to ALLOWED in crates/tasks/src/tidy.rs",
                );
            }
            for (dependency, version) in &member.dependencies {
                let is_among = |names: &[&str]| names.contains(&dependency.as_str());
                let is_allowed = is_among(allowed.unwrap_or_default()) || is_among(&FEATURES);
                if allowed.is_some() && self.members.contains_key(dependency) && !is_allowed {
                    find(
                        "dependencies among our crates",
                        format!("{name} depends on {dependency}"),
                        "move what it takes from there into a crate that both may use",
                    );
                }
                // What every worker, in any language, must be able to read without our code.
                if name == "protocol" && !is_among(&["base64", "features", "serde", "serde_json"]) {
                    find(
                        "protocol depends on serde, serde_json and base64 alone",
                        format!("{name} depends on {dependency}"),
                        "keep what handles messages in worker and driver",
                    );
                }
                if FRAMEWORKS.iter().any(|(framework, _)| framework == dependency)
                    && !version.starts_with('=')
                {
                    find(
                        "frameworks are pinned exactly",
                        format!("{name} takes {dependency} {version}"),
                        "write `=` before the version in the root Cargo.toml and use workspace = true",
                    );
                }
            }
            for (framework, at_home) in FRAMEWORKS {
                if member.tree.contains(*framework) && !at_home.contains(&name.as_str()) {
                    find(
                        "a framework stays in its engine",
                        format!("{framework} is in the dependency tree of {name}"),
                        "only those named in FRAMEWORKS may have it (`cargo tree -i` shows the way in)",
                    );
                }
            }
            if member.is_default && member.tree.contains(NATIVE) {
                find(
                    "`cargo build` at the root needs no native library",
                    format!("{name} links one through {NATIVE} and is a default member"),
                    "take it out of default-members in the root Cargo.toml",
                );
            }
        }
        findings
    }

    /// Our crates with the crates of ours that each depends on.
    fn arrows(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        self.members.iter().map(|(name, member)| {
            let names = member.dependencies.iter().map(|(name, _)| name.as_str());
            let ours: BTreeSet<&str> = names.filter(|found| self.members.contains_key(*found)).collect();
            (name.as_str(), ours.into_iter().collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every crate of ours with no dependencies but those given as `(crate, dependency, version)`.
    fn graph(dependencies: &[(&str, &str, &str)]) -> Graph {
        let member = |name: &str| {
            let of_this = dependencies.iter().filter(|(from, _, _)| *from == name);
            let of_this = of_this.map(|(_, name, version)| ((*name).to_owned(), (*version).to_owned()));
            let dependencies: Vec<_> = of_this.collect();
            let tree = dependencies.iter().map(|(name, _)| name.clone()).collect();
            Member { dependencies, tree, is_default: !["engine-hybrid", "engine-tch"].contains(&name) }
        };
        let names =
            ALLOWED.iter().map(|(name, _)| *name).chain(dependencies.iter().map(|(from, _, _)| *from));
        let ours = names.filter(|name| !name.starts_with("other"));
        Graph { members: ours.map(|name| (name.to_owned(), member(name))).collect() }
    }

    fn found(graph: &Graph) -> Vec<String> {
        graph.check().into_iter().map(|finding| finding.found).collect()
    }

    #[test]
    fn what_the_tables_allow_is_clean() {
        let allowed = ALLOWED.iter().flat_map(|(name, ours)| ours.iter().map(move |our| (*name, *our, "*")));
        let frameworks = FRAMEWORKS
            .iter()
            .flat_map(|(framework, at_home)| at_home.iter().map(move |name| (*name, *framework, "=1.0.0")));
        let third_party = [("protocol", "serde", "^1"), ("driver", "serde_json", "^1")];
        let all: Vec<_> = allowed.chain(frameworks).chain(third_party).collect();
        assert_eq!(graph(&all).check(), []);
    }

    #[test]
    fn what_the_tables_do_not_allow_is_found() {
        for ((from, to, version), expected) in [
            (("driver", "worker", "*"), "driver depends on worker"),
            (("bundle", "worker", "*"), "bundle depends on worker"),
            (("xtask", "driver", "*"), "xtask depends on driver"),
            (("features", "bundle", "*"), "features depends on bundle"),
            (("engine-new", "serde", "^1"), "engine-new is not in the table"),
            (("protocol", "time", "^1"), "protocol depends on time"),
            (("engine-tch", "tch", "^0.24.0"), "engine-tch takes tch ^0.24.0"),
            (("engine-ort", "candle-core", "=1.0.0"), "candle-core is in the dependency tree of engine-ort"),
        ] {
            assert_eq!(found(&graph(&[(from, to, version)])), [expected]);
        }
        assert_eq!(graph(&[("bundle", "features", "*"), ("gpu", "features", "*")]).check(), []);
        let finding = graph(&[("driver", "worker", "*")]).check()[0].to_string();
        let begins = "dependencies among our crates: driver depends on worker; move ";
        assert!(finding.starts_with(begins), "{finding}");
    }

    #[test]
    fn a_framework_away_from_home_is_found_however_deep() {
        let mut deep = graph(&[("driver", "helper", "^1")]);
        deep.members.get_mut("driver").unwrap().tree.insert("ort".into());
        assert_eq!(found(&deep), ["ort is in the dependency tree of driver"]);
    }

    #[test]
    fn a_default_member_that_links_a_native_library_is_found() {
        let mut graph = graph(&[("engine-tch", "torch-sys", "=1.0.0")]);
        assert_eq!(graph.check(), []);
        graph.members.get_mut("engine-tch").unwrap().is_default = true;
        assert!(graph.check()[0].found.contains("is a default member"));
    }
}
