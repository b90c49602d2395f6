//! Results of many runs, each in its original form, and runs that were accepted into the public collection.

use facts::evidence::Evidence;
use history::Record;
use serde_json::Value;

use crate::records;
use crate::report::{self, Report};

/// One results directory.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The directory, relative to the one that was named.
    pub name: String,
    /// The schema of its report; `None` if no report states one.
    pub schema: Option<u64>,
    /// The run, or the reason in one sentence why it cannot be shown.
    pub run: Result<Box<CollectedRun>, String>,
}

/// A run that can be shown.
#[derive(Debug, Clone)]
pub struct CollectedRun {
    pub report: Report,
    /// A record for each row.
    pub records: Vec<Record>,
}

impl Entry {
    /// The entry of a comparison's `report.json`, of any schema.
    pub fn read(name: String, value: Value) -> Entry {
        let schema = value.get("schema").and_then(Value::as_u64);
        let entry = match report::read(value) {
            Ok(report) => Entry::new(name, report),
            Err(reason) => Entry::unreadable(name, reason),
        };
        Entry { schema, ..entry }
    }

    /// The entry of a report that was just made.
    pub fn new(name: String, report: Report) -> Entry {
        let study = Some(report.plan.request.study.name.as_str()).filter(|name| !name.is_empty());
        let records = records::records(&report, study);
        if records.is_empty() {
            return Entry::unreadable(name, "it is the report of no framework at all".into());
        }
        Entry { name, schema: None, run: Ok(Box::new(CollectedRun { report, records })) }
    }

    pub fn unreadable(name: String, reason: String) -> Entry {
        Entry { name, schema: None, run: Err(reason) }
    }
}

/// A run of the public collection that passed its check.
#[derive(Debug, Clone)]
pub struct Published {
    /// Its directory in the collection, and its name in URLs.
    pub name: String,
    /// As judged by today's rules; for a retired result, as it was submitted.
    pub report: Report,
    pub evidence: Evidence,
    pub tier: Tier,
    /// Its samples judged by today's rules, or why they cannot be read today; `None` if the judgement is
    /// unchanged.
    pub retired: Option<Result<Box<Report>, String>>,
}

/// How far a published result has been reproduced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tier {
    /// Measured by this project.
    Ours,
    /// This entry of the collection, from another machine, agrees with it.
    Reproduced { by: String },
    /// Measured by others, and not reproduced yet.
    Community,
}

impl Tier {
    /// Its name in files and filters.
    pub fn name(&self) -> &'static str {
        match self {
            Tier::Ours => "ours",
            Tier::Reproduced { .. } => "reproduced",
            Tier::Community => "community",
        }
    }
}

/// A text as a component of a URL: lower-case letters, digits and dots, and a hyphen for all else. Never
/// empty, and never a component such as `..`.
pub fn slug(text: &str) -> String {
    let mut slug = String::new();
    for character in text.to_lowercase().chars().take(LONGEST_SLUG) {
        let is_kept = character.is_ascii_lowercase() || character.is_ascii_digit();
        let is_dot = character == '.' && slug.ends_with(|before: char| before.is_ascii_alphanumeric());
        if is_kept || is_dot {
            slug.push(character);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    let slug = slug.trim_end_matches(['-', '.']);
    if slug.is_empty() { "none".to_owned() } else { slug.to_owned() }
}

/// Longest component of a URL from one text.
const LONGEST_SLUG: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_is_one_part_of_an_address() {
        for (text, expected) in [
            ("AMD EPYC 9B14 (virtual machine)", "amd-epyc-9b14-virtual-machine"),
            ("candle@0.10.2", "candle-0.10.2"),
            ("hf:owner/name", "hf-owner-name"),
            ("../../etc", "etc"),
            ("..", "none"),
            ("a..b", "a.-b"),
            ("", "none"),
            ("<b>", "b"),
        ] {
            assert_eq!(slug(text), expected, "{text}");
        }
    }
}
