//! The rules of docs/explanation/architecture.md that a machine can check, and rules on pages and code.

mod arrows;
mod book;
mod files;
mod graph;
mod idioms;
mod links;
mod pages;
mod paths;

use std::fmt;
use std::path::Path;

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

/// Checks the checkout at `root`: prints the arrows and the findings, and ends in an error if a rule is broken.
pub(crate) fn run(root: &Path) -> Result<()> {
    let texts = tooling::texts(root)?;
    let graph = graph::Graph::read(root)?;
    for (name, ours) in graph.arrows() {
        println!("{name} → {}", if ours.is_empty() { "none of ours".into() } else { ours.join(", ") });
    }
    let mut findings = graph.check();
    findings.extend(texts.iter().flat_map(|(name, text)| files::check(name, text)));
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
