//! The packages to test, and when.

use anyhow::Result;
use tooling::BadInput;

/// When a package is tested; each scope has those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// Also by `--quick`: no native library, no model, none of the frameworks' own crates, which take minutes to compile.
    Quick,
    Usual,
    /// By `--all` alone: references, which take longer to compile than everything else.
    All,
}

impl Scope {
    /// Why this scope leaves packages out.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Quick => "they take a framework or the model",
            _ => "`cargo xtask test --all` has them",
        }
    }
}

pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) scope: Scope,
    /// Packages with programs that its tests start.
    starts: &'static [&'static str],
}

impl Package {
    pub(super) fn links_libtorch(&self) -> bool {
        ["engine-tch", "engine-hybrid"].contains(&self.name)
    }
}

const fn plain(name: &'static str) -> Package {
    Package { name, scope: Scope::Quick, starts: &[] }
}

const fn usual(name: &'static str, starts: &'static [&'static str]) -> Package {
    Package { name, scope: Scope::Usual, starts }
}

const fn reference(name: &'static str) -> Package {
    Package { name, scope: Scope::All, starts: &[] }
}

const COMPARING: &[&str] = &["driver", "prepare", "engine-mock", "engine-candle", "engine-ort", "engine-tch"];

/// In the order of their tests.
pub(super) const PACKAGES: &[Package] = &[
    plain("xtask"),
    plain("tooling"),
    plain("bundle"),
    plain("configs"),
    plain("setup"),
    plain("engine"),
    plain("untrusted-input"),
    plain("gpu"),
    plain("nvml-fake"),
    plain("protocol"),
    plain("history"),
    plain("charts"),
    plain("statistics"),
    plain("tasks"),
    plain("worker"),
    plain("engine-mock"),
    plain("calibrate"),
    plain("plan"),
    plain("facts"),
    plain("judge"),
    plain("claims"),
    plain("measure"),
    plain("render"),
    // Its page's worker needs numpy, which the readers' environment has.
    usual("worker-check", COMPARING),
    usual("driver", COMPARING),
    usual("prepare", &[]),
    usual("hub", &["prepare"]),
    usual("fuzz", COMPARING),
    usual("conformance", &[]),
    // Its tests prepare models, which compiles candle.
    usual("onnx", &[]),
    usual("engine-candle", &[]),
    usual("engine-ort", &["prepare"]),
    usual("engine-tch", &["prepare"]),
    usual("engine-hybrid", &["prepare"]),
    reference("reference-burn"),
    reference("reference-candle-transformers"),
    reference("reference-fastembed"),
    reference("reference-gguf"),
    reference("reference-rten"),
    reference("reference-tract"),
];

/// Crates without tests: declarations alone.
#[cfg(test)]
const UNTESTED: [&str; 2] = ["features", "features-large"];

/// The packages of these names.
pub(super) fn named(names: &[String]) -> Result<Vec<&'static Package>> {
    let known = |name: &String| {
        PACKAGES.iter().find(|package| package.name == *name).ok_or_else(|| {
            let all: Vec<&str> = PACKAGES.iter().map(|package| package.name).collect();
            BadInput(format!("unknown package {name:?}; there are {}", all.join(", "))).into()
        })
    };
    names.iter().map(known).collect()
}

/// Packages of the programs that these packages' tests start, each once.
pub(super) fn programs(packages: &[&Package]) -> Vec<&'static str> {
    let mut programs: Vec<&str> = packages.iter().flat_map(|package| package.starts).copied().collect();
    programs.sort_unstable();
    programs.dedup();
    programs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Engines;
    use crate::workspace::Workspace;

    #[test]
    fn every_member_of_the_workspace_is_tested() {
        let root = Workspace::locate().unwrap().root;
        for place in ["crates", "references"] {
            for entry in std::fs::read_dir(root.join(place)).unwrap() {
                let manifest = entry.unwrap().path().join("Cargo.toml");
                let Ok(text) = std::fs::read_to_string(manifest) else { continue };
                let name =
                    text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
                let is_tested = PACKAGES.iter().any(|package| package.name == name);
                assert!(is_tested != UNTESTED.contains(&name), "{name} must be in PACKAGES or in UNTESTED");
            }
        }
    }

    #[test]
    fn engines_that_need_a_native_library_are_no_part_of_a_quick_test() {
        let workspace = Workspace::locate().unwrap();
        for engine in
            Engines::read(&workspace).unwrap().all().iter().filter(|engine| !engine.native.is_empty())
        {
            let package = PACKAGES.iter().find(|package| package.name == engine.worker);
            assert!(package.is_none_or(|package| package.scope > Scope::Quick), "{}", engine.worker);
        }
    }
}
