//! `cargo xtask tidy`: the rules of docs/architecture.md that a machine can check.

mod files;
mod graph;

use std::fmt;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::workspace::Workspace;

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

pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    /// Prints each finding; an error if there is one.
    pub(crate) fn into_result(self) -> Result<()> {
        for finding in &self.0 {
            println!("tidy: {finding}");
        }
        match self.0.len() {
            0 => Ok(()),
            count => bail!("{count} breaches of the rules of the architecture"),
        }
    }
}

pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    check(workspace)?.into_result()?;
    println!("tidy: every rule holds");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn check(workspace: &Workspace) -> Result<Findings> {
    let mut findings = graph::Graph::read(workspace)?.check();
    findings.extend(files::check(workspace)?);
    Ok(Findings(findings))
}
