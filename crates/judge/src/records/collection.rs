//! Results of many runs, each in its original form.

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
