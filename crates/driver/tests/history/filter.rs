//! Which records are selected, and which are excluded.

use comparison::history::{Apart, Filter, Record, counted};
use comparison::judge::report::State;
use time::macros::datetime;

use crate::record;

fn timed(run: &str, time: &str, framework: &str) -> Record {
    let mut record = record(run);
    (record.time, record.framework) = (time.into(), framework.into());
    (record.machine.fingerprint, record.git_commit) = ("00aa11bb".into(), Some("abcdef012345".into()));
    record
}

fn all() -> Vec<Record> {
    vec![
        timed("2", "2026-11-02T00:00:00.5Z", "candle"),
        timed("1", "2026-11-01T00:00:00Z", "tch"),
        timed("2", "2026-11-02T00:00:00.5Z", "tch"),
        timed("3", "no time", "tch"),
    ]
}

fn left(filter: &Filter) -> Vec<String> {
    let found = filter.select(all()).records;
    found.into_iter().map(|record| format!("{} {}", record.run, record.framework)).collect()
}

#[test]
fn records_are_sorted_by_time_and_filtered() {
    let some = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let none = Filter::default;
    assert_eq!(left(&none()), ["3 tch", "1 tch", "2 candle", "2 tch"]);
    assert_eq!(left(&Filter { frameworks: some(&["CANDLE", "ort"]), ..none() }), ["2 candle"]);
    let since = Some(datetime!(2026-11-02 00:00 UTC));
    assert_eq!(left(&Filter { since, ..none() }), ["2 candle", "2 tch"]);
    assert_eq!(
        left(&Filter { last: Some(2), ..none() }),
        ["1 tch", "2 candle", "2 tch"],
        "runs, not records"
    );
    assert_eq!(left(&Filter { last: Some(1), frameworks: some(&["tch"]), ..none() }), ["2 tch"]);
    let model = record("x").case.model.to_uppercase();
    for filter in [
        Filter { machine: "00AA".into(), ..none() },
        Filter { commit: Some("ABCD".into()), ..none() },
        Filter { study: Some("sweep".into()), ..none() },
        Filter { study: Some("sweep forward".into()), ..none() },
        Filter { models: vec![model], ..none() },
    ] {
        assert_eq!(left(&filter).len(), 4, "{filter:?}");
    }
    for filter in [
        Filter { machine: "11".into(), ..none() },
        Filter { commit: Some("bcd".into()), ..none() },
        Filter { study: Some("swe".into()), ..none() },
        Filter { study: Some("ab".into()), ..none() },
        Filter { precisions: some(&["nf4"]), ..none() },
    ] {
        assert_eq!(left(&filter), [""; 0], "{filter:?}");
    }
}

/// A record of a comparison, changed.
fn with(change: impl Fn(&mut Record)) -> Record {
    let mut record = timed("r", "2026-11-02T00:00:00Z", "tch");
    record.study = None;
    change(&mut record);
    record
}

#[test]
fn what_is_no_part_of_a_development_is_told_with_its_reason() {
    assert_eq!(with(|_| ()).apart(), []);
    assert_eq!(with(|record| record.state = State::Struck).apart(), [Apart::Struck]);
    assert_eq!(with(|record| record.noise = Some("others".into())).apart(), [Apart::Noisy]);
    let accepted = with(|record| record.settings.noise_accepted = Some("others".into()));
    assert_eq!(accepted.apart(), [Apart::Noisy]);
    assert_eq!(with(|record| record.study = Some("ab half".into())).apart(), [Apart::Ab]);
    assert_eq!(with(|record| record.study = Some("sweep forward".into())).apart(), [Apart::Sweep]);
    assert_eq!(with(|record| record.settings.quick = true).apart(), [Apart::Quick]);
}

#[test]
fn records_with_these_reasons_are_kept_apart_unless_their_study_is_asked_for() {
    let mut records = all();
    records[1].study = None;
    (records[2].study, records[2].state) = (None, State::Struck);
    let keep_apart = Apart::ALL.to_vec();
    let found = Filter { keep_apart: keep_apart.clone(), ..Filter::default() }.select(records.clone());
    assert_eq!((found.records.len(), found.apart.len()), (1, 3));
    assert_eq!(counted(found.apart.iter()), "1 struck, 2 sweep");
    let asked = Filter { study: Some("sweep".into()), keep_apart, ..Filter::default() }.select(records);
    assert_eq!((asked.records.len(), asked.apart.len()), (2, 0));
}
