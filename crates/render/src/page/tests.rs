//! Every page as a snapshot without its pictures, of reports that no run here would make; and the pictures.

use comparison::judge::report::State;
use comparison::judge::report::fairness::{Breach, RuleState};
use comparison::judge::report::verdicts::{Comparison, Verdict};
use comparison::judge::study::Cell;
use comparison::judge::{Metric, regression};
use comparison::plan::sweep::SweepKind;
use comparison::plan::{Axis, Prompt, Setting, Settings, StudyView};

use super::*;
use crate::charts;
use crate::testing::{cell, report, row};

/// Everything of a page that is neither style nor picture, in lines. Panics unless every tag is closed.
fn outline(html: &str) -> String {
    let (mut open, mut lines): (Vec<&str>, String) = Default::default();
    let mut rest = html.trim_start_matches("<!DOCTYPE html>");
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        let name = tag.split_whitespace().next().unwrap().trim_start_matches('/');
        let is_hidden = open.iter().any(|around| ["svg", "style", "script", "pre"].contains(around));
        if !is_hidden {
            lines += &rest[..start];
            let is_part = ["td", "th", "span", "small", "a", "code", "tr", "br"].contains(&name);
            lines += if is_part || tag.starts_with('/') { "" } else { "\n" };
            let tag = tag.split_once("base64,").map_or(tag, |(before, _)| before);
            lines += &format!("<{tag}>");
            lines += if name == "tr" { "\n" } else { "" };
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{html}");
        } else if !tag.ends_with('/') && !["meta", "link", "br", "input"].contains(&name) {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert_eq!(open, [""; 0], "{html}");
    lines
}

const EVIL: &str = "</td><script>alert(1)</script>\"'&\u{1b}";

fn rule(id: &str) -> RuleState {
    RuleState {
        id: id.into(),
        sentence: "Same device".into(),
        broken_by: Vec::new(),
        notes: Vec::new(),
        unverified: None,
    }
}

fn evil() -> Report {
    let mut report = report();
    let evil = || EVIL.to_owned();
    (report.environment.host, report.environment.cpu) = (evil(), evil());
    report.environment.command = vec!["photofinish".into(), "--prompt".into(), evil()];
    (report.plan.model, report.model.name, report.plan.analysis) = (evil(), evil(), evil());
    comparison::facts::testing::prompted(&mut report.plan).prompts = vec![Prompt {
        name: evil(),
        text: Some(evil()),
        pair: None,
        chat: Some(evil()),
        tokens: vec![1],
        types: Vec::new(),
        special: [0, 0],
        audio: None,
    }];
    report.rows[0].framework = evil();
    report.rows[2].reasons = vec![evil().into()];
    report.warnings = vec![evil().into()];
    report.comparisons[0].b = evil();
    let breach = Breach { framework: evil(), finding: evil(), remedy: evil(), is_compared: false };
    report.rules = vec![RuleState { sentence: evil(), broken_by: vec![breach], ..rule("R1") }];
    report
}

/// A report of which the first contender is struck, a rule is broken, and one is not verified.
fn struck() -> Report {
    let mut report = report();
    report.rows[0].state = State::Struck;
    report.rows[0].reasons = vec!["R5: it kept 3.1 CPUs busy; set its threads".to_owned().into()];
    report.comparisons.clear();
    let breach =
        Breach { framework: "x".into(), finding: "f".into(), remedy: "r".into(), is_compared: false };
    let open = RuleState { unverified: Some("no GPU figures".into()), ..rule("R6") };
    report.rules = vec![rule("R1"), RuleState { broken_by: vec![breach], ..rule("R5") }, open];
    report
}

/// Two cells with pages and one that was refused, of a model in a directory.
fn sweep() -> StudyReport {
    let at = |tokens: u32| {
        let model = Setting::Name("~/models/tiny".into());
        Settings::from([(Axis::PromptTokens, Setting::Number(tokens)), (Axis::Model, model)])
    };
    let mut cells = Vec::from([4, 8].map(|tokens| Cell {
        results: Some(format!("results/study/prompt-{tokens}")),
        ..cell(at(tokens), [50.0, 40.0])
    }));
    cells.push(Cell::refused(at(64), EVIL.into()));
    crate::testing::study("sweep generate", StudyView::Sweep(SweepKind::Generate), cells)
}

fn ab() -> StudyReport {
    let place = Settings::from([(Axis::Framework, Setting::Name("ort".into()))]);
    let arms = ["fused".to_owned(), "base".to_owned()];
    crate::testing::study("ab fused", StudyView::Ab(arms), vec![cell(place, [40.0, 50.0])])
}

/// Five records: three runs, of which one has another version, one of another case, and a noisy one.
fn five() -> Vec<Record> {
    let mut later = regression::testing::record("one", 120.0);
    (later.run, later.time) = ("later".into(), "2026-01-02T00:00:00Z".into());
    later.machine.host = EVIL.into();
    let (mut latest, mut other, mut noisy) = (later.clone(), later.clone(), later.clone());
    (latest.run, latest.time) = ("latest".into(), "2026-01-03T00:00:00Z".into());
    latest.library = Some("lib 2".into());
    other.case.batch = 4;
    noisy.noise = Some(EVIL.into());
    vec![regression::testing::record("one", 100.0), later, latest, other, noisy]
}

#[test]
fn every_page_is_whole_and_nothing_from_outside_is_markup() {
    let gaps_ms = [(EVIL.to_owned(), vec![1.0, 2.0, 3.0])].into_iter().collect();
    let times = Times { gaps_ms, ..Times::default() };
    let nothing = Report { rows: Vec::new(), comparisons: Vec::new(), ..report() };
    let of_history = super::history(&five(), 2).unwrap().remove(0).1;
    for (name, page) in [
        ("run", run::html(&report(), &Times::default())),
        ("evil", run::html(&evil(), &times)),
        ("struck", run::html(&struck(), &Times::default())),
        ("nothing", run::html(&nothing, &Times::default())),
        ("sweep", study::html(&sweep(), true, &|_| true)),
        ("ab", study::html(&ab(), true, &|_| true)),
        ("history", Ok(String::from_utf8(of_history).unwrap())),
    ] {
        let page = page.unwrap();
        assert!(page.matches("<script").count() == 1 && !page.contains("\"'&"), "{page}");
        // The script is the one that the policy of the page names.
        assert!(page.contains(&format!("<script>{SCRIPT}</script>")), "{page}");
        assert!(!page.contains('\u{1b}'), "{page}");
        outline(&page);
        // Without the tables to compare with.
        let (start, rest) = page.split_once("<fieldset").unwrap_or((&page, ""));
        let outline =
            outline(&(start.to_owned() + rest.split_once("</fieldset>").map_or("", |(_, end)| end)));
        if name != "evil" {
            insta::assert_snapshot!(name, outline);
        }
    }
}

#[test]
fn a_run_has_a_page_and_a_picture_in_two_forms() {
    let one = row("one", State::Measured, [Some(1.0); 5], &[]);
    let files = run(&Report { rows: vec![one], ..report() }, &Times::default()).unwrap();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["report.html", "comparison.png", "comparison.svg", "preview.png"]);
    assert!(files[1].1.starts_with(b"\x89PNG") && files[2].1.starts_with(b"<?xml"));
}

