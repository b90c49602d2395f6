//! Renderings of a check with a known outcome.

use comparison::judge::regression::Thresholds;
use comparison::judge::regression::pairing::Speed;
use comparison::judge::regression::testing::record;
use comparison::judge::regression::{self, Bar, Broken, Reason, Side, Subject, pairing};
use insta::assert_snapshot;
use time::OffsetDateTime;

use super::*;
use crate::export::{Csv, JsonText};
use crate::table::WIDE;

pub(crate) fn slower() -> Document {
    let (baseline, current) = ([record("one", 100.0)], [record("one", 100.0 / 1.08)]);
    let pairs = pairing::pair(&baseline, &current, false).pairs;
    let subjects: Vec<Subject<'_>> =
        pairs.into_iter().flat_map(|pair| regression::subjects(pair, &[])).collect();
    let thresholds = Thresholds::all(0.05);
    let bar = Bar { thresholds: &thresholds, gates: true, speed: Speed::SAME };
    let side = |records| Side::new("h.jsonl#run", records);
    let document = Document::new(Kind::Check, side(&baseline), side(&current));
    Document { findings: regression::unpaired(&subjects, &bar), ..document }.concluded()
}

#[test]
fn servers_that_build_show_it_in_their_own_ways() {
    assert_snapshot!("github", github(&slower()));
    assert_snapshot!("junit", junit(&slower(), OffsetDateTime::UNIX_EPOCH));
}

#[test]
fn what_differs_and_what_failed_is_told_everywhere() {
    let mut document = slower();
    document.differences = vec!["processor: <A> (baseline), B (current)".into()];
    document.failures = vec![Broken { framework: "two".into(), reason: "it was ended by signal 9".into() }];
    document.unmeasurable = Some("other processes used 50 %".into());
    let document = document.concluded();
    let terminal = WIDE.export(&document);
    assert!(
        terminal.contains("NOT THE SAME: processor: <A>") && terminal.starts_with("failed: two\n"),
        "{terminal}"
    );
    let summary = job_summary(&document);
    assert!(
        summary.starts_with("## Performance\n\n**failed: two**") && summary.contains("&lt;A>"),
        "{summary}"
    );
    let annotated = github(&document);
    assert!(annotated.contains("::error title=two failed::it was ended by signal 9"), "{annotated}");
    assert!(annotated.contains("::warning title=Runs differ::processor"), "{annotated}");
    let junit = junit(&document, OffsetDateTime::UNIX_EPOCH);
    assert!(junit.contains("<error message=\"it was ended by signal 9\"/>"), "{junit}");
    assert!(junit.contains("<skipped message=\"other processes used 50 %\"/>"), "{junit}");
    assert!(junit.contains("tests=\"5\" failures=\"2\" errors=\"1\""), "{junit}");
}

#[test]
fn a_reason_that_several_metrics_share_is_told_once() {
    let mut document = slower();
    for finding in &mut document.findings {
        finding.verdict = Verdict::NotMeasurable;
        finding.follows = None;
        finding.reason = Some(Reason::SlowerMachine);
    }
    let text = WIDE.export(&document.concluded());
    assert_eq!(text.matches("the machine itself was slower").count(), 1, "{text}");
    assert!(text.contains("one: load, latency, throughput cannot be judged: the machine itself"), "{text}");
}

#[test]
fn xml_holds_whatever_a_worker_said() {
    let mut document = slower();
    document.failures = vec![Broken { framework: "<b>".into(), reason: "\"&\u{1b}[1m\n'".into() }];
    let junit = junit(&document, OffsetDateTime::UNIX_EPOCH);
    assert!(junit.contains("name=\"&lt;b&gt;\"") && !junit.contains('\u{1b}'), "{junit}");
}

#[test]
fn a_spreadsheet_without_a_finding_has_its_header() {
    let nothing = Document { findings: Vec::new(), ..slower() };
    assert!(Csv.export(&nothing).starts_with("framework,case,metric,"));
    assert_eq!(Csv.export(&nothing).lines().next(), Csv.export(&slower()).lines().next());
}

#[test]
fn json_has_each_finding_in_words_too() {
    let mut document = slower();
    (document.findings[0].verdict, document.findings[0].reason) =
        (Verdict::NotMeasurable, Some(Reason::NotInCurrent));
    let json: serde_json::Value = serde_json::from_str(&JsonText.export(&document)).unwrap();
    let [load, latency, _] = json["findings"].as_array().unwrap().as_slice() else { panic!("{json}") };
    assert_eq!(
        [&load["reason_code"], &latency["reason"]],
        [&"not_in_current".into(), &serde_json::Value::Null]
    );
    assert_eq!(load["reason"], "the current run has no figures of it");
    assert!(latency["sentence"].as_str().unwrap().starts_with("one: latency regressed: +8.0 %"), "{latency}");
}
