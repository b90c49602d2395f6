//! Sites of runs that no run here would make.

use facts::Evidence;
use judge::records::collection::Tier;
use judge::report::State;

use super::*;
use crate::testing::report;

const EVIL: &str = "</script><script>alert(1)</script>\"'<b>";

fn published(name: &str, change: impl Fn(&mut Report)) -> Published {
    let mut report = report();
    change(&mut report);
    Published { name: name.into(), report, evidence: Evidence::default(), tier: Tier::Ours, retired: None }
}

fn text<'a>(files: &'a Files, name: &str) -> &'a str {
    let file = files.iter().find(|(path, _)| path == name);
    let names: Vec<&String> = files.iter().map(|(path, _)| path).collect();
    std::str::from_utf8(&file.unwrap_or_else(|| panic!("{name} is not among {names:?}")).1).unwrap()
}

const ADDRESS: &str = "pairs/candle-vs-ort/a-model/f32/a-processor-2-cpus-unknown-system";

#[test]
fn a_pair_has_an_address_that_comes_from_names_alone_and_begins_with_the_answer() {
    let entries = [
        published("one", |report| report.environment.host = "a-host".into()),
        published("two", |report| report.environment.started = "2026-02-01T00:00:00Z".into()),
    ];
    let files = files(&entries, Some("https://example.org")).unwrap();
    let page = text(&files, &format!("{ADDRESS}/index.html"));
    let at = |part: &str| page.find(part).unwrap_or_else(|| panic!("{part} is not in {page}"));
    assert!(at("<h1>candle or ort: a-model, f32</h1>") < at("class=\"answer\""));
    assert!(at("class=\"answer\"") < at("id=\"two\"") && at("id=\"two\"") < at("id=\"one\""), "newest first");
    at(&format!("property=\"og:image\" content=\"https://example.org/{ADDRESS}/two-preview.png\""));
    at("../../../../../runs/one/samples.jsonl");
    assert!(!page.contains(">tch<"), "a pair is of two: {page}");
    for name in ["one.png", "one.svg", "one-preview.png", "data.json"] {
        assert!(files.iter().any(|(path, _)| *path == format!("{ADDRESS}/{name}")), "{name}");
    }
    // candle and ort have figures; tch failed, and odd is not supported.
    assert_eq!(files.iter().filter(|(path, _)| path.ends_with("/index.html")).count(), 1);
}

#[test]
fn the_list_has_filters_and_no_ranking_and_works_without_its_script() {
    let other = |report: &mut Report| report.environment.cpu = "Z Processor".into();
    let files = files(&[published("one", |_| ()), published("two", other)], None).unwrap();
    let page = text(&files, "index.html");
    assert_eq!(page.matches("<tr data-fields=").count(), 2);
    assert!(page.contains("<form id=\"filters\" class=\"filters\" hidden>"), "{page}");
    for name in ["processor", "memory", "system", "version", "code", "rules"] {
        assert!(page.contains(&format!("<select name=\"{name}\"")), "{name}");
    }
    assert_eq!(page.matches("<label>").count(), page.matches("<select").count());
    assert!(page.contains("ort decodes 1.90x as fast as candle") && page.contains("17 GB"), "{page}");
    assert!(page.find(">A Processor, ") < page.find(">Z Processor, "), "by name");
    let data: serde_json::Value = serde_json::from_str(text(&files, DATA)).unwrap();
    assert_eq!(data["license"], "CC-BY-4.0");
    assert_eq!(data["pages"][0]["results"][0]["records"].as_array().unwrap().len(), 2);
    assert!(text(&files, CITATION).contains("license: CC-BY-4.0\n"));
}

#[test]
fn a_result_under_retired_rules_stays_and_says_so() {
    let mut entry = published("old", |_| ());
    let mut judged = entry.report.clone();
    judged.rows[0].state = State::Struck;
    entry.retired = Some(Ok(Box::new(judged)));
    let files = files(&[entry], None).unwrap();
    let page = text(&files, &format!("{ADDRESS}/index.html"));
    assert!(
        page.contains("Judged by rules that were replaced since") && page.contains("is struck"),
        "{page}"
    );
    assert!(text(&files, "index.html").contains("ours, retired rules"));
}

#[test]
fn what_comes_from_outside_stays_text_and_leads_nowhere_else() {
    let evil = |report: &mut Report| {
        report.environment.cpu = EVIL.into();
        report.environment.os = Some("../../..".into());
        report.model.name = "../../x".into();
        report.warnings = vec![EVIL.to_owned().into()];
        for row in &mut report.rows[..2] {
            row.framework = format!("{}{EVIL}", row.framework);
        }
        report.comparisons[0].a = EVIL.into();
    };
    let files = files(&[published("evil", evil)], None).unwrap();
    for (path, contents) in &files {
        assert!(path.split('/').all(|part| !part.is_empty() && !part.starts_with('.')), "{path}");
        if path.ends_with(".html") {
            let page = std::str::from_utf8(contents).unwrap();
            let scripts = usize::from(path == "index.html");
            assert_eq!(page.matches("<script").count(), scripts, "{page}");
            assert!(!page.contains("<b>"), "{page}");
        }
    }
}
