//! Verdicts and renderings of checks whose truth is known.

use clap::Parser;
use history::Record;
use insta::assert_snapshot;

use super::document::Document;
use super::source::Run;
use super::testing::{record, set};
use super::*;

fn args(flags: &[&str]) -> CheckArgs {
    let words = [&["driver", "check", "--baseline", "latest"], flags].concat();
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

fn verdict(document: &Document, metric: &str) -> verdicts::Verdict {
    document.findings.iter().find(|finding| finding.metric == metric).unwrap().verdict
}

use verdicts::Verdict;

#[test]
fn eight_percent_are_a_regression_told_once() {
    let document = slower();
    assert_eq!(document.exit_code, 4);
    assert_eq!(
        (verdict(&document, "throughput"), verdict(&document, "latency")),
        (Verdict::Regression, Verdict::Regression)
    );
    assert_eq!(document.conclusion(), "regression: throughput of one");
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
        document.findings[0].sentence.contains("rounds in each run would tell"),
        "{:?}",
        document.findings[0]
    );
    assert!(document.conclusion().contains("inconclusive: throughput of one"), "{}", document.conclusion());
}

#[test]
fn too_few_rounds_are_not_measurable() {
    let mut few = record("one", 50.0);
    for figure in few.metrics.values_mut() {
        figure.values.truncate(5);
    }
    let document = check(vec![record("one", 100.0)], vec![few], &[]);
    assert_eq!(document.exit_code, 3);
    assert!(document.findings[0].sentence.contains("the current run has 5 rounds of the 6"));
}

#[test]
fn a_slower_machine_is_not_the_frameworks_regression() {
    let with_bandwidth = |throughput: f64, bandwidth: f64| {
        let mut record = record("one", throughput);
        set(&mut record, "peak_memory", 1.0);
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
    assert!(render::table(&allowed).contains("NOT THE SAME: processor"));
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
    assert_eq!((document.exit_code, document.conclusion().as_str()), (1, "failed: two"));
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

#[test]
fn the_terminal() {
    assert_snapshot!(render::table(&slower()), @r##"
    current: 20260101T000000Z-host, commit 012345678, on host (A Processor)
    baseline: 20260101T000000Z-host, commit 012345678, on host (A Processor)

    ┌───────────┬────────────┬───────────┬────────────┬────────┬──────────────────┬────────┬────────────┐
    │ Framework ┆ Metric     ┆  Baseline ┆    Current ┆ Change ┆    95 % interval ┆ Rounds ┆ Verdict    │
    ╞═══════════╪════════════╪═══════════╪════════════╪════════╪══════════════════╪════════╪════════════╡
    │ one       ┆ load       ┆  0.500 ms ┆   0.500 ms ┆ +0.0 % ┆ -0.5 % to +0.5 % ┆      6 ┆ equivalent │
    │ one       ┆ latency    ┆   10.0 ms ┆    10.8 ms ┆ +8.0 % ┆ +7.4 % to +8.6 % ┆      6 ┆ REGRESSION │
    │ one       ┆ throughput ┆ 100 tok/s ┆ 92.6 tok/s ┆ -7.4 % ┆ -7.9 % to -6.9 % ┆      6 ┆ REGRESSION │
    └───────────┴────────────┴───────────┴────────────┴────────┴──────────────────┴────────┴────────────┘
    one: throughput regressed: -7.4 %, 92.6 against 100 tok/s (95 % interval -7.9 % to -6.9 %, 6 rounds), beyond the threshold of 5 %
    one: latency says what throughput says

    regression: throughput of one
    "##);
}

#[test]
fn the_pull_request() {
    assert_snapshot!(render::markdown(&slower()), @r##"
    **regression: throughput of one**

    - current: 20260101T000000Z-host, commit 012345678, on host (A Processor)
    - baseline: 20260101T000000Z-host, commit 012345678, on host (A Processor)

    | Framework | Metric     |  Baseline |    Current | Change |    95 % interval | Rounds | Verdict    |
    |-----------|------------|-----------|------------|--------|------------------|--------|------------|
    | one       | load       |  0.500 ms |   0.500 ms | +0.0 % | -0.5 % to +0.5 % |      6 | equivalent |
    | one       | latency    |   10.0 ms |    10.8 ms | +8.0 % | +7.4 % to +8.6 % |      6 | REGRESSION |
    | one       | throughput | 100 tok/s | 92.6 tok/s | -7.4 % | -7.9 % to -6.9 % |      6 | REGRESSION |

    - one: throughput regressed: -7.4 %, 92.6 against 100 tok/s (95 % interval -7.9 % to -6.9 %, 6 rounds), beyond the threshold of 5 %
    - one: latency says what throughput says
    "##);
}

#[test]
fn annotations() {
    let text = ci::github(&slower());
    assert_snapshot!(text.lines().filter(|line| line.starts_with("::")).collect::<Vec<_>>().join("\n"), @"::error title=Performance regression%3A throughput of one::one: throughput regressed: -7.4 %25, 92.6 against 100 tok/s (95 %25 interval -7.9 %25 to -6.9 %25, 6 rounds), beyond the threshold of 5 %25");
}

#[test]
fn junit_reports() {
    let now = OffsetDateTime::UNIX_EPOCH;
    assert_snapshot!(ci::junit(&slower(), now), @r##"
    <?xml version="1.0" encoding="UTF-8"?>
    <testsuites name="photofinish" tests="3" failures="2" errors="0" skipped="0">
      <testsuite name="one" timestamp="1970-01-01T00:00:00Z" tests="3" failures="2" errors="0" skipped="0">
        <testcase classname="one" name="load"><system-out>one: load is equivalent within 5 %: +0.0 %, 0.500 against 0.500 ms (95 % interval -0.5 % to +0.5 %, 6 rounds)</system-out></testcase>
        <testcase classname="one" name="latency"><failure type="regression" message="one: latency regressed: +8.0 %, 10.8 against 10.0 ms (95 % interval +7.4 % to +8.6 %, 6 rounds), beyond the threshold of 5 %"/></testcase>
        <testcase classname="one" name="throughput"><failure type="regression" message="one: throughput regressed: -7.4 %, 92.6 against 100 tok/s (95 % interval -7.9 % to -6.9 %, 6 rounds), beyond the threshold of 5 %"/></testcase>
      </testsuite>
    </testsuites>
    "##);
}
