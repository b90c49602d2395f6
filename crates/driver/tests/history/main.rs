//! The file of the history: its records, several processes that append to it, and which records are selected.

mod concurrency;
mod file;
mod filter;

use std::path::{Path, PathBuf};

use comparison::history;
use driver::history_file;
use serde_json::Value;

/// The first record of the example in `docs`, as if it were of a sweep.
pub(crate) fn value(run: &str) -> Value {
    let mut value: Value =
        serde_json::from_str(include_str!("../../../../docs/examples/history.jsonl").lines().next().unwrap())
            .unwrap();
    value["run"] = run.into();
    value["study"] = "sweep forward".into();
    value
}

pub(crate) fn record(run: &str) -> history::Record {
    serde_json::from_value(value(run)).unwrap()
}

/// A history that is not there yet, and its directory.
pub(crate) fn nowhere() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("history.jsonl");
    (directory, history)
}

pub(crate) fn append(history: &Path, run: &str) {
    history_file::append(history, &[record(run)]).unwrap();
}
