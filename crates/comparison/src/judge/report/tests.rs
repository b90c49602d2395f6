//! Facts in, report out: recorded runs are judged again and must give the recorded report. `UPDATE_GOLDEN=1
//! cargo xtask test -p comparison` records the reports of today's rules.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::facts::evidence::Fact;

fn fixture(run: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(run)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(run: &str, name: &str) -> Value {
    serde_json::from_str(&text(&fixture(run).join(name))).unwrap()
}

fn recorded(run: &str) -> Report {
    read(&text(&fixture(run).join("report.json"))).unwrap()
}

fn facts(run: &str) -> Facts {
    let plan = json(run, "plan.json");
    let journal = text(&fixture(run).join("samples.jsonl"));
    Facts {
        environment: serde_json::from_value(json(run, "environment.json")).unwrap(),
        model: serde_json::from_value(plan["prepared"].clone()).unwrap(),
        plan: serde_json::from_value(plan).unwrap(),
        evidence: Evidence::from_facts(journal.lines().map(|line| Fact::read(line).unwrap())),
        results: recorded(run).results,
    }
}

/// The report without its words, which may be improved.
fn wordless(mut report: Report) -> Value {
    report.warnings.clear();
    let nothing = || Reason::Other(String::new());
    report.rows.iter_mut().flat_map(|row| &mut row.reasons).for_each(|reason| *reason = nothing());
    for rule in &mut report.rules {
        rule.sentence.clear();
        rule.unverified = rule.unverified.take().map(|_| String::new());
        for breach in rule.broken_by.iter_mut().chain(&mut rule.notes) {
            breach.finding.clear();
            breach.remedy.clear();
        }
    }
    serde_json::to_value(report).unwrap()
}

/// Paths where two values differ, so that a failure names the field.
fn differences(at: &str, ours: &Value, theirs: &Value, found: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
                let (a, b) = (a.get(name).unwrap_or(&Value::Null), b.get(name).unwrap_or(&Value::Null));
                differences(&format!("{at}.{name}"), a, b, found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{at}[{index}]"), a, b, found);
            }
        }
        // An optimised build rounds the last bits of the statistics' distributions differently.
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            if (a - b).abs() > 1e-12 * b.abs() {
                found.push(format!("{at}: {a} instead of {b}"));
            }
        }
        _ if ours != theirs => found.push(format!("{at}: {ours} instead of {theirs}")),
        _ => {}
    }
}

fn judged_again(run: &str) -> Report {
    let judged = Report::new(&facts(run));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(fixture(run).join("report.json"), serde_json::to_string(&judged).unwrap() + "\n")
            .unwrap();
    }
    let mut found = Vec::new();
    differences(run, &wordless(judged.clone()), &wordless(recorded(run)), &mut found);
    assert!(found.is_empty(), "{found:#?}");
    judged
}

#[test]
fn a_run_of_real_engines_is_judged_as_it_was() {
    let judged = judged_again("candle-ort");
    assert_eq!((judged.exit_code(), judged.rounds), (0, 6));
    let frameworks: Vec<&str> = judged.rows.iter().map(|row| row.framework.as_str()).collect();
    assert_eq!(frameworks, ["candle", "ort"]);
}

#[test]
fn failures_strikes_and_controls_are_judged_as_they_were() {
    let judged = judged_again("mixed");
    assert_eq!(judged.exit_code(), 1);
    assert_eq!(read(&serde_json::to_string(&judged).unwrap()), Ok(judged), "it is read back");
}

#[test]
fn an_untouched_run_is_judged_again_as_it_was() {
    let mut facts = facts("mixed");
    let before = Report::new(&facts);
    facts.evidence = facts.evidence.rejudged(&facts.plan);
    assert_eq!(Report::new(&facts), before);
}

#[test]
fn a_run_that_was_killed_has_a_report_too() {
    let mut facts = facts("candle-ort");
    let journal = text(&fixture("candle-ort").join("samples.jsonl"));
    let facts_read = journal.lines().map(|line| Fact::read(line).unwrap());
    let mut rounds = 0;
    facts.evidence = Evidence::from_facts(facts_read.take_while(|fact| {
        rounds += usize::from(*fact == Fact::RoundDone);
        rounds < 6
    }));
    let report = Report::new(&facts);
    assert_eq!((report.end.clone(), report.interrupted, report.rounds), (End::Killed, true, 5));
    assert!(report.rows.iter().all(|row| row.state.takes_part()));
    assert!(report.warnings.contains(&Warning::Killed));
}

#[test]
fn another_schema_is_refused_and_a_report_that_lacks_a_field_names_it() {
    let refused = |change: fn(&mut Value)| {
        let mut value = json("mixed", "report.json");
        change(&mut value);
        read(&value.to_string()).unwrap_err()
    };
    assert_eq!(
        refused(|value| value["schema"] = 3.into()),
        "its schema is 3, and this program reads 5: measure again, or use the release that wrote it"
    );
    assert_eq!(
        refused(|value| drop(value.as_object_mut().unwrap().remove("rows"))),
        "it is not the report of a comparison: missing field `rows`"
    );
}

#[test]
fn what_was_published_is_read_and_written_as_it_was() {
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/published")];
    let mut reports = 0;
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.ends_with("report.json") {
            let report = read(&text(&path)).unwrap_or_else(|why| panic!("{path:?}: {why}"));
            // As JSON: the difference of logits that are not finite is NaN, which does not equal itself.
            let written = serde_json::to_value(&report).unwrap();
            let again = read(&written.to_string()).unwrap_or_else(|why| panic!("{path:?}: {why}"));
            assert_eq!(serde_json::to_value(&again).unwrap(), written, "{path:?}");
            reports += 1;
        }
    }
    assert!(reports > 1, "{reports} reports");
    let parity = layer_parity::read(&text(&fixture("parity.json"))).unwrap();
    assert_eq!(layer_parity::read(&serde_json::to_string(&parity).unwrap()), Ok(parity));
}

#[test]
fn figures_of_one_row_agree() {
    let times = [10.0, 12.0, 11.0, 10.0, 13.0, 10.5].map(Some);
    let latency = Figure::new(Metric::Latency, times.to_vec(), Vec::new());
    let rates = times.map(|ms| ms.map(|ms: f64| 1000.0 / ms));
    let throughput = Figure::new(Metric::Throughput, rates.to_vec(), Vec::new());
    let product = latency.typical.unwrap() * throughput.typical.unwrap();
    assert!((product - 1000.0).abs() < 1e-9, "{product}");
    let (low, high) = latency.interval.unwrap();
    assert!(low < latency.typical.unwrap() && latency.typical.unwrap() < high);
}

#[test]
fn the_average_is_shown_and_the_typical_value_compared() {
    let figure = Figure::new(Metric::Latency, vec![Some(9.0), Some(1.0)], vec![Some(8.0), Some(1.0)]);
    assert!((figure.typical.unwrap() - 3.0).abs() < 1e-12 && figure.median == Some(5.0));
    assert_eq!(figure.compared()[0], Some(8.0));
}
