//! The rules of docs/architecture.md that a machine can check.

mod files;
mod graph;

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

/// One breach of one rule.
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

/// Checks the checkout at `root`: prints what was found, and ends in an error if a rule is broken.
pub fn run(root: &Path) -> Result<()> {
    let mut findings = graph::Graph::read(root)?.check();
    findings.extend(files::check(root)?);
    for finding in &findings {
        println!("tidy: {finding}");
    }
    match findings.len() {
        0 => println!("tidy: every rule holds"),
        count => bail!("{count} breaches of the rules of the architecture"),
    }
    Ok(())
}
