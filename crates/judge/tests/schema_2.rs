//! Results that an earlier version wrote are read, and refused in one sentence where they cannot be.

use std::path::{Path, PathBuf};

use judge::report::layer_parity;
use judge::{report, study};
use plan::StudyView;
use plan::sweep::SweepKind;
use serde_json::Value;

fn recorded(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/schema-2").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn again(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_comparison_is_read_and_written_as_this_schema() {
    for name in ["compare/report.json", "mixed/report.json"] {
        let read = report::read(recorded(name)).unwrap();
        assert_eq!((read.schema, &read.plan.request, &read.model.config), (4, &None, &None), "{name}");
        assert_eq!(report::read(again(&read.json())), Ok(read), "{name}");
    }
}

#[test]
fn a_study_is_read_with_the_view_that_its_name_says() {
    let ab = study::read(recorded("ab.json")).unwrap();
    assert_eq!(ab.view, StudyView::Ab(["fused".into(), "base".into()]));
    assert_eq!(ab.outcomes.len(), 4);
    let sweep = study::read(recorded("sweep.json")).unwrap();
    assert_eq!(sweep.view, StudyView::Sweep(SweepKind::Forward));
    for read in [ab, sweep] {
        assert_eq!(study::read(serde_json::to_value(&read).unwrap()), Ok(read));
    }
}

#[test]
fn what_parity_found_is_read() {
    let read = layer_parity::read(recorded("parity.json")).unwrap();
    assert_eq!(layer_parity::read(again(&read.json())), Ok(read));
}

#[test]
fn a_report_of_the_future_is_refused() {
    let mut newer = recorded("compare/report.json");
    newer["schema"] = 5.into();
    let sentence = "its schema is 5, and this program reads 2 and 3 and 4; use the program that wrote it";
    assert_eq!(report::read(newer).unwrap_err(), sentence);
}

#[test]
fn what_is_no_report_is_refused_with_what_is_missing() {
    let mut without = recorded("compare/report.json");
    without.as_object_mut().unwrap().remove("rows");
    assert_eq!(
        report::read(without).unwrap_err(),
        "it is not the report of a comparison: missing field `rows`"
    );
    let mut unknown = recorded("ab.json");
    unknown["study"] = "sweep sideways".into();
    assert_eq!(study::read(unknown).unwrap_err(), "there is no study \"sweep sideways\"");
}

/// All results below `RECORDED_RESULTS`, a directory of results of schema 2, where somebody has one.
#[test]
fn every_recorded_result_is_read() {
    let Some(root) = std::env::var_os("RECORDED_RESULTS") else { return };
    let mut left = vec![PathBuf::from(root)];
    let mut count = 0;
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let read = || again(&std::fs::read_to_string(&path).unwrap());
        match path.file_name().and_then(|name| name.to_str()) {
            Some("report.json") if read().get("study").is_some() => {
                let study = study::read(read()).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                let written = serde_json::to_string(&study).unwrap();
                assert_eq!(study::read(again(&written)), Ok(study), "{path:?}");
            }
            Some("report.json") => {
                let report = report::read(read()).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                assert_eq!(report::read(again(&report.json())), Ok(report), "{path:?}");
            }
            Some("parity.json") => {
                let report = layer_parity::read(read()).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                assert_eq!(layer_parity::read(again(&report.json())), Ok(report), "{path:?}");
            }
            _ => continue,
        }
        count += 1;
    }
    assert!(count > 0, "there are no results there");
}
