//! The rules of docs/explanation/architecture.md that a machine can check, and rules on pages and code.

mod arrows;
mod book;
mod cycles;
mod files;
mod graph;
mod idioms;
mod links;
mod modules;
mod names;
mod pages;
mod paths;
mod sizes;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// One breach of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    rule: &'static str,
    /// The crate, or the page.
    place: String,
    found: String,
    remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.rule, self.found, self.remedy)
    }
}

/// Checks the checkout at `root`: prints the longest files and functions and the findings, and ends in an
/// error if a rule is broken.
pub fn run(root: &Path) -> Result<()> {
    let texts = tooling::texts(root)?;
    let sizes = sizes::Sizes::read(&texts)?;
    println!("{sizes}");
    let graph = graph::Graph::read(root)?;
    for (name, ours) in graph.arrows() {
        println!("{name} → {}", if ours.is_empty() { "none of ours".into() } else { ours.join(", ") });
    }
    let mut findings = graph.check();
    for (name, roots) in graph.roots() {
        findings.extend(check_crate(root, name, roots)?);
    }
    findings.extend(texts.iter().flat_map(|(name, text)| files::check(name, text)));
    findings.extend(sizes.check());
    let tree = links::Tree::new(&tooling::files(root)?);
    findings.extend(links::check(&texts, &tree));
    findings.extend(book::check(&texts));
    findings.extend(idioms::check(&texts));
    findings.extend(paths::check(&texts, &tree));
    for finding in &findings {
        println!("tidy: {finding}");
    }
    match findings.len() {
        0 => println!("tidy: every rule holds"),
        count => bail!("{count} breaches of the rules of the architecture"),
    }
    Ok(())
}

/// Says whether the modules of one crate form a cycle, which breaks a rule.
fn check_crate(root: &Path, name: &str, roots: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut cycles = Vec::new();
    for file in roots {
        cycles.extend(cycles::cycles(&modules::modules(file)?));
    }
    if cycles.is_empty() {
        println!("{name}: no cycle of modules");
    }
    for cycle in &cycles {
        println!("{name}: cycle of modules {}: {}", cycle.modules.join(", "), cycle.uses(root));
    }
    Ok(cycles.iter().map(|cycle| cycle.finding(root, name)).collect())
}

/// A file's name from the checkout's root.
fn relative(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap_or(file).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
