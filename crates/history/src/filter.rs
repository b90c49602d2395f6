//! Selects the records of a history, and orders them.

use std::collections::HashSet;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::exclusions::Apart;
use crate::record::Record;

/// Which records are asked for. The default asks for all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Labels; if empty, every one. Case is ignored, here and below.
    pub frameworks: Vec<String>,
    pub models: Vec<String>,
    pub precisions: Vec<String>,
    /// The start of a machine's fingerprint.
    pub machine: String,
    /// The earliest start of a run.
    pub since: Option<OffsetDateTime>,
    /// The start of a commit.
    pub commit: Option<String>,
    /// A study, or the first words of its name: "sweep" is every sweep.
    pub study: Option<String>,
    /// The number of latest runs that match and are not excluded.
    pub last: Option<u32>,
    /// Records with one of these reasons are excluded, unless their study was asked for.
    pub keep_apart: Vec<Apart>,
}

/// The records that match, oldest first.
#[derive(Debug, Default)]
pub struct Found {
    pub records: Vec<Record>,
    /// Those that match and are excluded.
    pub apart: Vec<Record>,
}

impl Filter {
    pub fn select(&self, mut records: Vec<Record>) -> Found {
        records.retain(|record| self.matches(record));
        records.sort_by_key(moment);
        let is_apart = |record: &Record| {
            let mut reasons = record.apart();
            reasons.retain(|reason| self.study.is_none() || ![Apart::Ab, Apart::Sweep].contains(reason));
            reasons.iter().any(|reason| self.keep_apart.contains(reason))
        };
        let (apart, mut records): (Vec<Record>, Vec<Record>) = records.into_iter().partition(is_apart);
        if let Some(last) = self.last {
            let mut runs = HashSet::new();
            let newest_first = records.iter().rev().filter(|record| runs.insert(record.run.clone()));
            let kept: HashSet<String> =
                newest_first.take(last as usize).map(|record| record.run.clone()).collect();
            records.retain(|record| kept.contains(&record.run));
        }
        Found { records, apart }
    }

    fn matches(&self, record: &Record) -> bool {
        is_one_of(&self.frameworks, &record.framework)
            && is_one_of(&self.models, &record.case.model)
            && is_one_of(&self.precisions, &record.case.precision)
            && record.machine.fingerprint.starts_with(&self.machine.to_lowercase())
            && self.since.is_none_or(|since| moment(record).is_some_and(|moment| moment >= since))
            && self.commit.as_ref().is_none_or(|commit| is_commit(record, commit))
            && self.study.as_ref().is_none_or(|study| is_of_study(record, study))
    }
}

/// The start of the record's run; `None` if the text is not a valid time.
fn moment(record: &Record) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(&record.time, &Rfc3339).ok()
}

fn is_one_of(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|asked| asked.eq_ignore_ascii_case(name))
}

fn is_commit(record: &Record, start: &str) -> bool {
    record.git_commit.as_ref().is_some_and(|commit| commit.starts_with(&start.to_lowercase()))
}

/// Whether a study's name matches a filter. "sweep" matches every sweep.
fn is_of_study(record: &Record, study: &str) -> bool {
    record
        .study
        .as_deref()
        .and_then(|name| name.strip_prefix(study))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}
