//! The outcome as one value. The table, Markdown, CSV, JSON, annotations and JUnit are made from it.

use history::{Machine, Record};
use serde::Serialize;

use super::finding::{Finding, Verdict};
use super::pairing::Alone;

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// Two runs or two builds, compared with each other.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
    pub schema: u32,
    pub kind: Kind,
    pub baseline: Side,
    pub current: Side,
    /// Accepted differences of machine and settings.
    pub differences: Vec<String>,
    pub findings: Vec<Finding>,
    /// Cases without a partner in the other run.
    pub alone: Vec<Alone>,
    /// Frameworks that failed or computed something else.
    pub failures: Vec<Broken>,
    pub warnings: Vec<String>,
    /// The reason why no verdict is possible at all.
    pub unmeasurable: Option<String>,
    pub exit_code: u8,
}

/// The kind of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Two runs, compared by a threshold.
    Check,
    /// Two builds in one comparison, compared by a threshold.
    Interleaved,
    /// Two versions of frameworks in one comparison, compared by a threshold.
    Versions,
    /// Two runs, compared without a threshold.
    Diff,
}

/// One of the two runs.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// Name of the source, as the user gave it.
    pub source: String,
    pub run: String,
    pub time: String,
    pub git_commit: Option<String>,
    pub git_modified: Option<bool>,
    pub libraries: Vec<String>,
    pub machine: Machine,
}

/// A framework that failed or computed something else, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Broken {
    pub framework: String,
    pub reason: String,
}

impl Side {
    /// Makes the description of a run from its records.
    pub fn new(source: &str, records: &[Record]) -> Side {
        let first = &records[0];
        let mut libraries: Vec<String> =
            records.iter().filter_map(|record| record.library.clone()).map(String::from).collect();
        libraries.dedup();
        Side {
            source: source.to_owned(),
            run: first.run.clone(),
            time: first.time.clone(),
            git_commit: first.git_commit.clone(),
            git_modified: first.git_modified,
            libraries,
            machine: first.machine.clone(),
        }
    }
}

impl Document {
    /// A document without findings.
    pub fn new(kind: Kind, baseline: Side, current: Side) -> Document {
        Document {
            schema: SCHEMA,
            kind,
            baseline,
            current,
            differences: Vec::new(),
            findings: Vec::new(),
            alone: Vec::new(),
            failures: Vec::new(),
            warnings: Vec::new(),
            unmeasurable: None,
            exit_code: 0,
        }
    }

    /// Adds the outcome and its exit code. Broken comes before slow, and certainly slow comes before not measurable.
    pub fn concluded(mut self) -> Document {
        let any = |verdict: Verdict| self.findings.iter().any(|finding| finding.verdict == verdict);
        self.exit_code = match self.kind {
            Kind::Diff => 0,
            _ if !self.failures.is_empty() => 1,
            _ if any(Verdict::Regression) => 4,
            _ if self.unmeasurable.is_some() || any(Verdict::NotMeasurable) => 3,
            _ => 0,
        };
        self
    }

    /// Findings with this verdict.
    pub fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.verdict == verdict)
    }
}
