//! Records are read as they were written, whatever else the file holds.

use comparison::history;
use comparison::history::{Record, SCHEMA};
use driver::history_file;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{append, nowhere, record, value};

fn runs(path: &std::path::Path) -> Vec<String> {
    history_file::read(path).unwrap().records.into_iter().map(|record| record.run).collect()
}

#[test]
fn a_history_that_is_not_there_is_empty() {
    let (_directory, path) = nowhere();
    assert_eq!(history_file::read(&path).unwrap(), history::History::default());
    history_file::append(&path, &[]).unwrap();
    assert!(!path.exists(), "nothing to keep makes no file");
    append(&path, "a");
    append(&path, "b");
    assert_eq!(runs(&path), ["a", "b"]);
}

#[test]
fn a_line_that_was_cut_off_spoils_itself_alone() {
    let (_directory, path) = nowhere();
    append(&path, "a");
    append(&path, "b");
    let whole = std::fs::read(&path).unwrap();
    let second = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let last = whole.len() - 1;
    for end in (second + 1..last).step_by(61).chain([last]) {
        std::fs::write(&path, &whole[..end]).unwrap();
        append(&path, "c");
        let read = history_file::read(&path).unwrap();
        let found: Vec<&str> = read.records.iter().map(|record| record.run.as_str()).collect();
        // Without only its last byte, the end of its line, the record is whole.
        if end == last {
            assert_eq!((found, read.skipped.len()), (vec!["a", "b", "c"], 0));
        } else {
            assert_eq!(found, ["a", "c"], "cut at {end}");
            assert_eq!(
                (read.skipped[0].line, read.skipped[0].reason.as_str()),
                (2, "cut off"),
                "cut at {end}"
            );
        }
    }
}

#[test]
fn lines_that_are_no_records_are_told() {
    let (_directory, path) = nowhere();
    append(&path, "a");
    let mut text = std::fs::read(&path).unwrap();
    text.extend_from_slice(b"\n  \n{}\nno JSON\n\xff\xfe\n{\"schema\": 9, \"run\": 7}\n");
    std::fs::write(&path, text).unwrap();
    append(&path, "b");
    assert_eq!(runs(&path), ["a", "b"]);
    let skipped = history_file::read(&path).unwrap().skipped;
    assert_eq!(skipped.iter().map(|line| line.line).collect::<Vec<_>>(), [4, 5, 6, 7]);
    assert!(skipped[0].reason.contains("missing field"), "{skipped:?}");
    assert!(skipped[3].reason.starts_with("of schema 9, newer than 2"), "{skipped:?}");
}

#[test]
fn a_figure_that_json_cannot_hold_is_refused_and_not_lost_later() {
    let (_directory, path) = nowhere();
    let mut bad = record("bad");
    bad.metrics.get_mut("throughput").unwrap().typical = f64::INFINITY;
    assert!(history_file::append(&path, &[record("good"), bad]).is_err());
    assert_eq!(runs(&path), [""; 0], "all of them or none");
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_an_error_that_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let error = history_file::append(directory.path(), &[record("a")]).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot append to {}: ", directory.path().display())), "{error}");
    let error = history_file::append("/dev/full".as_ref(), &[record("a")]).unwrap_err().to_string();
    assert!(error.ends_with("not a regular file"), "{error}");
    let error = history_file::read(directory.path()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot read {}: ", directory.path().display())), "{error}");
}

/// Every object of a record, as JSON pointers.
const OBJECTS: [&str; 7] =
    ["", "/machine", "/case", "/settings", "/parity", "/metrics/throughput", "/verdicts/0"];

#[test]
fn a_record_of_a_newer_version_is_read_as_far_as_it_can_be() {
    let newer = json!({
        "schema": SCHEMA + 1, "run": "r", "time": "2031-01-01T00:00:00Z", "framework": "x", "state": "measured",
        "case": {"model": "m", "quality": 11}, "metrics": {"throughput": {"unit": "tok/s", "typical": 2.5}}
    });
    let record: Record = serde_json::from_value(newer).unwrap();
    assert_eq!((record.schema, record.case.model.as_str()), (SCHEMA + 1, "m"));
    assert_eq!(record.metrics["throughput"].typical, 2.5);
    assert_eq!(record.case.other["quality"], 11);
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(".{0,6}", inner, 0..4)
                .prop_map(|fields| fields.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn fields_of_newer_versions_are_kept_as_they_came(unknown in json_value(), typical in prop::num::f64::NORMAL) {
        let (_directory, path) = nowhere();
        let mut written = value("r");
        for object in OBJECTS {
            let fields = written.pointer_mut(object).unwrap().as_object_mut().unwrap();
            fields.insert("of_the_future".into(), unknown.clone());
        }
        written["metrics"]["throughput"]["typical"] = typical.into();
        history_file::append(&path, &[serde_json::from_value(written.clone()).unwrap()]).unwrap();
        let read = history_file::read(&path).unwrap();
        prop_assert_eq!(serde_json::to_value(&read.records[0]).unwrap(), written);
    }
}