#[test]
fn a_preview_has_the_size_of_previews_and_the_verdict_on_one_metric() {
    let mut report = report();
    let first = report.comparisons[0].clone();
    report.comparisons.push(Comparison { metric: Metric::Total, verdict: Verdict::Inconclusive, ..first });
    let pictures = pictures::Pictures::new(&report);
    let preview = pictures.preview();
    assert_eq!(preview.title, "ort decodes fastest: 47 tokens/s, 1.90x candle.");
    let charts::Content::Rows(rows) = &preview.panels[0].content else { panic!("{preview:?}") };
    let labels: Vec<&str> = rows.groups[0].rows.iter().map(|row| row.label.as_str()).collect();
    assert_eq!(labels, ["ort", "candle", "tch", "odd"], "the best first, and those without a figure last");
    // Width and height are at the start of a PNG.
    let png = pictures::preview(&preview).unwrap();
    let pixels = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    assert_eq!((pixels(16), pixels(20)), (1200, 630));
}

#[test]
fn only_what_is_decided_has_a_colour() {
    let with = |verdict: Verdict| {
        let mut report = report();
        report.comparisons.truncate(1);
        report.comparisons[0].verdict = verdict;
        let pair = &pictures::Pictures::new(&report).pairs(Metric::Throughput)[0];
        (pair.value.is_some(), pair.colour)
    };
    let ort = pictures::Colours::new(&["ort".to_owned()]).of("ort");
    assert_eq!(with(Verdict::Faster), (true, Some(ort)));
    assert_eq!(with(Verdict::Equivalent), (true, Some(charts::INK)));
    assert_eq!(with(Verdict::Inconclusive), (true, None));
    assert_eq!(with(Verdict::NotMeasurable), (false, None));
}

