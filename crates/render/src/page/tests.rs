//! Pages of reports that no run here would make.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{run, view};

fn page(report: &Value) -> String {
    let run: view::Run = serde_json::from_value(report.clone()).unwrap();
    run::html(&run, &report.to_string(), &BTreeMap::new()).unwrap()
}

fn row(framework: &str, values: &[Option<f64>]) -> Value {
    let known: Vec<f64> = values.iter().copied().flatten().collect();
    let figure = json!({"metric": "throughput", "unit": "tok/s", "median": statistics::median(&known), "values": values});
    json!({"framework": framework, "state": "measured", "rounds": values.len(), "metrics": [figure]})
}

/// Tags that are open at the end, and every attribute in quotes.
fn left_open(html: &str) -> Vec<&str> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html.trim_start_matches("<!DOCTYPE html>");
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{html}"),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split_whitespace().next().unwrap()),
        }
        rest = &rest[end + 1..];
    }
    open
}

#[test]
fn everything_that_a_page_opens_it_closes_and_what_comes_from_outside_opens_nothing() {
    let evil = "</td><script>alert(1)</script>\"'&";
    let report = json!({
        "schema": 2,
        "environment": {"host": evil, "command": ["driver", "--prompt", evil], "started": "2026-11-21T12:00:00.1Z"},
        "plan": {"model": evil, "precision": "f32", "prompts": [{"name": evil, "text": evil, "tokens": [1]}]},
        "rows": [row(evil, &[Some(1.0); 6]), row("tch", &[Some(2.0), None, Some(2.5)])],
        "warnings": [evil],
        "rules": [{"id": "R1", "sentence": evil, "broken_by": [{"framework": evil, "finding": evil}]}],
    });
    let page = page(&report);
    assert_eq!(left_open(&page), [""; 0]);
    assert!(!page.contains("<script"), "{page}");
    assert!(page.contains("R1 ") && page.contains("✗ broken"), "{page}");
}

#[test]
fn a_report_with_nothing_in_it_is_a_page_that_says_so() {
    let page = page(&json!({"schema": 2, "rows": []}));
    assert_eq!(left_open(&page), [""; 0]);
    assert!(page.contains("Nothing could be measured."), "{page}");
}

#[test]
fn the_answer_claims_what_the_verdict_does() {
    let with = |verdict: &str| {
        let sentence = "tch decodes 2.0x faster than ort";
        let found =
            json!({"metric": "throughput", "a": "tch", "b": "ort", "verdict": verdict, "sentence": sentence});
        page(
            &json!({"schema": 2, "rows": [row("tch", &[Some(2.0)]), row("ort", &[Some(1.0)])], "comparisons": [found]}),
        )
    };
    let answer = "<p class=\"answer\">tch decodes 2.0x faster than ort</p>";
    assert!(with("faster").contains(answer));
    assert!(
        !with("inconclusive").contains(answer) && with("inconclusive").contains("do not support a claim")
    );
    assert!(with("not_measurable").contains("too noisy for a verdict"));
}

#[test]
fn an_unverified_rule_is_not_told_to_hold() {
    let rule = json!({"id": "R6", "sentence": "Same device", "unverified": "no GPU figures"});
    let page = page(&json!({"schema": 2, "rows": [], "rules": [rule]}));
    assert!(
        page.contains("? not verified") && page.contains("no GPU figures") && !page.contains("✓"),
        "{page}"
    );
}
