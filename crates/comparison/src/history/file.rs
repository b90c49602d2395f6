//! The lines of a history.

use protocol::untrusted;

use crate::history::{Record, SCHEMA};

#[derive(Debug, Default, PartialEq)]
pub struct History {
    /// In the order in which they were appended.
    pub records: Vec<Record>,
    /// Lines that could not be read as records.
    pub skipped: Vec<Skipped>,
}

/// A line that could not be read as a record: it was cut off while it was written, or is of a version too far
/// from this one.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Skipped {
    /// Number of the line, from 1.
    pub line: usize,
    pub reason: String,
}

impl History {
    pub fn parse(bytes: &[u8]) -> History {
        let mut history = History::default();
        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(record) => history.records.push(record),
                Err(error) => {
                    let reason = untrusted::shortened(&reason(line, &error), untrusted::SENTENCE);
                    history.skipped.push(Skipped { line: index + 1, reason });
                }
            }
        }
        history
    }
}

fn reason(line: &[u8], error: &serde_json::Error) -> String {
    #[derive(serde::Deserialize)]
    struct Version {
        schema: u32,
    }
    if error.is_eof() {
        return "cut off".to_owned();
    }
    match serde_json::from_slice(line) {
        Ok(Version { schema }) if schema > SCHEMA => {
            format!("of schema {schema}, newer than {SCHEMA}: {error}")
        }
        Ok(Version { schema }) if schema < SCHEMA => {
            format!("of schema {schema}, which an older version wrote and this one does not read")
        }
        _ => error.to_string(),
    }
}
