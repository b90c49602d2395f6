//! Facts in, report out: recorded runs are judged again and give the report that was recorded.

use std::path::{Path, PathBuf};

use judge::report::{self, Figure, Prepared};
use judge::{Environment, Evidence, Fact, Facts, Metric, Report};
use plan::Plan;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/schema-2").join(name)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn recorded(run: &str) -> Report {
    report::read(serde_json::from_str(&text(&fixture(run).join("report.json"))).unwrap()).unwrap()
}

/// What the journal of schema 2 held, and from `recorded` what only the report kept: how the run ended, probes, noise
/// and complaints. The model's shapes are in neither; they come from the model.
fn facts(run: &str, recorded: &Report) -> Facts {
    let directory = fixture(run);
    let plan: Plan = serde_json::from_str(&text(&directory.join("plan.json"))).unwrap();
    let environment: Environment = serde_json::from_str(&text(&directory.join("environment.json"))).unwrap();
    let journal = text(&directory.join("samples.jsonl"));
    let runs = journal.lines().map(|line| match Fact::read(line).unwrap() {
        Fact::Run(run) => *run,
        other => panic!("schema 2 has processes alone, not {other:?}"),
    });
    let labels: Vec<String> = plan.contenders.iter().map(|contender| contender.label.clone()).collect();
    let evidence = recorded.completed(Evidence::from_runs(runs.collect(), &labels));
    let shapes: Value = serde_json::from_str(&text(&fixture("config.json"))).unwrap();
    let config = bundle::ModelConfig::from_json(&shapes).unwrap();
    let model = Prepared { config: Some(config), ..recorded.model.clone() };
    Facts { environment, plan, model, evidence, results: recorded.results.clone() }
}

/// The report without its words, which may be put better, and without the shapes, which schema 2 did not keep.
fn wordless(mut report: Report) -> Value {
    report.model.config = None;
    report.summary = Default::default();
    report.warnings.clear();
    for row in &mut report.rows {
        // Reports of that time did not have it.
        row.steadiness.first_runs = None;
        row.reasons.iter_mut().for_each(String::clear);
        if let Some(agreement) = &mut row.agreement {
            (agreement.largest, agreement.not_finite) = (None, 0);
        }
    }
    for comparison in &mut report.comparisons {
        comparison.sentence.clear();
    }
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

/// Where two values differ, so that a failure names the field.
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
        // An optimised build rounds the last bits of the statistics' distributions otherwise.
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
    let recorded = recorded(run);
    let judged = Report::new(&facts(run, &recorded));
    agree(run, judged, recorded)
}

/// Leaves out what is younger than the recording, and latency: it was the median gap, and is now their mean.
fn as_recorded(ours: &mut Vec<Figure>, theirs: &mut Vec<Figure>) {
    ours.retain(|figure| theirs.iter().any(|known| known.metric == figure.metric));
    for (ours, theirs) in ours.iter_mut().zip(theirs.iter()) {
        let Figure { metric, median, min, max, values, .. } = ours.clone();
        *ours = Figure { metric, median, min, max, values, ..theirs.clone() };
    }
    for figures in [ours, theirs] {
        figures.retain(|figure| figure.metric != Metric::Latency);
    }
}

/// Holds what was judged again against what was recorded, as data.
fn agree(run: &str, judged: Report, mut recorded: Report) -> Report {
    // What is younger than the recording is not held against it.
    let mut known = judged.clone();
    for (ours, theirs) in known.rows.iter_mut().zip(&mut recorded.rows) {
        ours.components = theirs.components;
        if let (Some(ours), Some(theirs)) = (&mut ours.threads, &theirs.threads) {
            ours.over_ns = theirs.over_ns;
        }
        as_recorded(&mut ours.metrics, &mut theirs.metrics);
    }
    for (ours, theirs) in known.prompts.iter_mut().zip(&mut recorded.prompts) {
        for (ours, theirs) in ours.rows.iter_mut().zip(&mut theirs.rows) {
            as_recorded(&mut ours.metrics, &mut theirs.metrics);
        }
    }
    for comparisons in [&mut known.comparisons, &mut recorded.comparisons] {
        comparisons.retain(|found| found.metric != Metric::Latency);
    }
    known.rules.retain(|rule| recorded.rules.iter().any(|known| known.id == rule.id));
    // The family had no weights when this was recorded. Its decisions are the same.
    for (ours, theirs) in known.comparisons.iter_mut().zip(&recorded.comparisons) {
        if let (Some(ours), Some(theirs)) = (&mut ours.statistics, &theirs.statistics) {
            (ours.p_adjusted, ours.detectable) = (theirs.p_adjusted, theirs.detectable);
        }
    }
    let mut found = Vec::new();
    differences(run, &wordless(known), &wordless(recorded), &mut found);
    assert!(found.is_empty(), "{found:#?}");
    judged
}

#[test]
fn a_run_of_real_engines_is_judged_as_it_was() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/schema-3/candle-ort");
    let json = |name: &str| -> Value { serde_json::from_str(&text(&directory.join(name))).unwrap() };
    let recorded = report::read(json("report.json")).unwrap();
    let plan = json("plan.json");
    let journal = text(&directory.join("samples.jsonl"));
    let facts = Facts {
        environment: serde_json::from_value(json("environment.json")).unwrap(),
        model: serde_json::from_value(plan["prepared"].clone()).unwrap(),
        plan: serde_json::from_value(plan).unwrap(),
        evidence: Evidence::from_facts(journal.lines().map(|line| Fact::read(line).unwrap())),
        results: recorded.results.clone(),
    };
    let judged = agree("candle-ort", Report::new(&facts), recorded);
    assert_eq!((judged.exit_code(), judged.rounds), (0, 6));
    let frameworks: Vec<&str> = judged.rows.iter().map(|row| row.framework.as_str()).collect();
    assert_eq!(frameworks, ["candle", "ort"]);
}

#[test]
fn a_comparison_is_judged_as_it_was() {
    let judged = judged_again("compare");
    assert_eq!((judged.exit_code(), judged.rounds), (0, 6));
}

#[test]
fn failures_strikes_and_controls_are_judged_as_they_were() {
    assert_eq!(judged_again("mixed").exit_code(), 1);
}

#[test]
fn an_untouched_run_is_judged_again_as_it_was() {
    let recorded = recorded("mixed");
    let mut facts = facts("mixed", &recorded);
    let before = Report::new(&facts);
    facts.evidence = facts.evidence.rejudged(&facts.plan);
    assert_eq!(Report::new(&facts), before);
}

#[test]
fn a_report_made_of_facts_is_read_back() {
    let judged = judged_again("mixed");
    assert_eq!(report::read(serde_json::from_str(&judged.json()).unwrap()), Ok(judged));
}

#[test]
fn a_run_that_was_killed_has_a_report_too() {
    let recorded = recorded("compare");
    let mut facts = facts("compare", &recorded);
    let last = facts.evidence.runs.iter().map(|run| run.round).max().unwrap();
    let left: Vec<_> = facts.evidence.runs.into_iter().filter(|run| run.round < last).collect();
    let labels: Vec<String> = facts.plan.contenders.iter().map(|contender| contender.label.clone()).collect();
    facts.evidence = Evidence::from_runs(left, &labels);
    facts.model.config = None;
    let report = Report::new(&facts);
    assert_eq!((report.end.clone(), report.interrupted, report.rounds), (judge::End::Killed, true, last));
    assert!(
        report.rows.iter().all(|row| row.state.takes_part() && row.limit.is_none() && row.memory.is_none())
    );
    assert!(report.warnings.iter().any(|warning| warning.contains("before it could save its report")));
}
