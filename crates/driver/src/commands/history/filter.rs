//! Selects the records of a history, and orders them.

use std::collections::HashSet;

use history::Record;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::history::FilterArgs;

/// The start of the record's run; `None` if the text is not a valid time.
pub(super) fn moment(record: &Record) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(&record.time, &Rfc3339).ok()
}

/// The records that match, oldest first. `this` is the fingerprint of this machine.
pub(super) fn filter(mut records: Vec<Record>, asked: &FilterArgs, this: &str) -> Vec<Record> {
    let machine = match asked.machine.as_str() {
        "all" => String::new(),
        "this" => this.to_owned(),
        fingerprint => fingerprint.to_lowercase(),
    };
    records.retain(|record| {
        is_one_of(&asked.frameworks, &record.framework)
            && is_one_of(&asked.model, &record.case.model)
            && is_one_of(&asked.precision, &record.case.precision)
            && record.machine.fingerprint.starts_with(&machine)
            && asked.since.is_none_or(|since| moment(record).is_some_and(|moment| moment >= since))
            && asked.commit.as_ref().is_none_or(|commit| is_commit(record, commit))
            && asked.study.as_ref().is_none_or(|study| is_of_study(record, study))
    });
    records.sort_by_key(moment);
    if let Some(last) = asked.last {
        let mut runs = HashSet::new();
        let newest_first = records.iter().rev().filter(|record| runs.insert(record.run.clone()));
        let kept: HashSet<String> =
            newest_first.take(last as usize).map(|record| record.run.clone()).collect();
        records.retain(|record| kept.contains(&record.run));
    }
    records
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        filters: FilterArgs,
    }

    fn record(run: &str, time: &str, framework: &str) -> Record {
        let value = serde_json::json!({
            "schema": 1, "run": run, "time": time, "framework": framework, "state": "measured",
            "git_commit": "abcdef012345", "study": "sweep forward", "machine": {"fingerprint": "00aa11bb"},
            "case": {"model": "m", "precision": "f32", "device": "cpu", "prompt_tokens": [4, 9], "new_tokens": 8,
                     "threads": 2, "batch": 1, "jit": true}
        });
        serde_json::from_value(value).unwrap()
    }

    fn left(typed: &str) -> Vec<String> {
        let words = ["x"].into_iter().chain(typed.split_whitespace());
        let records = vec![
            record("2", "2026-11-02T00:00:00.5Z", "candle"),
            record("1", "2026-11-01T00:00:00Z", "tch"),
            record("2", "2026-11-02T00:00:00.5Z", "tch"),
            record("3", "no time", "tch"),
        ];
        let asked = Typed::parse_from(words).filters;
        let left = filter(records, &asked, "00aa11bb");
        left.into_iter().map(|record| format!("{} {}", record.run, record.framework)).collect()
    }

    #[test]
    fn records_are_sorted_by_time_and_filtered() {
        assert_eq!(left(""), ["3 tch", "1 tch", "2 candle", "2 tch"]);
        assert_eq!(left("--framework CANDLE,ort"), ["2 candle"]);
        assert_eq!(left("--since 2026-11-02"), ["2 candle", "2 tch"]);
        assert_eq!(left("--last 2"), ["1 tch", "2 candle", "2 tch"], "runs, not records");
        assert_eq!(left("--last 1 --framework tch"), ["2 tch"]);
        for all in ["--machine this", "--machine 00AA", "--commit ABCD", "--study sweep", "--model M"] {
            assert_eq!(left(all).len(), 4, "{all}");
        }
        for none in ["--machine 11", "--commit bcd", "--study swe", "--study ab", "--precision f16"] {
            assert_eq!(left(none), [""; 0], "{none}");
        }
    }
}
