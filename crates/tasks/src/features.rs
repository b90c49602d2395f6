//! One set of features for every crate, in every build (invariant 10 of docs/explanation/architecture.md): a
//! worker that is built together with others is the same program as one that is built alone, and nothing is
//! compiled twice.

use std::collections::{BTreeMap, BTreeSet};

use crate::cargo::{metadata, tree};
use crate::workspace::Workspace;

/// Sets of features of each package: more than one where it runs on the machine that builds, too.
type Features = BTreeMap<String, BTreeSet<String>>;

/// cargo's resolution for these packages in one build. It may download packages that a usual build does not
/// need.
fn resolved(packages: &[String], edges: &str) -> Features {
    let mut features = Features::new();
    for line in tree(&Workspace::locate().unwrap().root, "Cargo.toml", packages, edges).unwrap().lines() {
        if let Some((package, of_package)) = line.trim_end_matches(" (*)").split_once('|') {
            features.entry(package.to_owned()).or_default().insert(of_package.to_owned());
        }
    }
    features
}

fn members() -> Vec<String> {
    let metadata = metadata(&Workspace::locate().unwrap().root, "Cargo.toml").unwrap();
    metadata.packages.into_iter().map(|package| package.name).collect()
}

#[test]
fn a_program_built_alone_has_the_features_of_one_built_with_all_others() {
    let members = members();
    assert!(members.len() > 20, "{members:?}");
    let together = resolved(&members, "normal,build,dev");
    let differences_of = |members: &[String]| {
        let mut differences = Vec::new();
        for (member, edges) in members
            .iter()
            .flat_map(|member| ["normal,build", "normal,build,dev"].map(|edges| (member, edges)))
        {
            for (package, sets) in resolved(std::slice::from_ref(member), edges) {
                // Its feature `hub` adds a program, which only a build of it by name has.
                if package.starts_with("prepare ") {
                    continue;
                }
                let known = &together[&package];
                differences.extend(sets.difference(known).map(|set| {
                    format!(
                        "{member} alone ({edges}): {package} has the features [{set}], and together {known:?}"
                    )
                }));
            }
        }
        differences
    };
    // cargo needs half a second for each answer.
    let (first, second) = members.split_at(members.len() / 2);
    let differences = std::thread::scope(|scope| {
        let first = scope.spawn(|| differences_of(first));
        [differences_of(second), first.join().unwrap()].concat()
    });
    assert!(differences.is_empty(), "declare in crates/features what all need:\n{}", differences.join("\n"));
}

/// Packages in the trees of workers that do not run while a worker is timed, so that they may be optimised
/// less, and why.
const UNTIMED: [(&str, &str); 10] = [
    ("console", "`features` names it"),
    ("nvml-wrapper", "reads a GPU between requests, by calls into NVML"),
    ("regex-automata", "of tokenizers, which splits at spaces without it"),
    ("regex-syntax", "of regex-automata"),
    ("syn", "reads sources while others compile"),
    ("toml", "burn's configuration"),
    ("torch-sys", "hands calls on to libtorch, which comes compiled"),
    ("winnow", "of toml"),
    ("zip", "`features` names it"),
    ("zlib-rs", "of zip"),
];

#[test]
fn what_a_worker_runs_has_full_optimisation() {
    let workspace = Workspace::locate().unwrap();
    let manifest = std::fs::read_to_string(workspace.root.join("Cargo.toml")).unwrap();
    let profiles =
        manifest.lines().filter_map(|line| line.strip_prefix("[profile.release.package.")?.strip_suffix(']'));
    let lower: BTreeSet<&str> = profiles.collect();
    assert!(lower.contains("render"), "{lower:?}");
    for worker in
        members().iter().filter(|name| name.starts_with("engine-") || name.starts_with("reference-"))
    {
        for package in resolved(std::slice::from_ref(worker), "normal").keys() {
            let name = package.split(' ').next().unwrap_or_default();
            let excused = UNTIMED.iter().any(|(untimed, _)| *untimed == name);
            assert!(
                !lower.contains(name) || excused,
                "{worker} runs {name}: give it full optimisation in Cargo.toml"
            );
        }
    }
}
