//! The plan file that divides a study. `plan` writes it; `run` and `merge` read it.

use std::path::Path;

use bundle::hexadecimal;
use measure::results::write_whole;
use measure::saved::pretty;
use plan::{Failure, Result, Settings, StudyRequest, StudyView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Version of the plan file.
pub(super) const SCHEMA: u32 = 2;

/// The content of a plan file; every shard runs from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlanFile {
    pub(super) schema: u32,
    pub(super) study: String,
    /// The request with its seed, so that every shard draws the same numbers as the whole study.
    pub(super) asked: StudyRequest,
    pub(super) view: StudyView,
    pub(super) planned: Vec<Settings>,
    pub(super) shards: Vec<Job>,
}

/// The work of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(super) index: usize,
    /// Label of the job's machine.
    pub(super) machine: Option<String>,
    /// Places in `planned`, counted from 0.
    pub(super) cells: Vec<usize>,
}

/// The plan that a results directory is a part of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shard {
    pub(super) plan: PlanFile,
    pub(super) sha256: String,
    /// Number of the shard, from 0; `None` for the whole plan.
    pub(super) index: Option<usize>,
}

impl Shard {
    /// Label of the intended machine.
    pub(super) fn machine(&self) -> Option<&str> {
        self.plan.shards.get(self.index?)?.machine.as_deref()
    }

    /// Refuses a file that this program would not have written.
    pub(super) fn check(&self) -> std::result::Result<(), &'static str> {
        self.plan.check()?;
        if self.index.is_some_and(|index| index >= self.plan.shards.len()) {
            return Err("it is of a shard that its plan does not have");
        }
        if self.sha256 != Shard::new(self.plan.clone(), self.index).sha256 {
            return Err("its plan does not match its digest");
        }
        Ok(())
    }

    /// One shard of `plan`, or the whole plan if `index` is `None`.
    pub(super) fn new(plan: PlanFile, index: Option<usize>) -> Shard {
        let sha256 = hexadecimal(&Sha256::digest(pretty(&plan)));
        Shard { plan, sha256, index }
    }
}

/// Reads a plan that `photofinish shard plan` wrote.
pub(super) fn read(path: &Path) -> Result<PlanFile> {
    let unreadable = |reason: &dyn std::fmt::Display| {
        Failure::usage(format!(
            "{} is not a plan: {reason}; make one with `photofinish shard plan`",
            path.display()
        ))
    };
    let text = untrusted::file::read_text(path, untrusted::file::INPUT).map_err(|e| unreadable(&e))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| unreadable(&e))?;
    if value.get("schema").and_then(serde_json::Value::as_u64) != Some(SCHEMA.into()) {
        return Err(unreadable(&"it is of another version"));
    }
    let plan: PlanFile = serde_json::from_value(value).map_err(|e| unreadable(&e))?;
    plan.check().map_err(|reason| unreadable(&reason))?;
    Ok(plan)
}

impl PlanFile {
    fn check(&self) -> std::result::Result<(), &'static str> {
        let cells = self.planned.len();
        if self.shards.is_empty() {
            return Err("it has no shards");
        }
        if self.shards.iter().flat_map(|job| &job.cells).any(|&cell| cell >= cells) {
            return Err("a shard names a cell that it does not have");
        }
        Ok(())
    }
}

/// Writes a file whole or not at all.
pub(super) fn save(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot =
        |reason: &dyn std::fmt::Display| Failure::usage(format!("cannot write {}: {reason}", path.display()));
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| cannot(&"it names no file"))?;
    write_whole(directory, name, text.as_bytes()).map_err(|e| cannot(&e))
}
