//! Verdicts and renderings of checks with a known outcome.

use clap::Parser;
use comparison::history::Record;
use comparison::judge;
use comparison::judge::regression::Verdict;
use comparison::judge::regression::testing::{record, set};
use render::regression::conclusion;
use render::{Exporter, JsonText};

use super::Run;
use super::*;
use crate::cli::{Cli, Command};

fn args(flags: &[&str]) -> CheckArgs {
    let words = [&["photofinish", "check", "--baseline", "latest"], flags].concat();
    match Cli::try_parse_from(words).unwrap().command {
        Some(Command::Check(args)) => *args,
        other => panic!("{other:?}"),
    }
}

fn run(records: Vec<Record>) -> Run {
    Run { source: "h.jsonl#run".into(), records }
}

fn check(baseline: Vec<Record>, current: Vec<Record>, flags: &[&str]) -> Document {
    judged(&run(baseline), &run(current), &args(flags)).unwrap()
}

fn slower() -> Document {
    check(vec![record("one", 100.0)], vec![record("one", 100.0 / 1.08)], &[])
}

fn verdict(document: &Document, metric: &str) -> Verdict {
    document.findings.iter().find(|finding| finding.metric == metric).unwrap().verdict
}

#[test]
fn eight_percent_are_a_regression_told_once() {
    let document = slower();
    assert_eq!(document.exit_code, 4);
    assert_eq!(
        (verdict(&document, "throughput"), verdict(&document, "latency")),
        (Verdict::Regression, Verdict::Regression)
    );
    assert_eq!(conclusion(&document), "regression: throughput of one");
    assert_eq!(verdict(&document, "load"), Verdict::Equivalent);
}

#[test]
fn what_is_certain_but_small_is_told_and_passes() {
    let document = check(vec![record("one", 100.0)], vec![record("one", 97.0)], &[]);
    assert_eq!((verdict(&document, "throughput"), document.exit_code), (Verdict::Worse, 0));
    let strict =
        check(vec![record("one", 100.0)], vec![record("one", 97.0)], &["--threshold", "9%,throughput=2"]);
    assert_eq!(
        (verdict(&strict, "throughput"), verdict(&strict, "latency")),
        (Verdict::Regression, Verdict::Worse)
    );
}

#[test]
fn what_is_large_but_uncertain_passes_and_says_how_many_rounds_it_takes() {
    let mut noisy = record("one", 92.0);
    let values = [60.0, 130.0, 80.0, 110.0, 75.0, 110.0].map(Some);
    noisy.metrics.get_mut("throughput").unwrap().values = values.into();
    let document = check(vec![record("one", 100.0)], vec![noisy], &["--metrics", "throughput"]);
    assert_eq!((verdict(&document, "throughput"), document.exit_code), (Verdict::Inconclusive, 0));
    assert!(
        JsonText.export(&document).contains("rounds in each run would decide"),
        "{:?}",
        document.findings[0]
    );
    assert!(conclusion(&document).contains("inconclusive: throughput of one"), "{}", conclusion(&document));
}

#[test]
fn too_few_rounds_are_not_measurable() {
    let mut few = record("one", 50.0);
    for figure in few.metrics.values_mut() {
        figure.values.truncate(5);
    }
    let document = check(vec![record("one", 100.0)], vec![few], &[]);
    assert_eq!(document.exit_code, 3);
    assert!(JsonText.export(&document).contains("the current run has 5 rounds of the 6"));
}

#[test]
fn a_slower_machine_is_not_the_frameworks_regression() {
    let with_bandwidth = |throughput: f64, bandwidth: f64| {
        let mut record = record("one", throughput);
        set(&mut record, judge::Metric::PeakMemory, 1.0);
        record.machine.read_bandwidth = Some(bandwidth);
        record
    };
    let baseline = || vec![with_bandwidth(100.0, 60e9)];
    let document = check(baseline(), vec![with_bandwidth(80.0, 40e9)], &[]);
    assert_eq!((verdict(&document, "throughput"), document.exit_code), (Verdict::NotMeasurable, 3));
    assert_eq!(verdict(&document, "peak_memory"), Verdict::Equivalent, "bytes do not care");
    let worse = check(baseline(), vec![with_bandwidth(50.0, 40e9)], &[]);
    assert_eq!((verdict(&worse, "throughput"), worse.exit_code), (Verdict::Regression, 4));
    let hidden = check(baseline(), vec![with_bandwidth(100.0, 80e9)], &[]);
    assert_eq!((verdict(&hidden, "throughput"), hidden.exit_code), (Verdict::NotMeasurable, 3));
    let told = check(baseline(), vec![with_bandwidth(80.0, 40e9)], &["--allow-different", "machine"]);
    assert_eq!(told.exit_code, 4);
}

#[test]
fn other_machines_and_settings_are_refused_unless_told() {
    let refused = |change: fn(&mut Record), flags: &[&str]| {
        let mut other = record("one", 100.0);
        change(&mut other);
        judged(&run(vec![record("one", 100.0)]), &run(vec![other]), &args(flags))
            .map_err(|error| error.to_string())
    };
    let machine = |record: &mut Record| {
        (record.machine.fingerprint, record.machine.cpu) = ("g".into(), "Another".into());
    };
    let error = refused(machine, &[]).unwrap_err();
    assert!(error.contains("processor: A Processor (baseline), Another (current)"), "{error}");
    let allowed = refused(machine, &["--allow-different", "machine"]).unwrap();
    assert!(export(&allowed, Format::Table, &crate::output::screen()).contains("NOT THE SAME: processor"));
    let iterations = |record: &mut Record| record.settings.iterations = 9;
    assert!(refused(iterations, &[]).unwrap_err().contains("iterations: 2 (baseline), 9 (current)"));
    let tokens = |record: &mut Record| record.case.new_tokens = 64;
    assert!(refused(tokens, &[]).unwrap_err().contains("no framework in the same case"));
    assert_eq!(refused(tokens, &["--allow-different", "settings"]).unwrap().findings.len(), 3);
}

#[test]
fn a_framework_that_broke_comes_before_one_that_slowed_down() {
    let mut broken = record("two", 100.0);
    (broken.state, broken.reasons) = ("struck".into(), vec!["R11: top-1 differs".into()]);
    let baseline = vec![record("one", 100.0), record("two", 100.0)];
    let document = check(baseline, vec![record("one", 50.0), broken], &[]);
    assert_eq!((document.exit_code, conclusion(&document).as_str()), (1, "failed: two"));
}

#[test]
fn a_metric_that_vanished_is_not_passed_over() {
    let mut without = record("one", 100.0);
    without.metrics.remove("load");
    let document = check(vec![record("one", 100.0)], vec![without], &[]);
    assert_eq!((verdict(&document, "load"), document.exit_code), (Verdict::NotMeasurable, 3));
}

#[test]
fn a_noisy_run_says_nothing() {
    let mut noisy = record("one", 10.0);
    noisy.noise = Some("other processes used 50 %".into());
    let document = check(vec![record("one", 100.0)], vec![noisy], &[]);
    assert_eq!((document.exit_code, document.findings.len()), (3, 0));
}