#[test]
fn bars_have_the_best_first_and_the_marks_of_the_table() {
    let marks = |verdict: Verdict| {
        let mut report = report();
        report.comparisons[0].verdict = verdict;
        let rows = pictures::Pictures::new(&report).rows(Metric::Throughput);
        let marks: Vec<_> = rows.iter().take(2).map(|row| format!("{} {}", row.label, row.sign)).collect();
        marks.join(", ")
    };
    assert_eq!(marks(Verdict::Faster), "ort best, candle 1.90x");
    assert_eq!(marks(Verdict::Inconclusive), "candle ~, ort ~");
    assert_eq!(marks(Verdict::Equivalent), "candle =, ort =");
}

#[test]
fn the_interval_of_every_published_pair_says_what_its_colour_says() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../results/published/report.json");
    let report = judge::report::read(&std::fs::read_to_string(file).unwrap()).unwrap();
    let (low, high) = (1.0 / (1.0 + report.plan.margin), 1.0 + report.plan.margin);
    let pictures = pictures::Pictures::new(&report);
    let pairs: Vec<_> = pictures.compared().into_iter().flat_map(|metric| pictures.pairs(metric)).collect();
    assert!(pairs.len() > 6);
    for pair in pairs {
        let Some((from, to)) = pair.interval else { continue };
        let agrees = match pair.colour {
            Some(_) => from >= 1.0 || (from >= low && to <= high),
            None => from <= 1.0 && to >= 1.0,
        };
        assert!(agrees, "{pair:?}");
    }
}

#[test]
fn a_baseline_can_be_chosen_where_there_are_verdicts() {
    let tables = |report: &Report| {
        let page = run::result(report).0;
        (
            page.matches("type=\"radio\"").count(),
            page.matches("1.90x worse").count(),
            page.matches("1.90x better").count(),
        )
    };
    // The best, and two contenders that take part; throughput and latency are decided.
    assert_eq!(tables(&report()), (3, 2, 2));
    let open = Report {
        rounds: 1,
        rows: report().rows.into_iter().map(|row| Row { rounds: 1, ..row }).collect(),
        ..report()
    };
    assert_eq!(tables(&open), (0, 0, 0));
}

#[test]
fn a_picture_that_is_pasted_alone_has_the_answer_the_versions_and_the_date() {
    let report = report();
    let figure = pictures::Pictures::new(&report).comparison();
    assert!(figure.title.starts_with("ort decodes fastest"), "{:?}", figure.title);
    let [_, origin, command] = figure.note.as_slice() else { panic!("{:?}", figure.note) };
    assert_eq!(origin, "Photofinish 0 at commit – · 2026-01-01");
    assert!(command.starts_with("To repeat it: photofinish --seed "), "{command}");
}

#[test]
fn who_is_struck_has_no_mark_and_no_verdict() {
    let report = struck();
    let pictures = pictures::Pictures::new(&report);
    let rows = pictures.rows(Metric::Throughput);
    let struck = rows.iter().find(|row| row.label.starts_with("candle")).unwrap();
    assert_eq!((struck.label.as_str(), struck.value, struck.points.len()), ("candle ✗ R5", None, 0));
    let pairs = pictures.pairs(Metric::Throughput);
    let pairs: Vec<_> = pairs.iter().map(|pair| (&*pair.label, pair.value, &*pair.note)).collect();
    assert_eq!(pairs, [("candle ✗ R5", None, "struck: no verdict")]);
}

#[test]
fn a_picture_of_a_study_has_its_version_and_day() {
    let picture = pictures::sweep::comparison(&sweep()).unwrap();
    assert!(picture.note[0].contains("Photofinish 0 · 2026-01-01"), "{:?}", picture.note);
}
