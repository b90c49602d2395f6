//! Pages of reports that no run here would make.

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

fn html(report: &Report) -> String {
    run::html(report, &Times::default()).unwrap()
}

/// Tags that are open at the end, and every attribute in quotes.
fn left_open(html: &str) -> Vec<&str> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html.trim_start_matches("<!DOCTYPE html>");
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        let name = tag.split_whitespace().next().unwrap();
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{html}"),
            None if tag.ends_with('/') || ["meta", "link", "br"].contains(&name) => {}
            None => open.push(name),
        }
        rest = &rest[end + 1..];
    }
    open
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
    }];
    report.rows[0].framework = evil();
    report.rows[2].reasons = vec![evil().into()];
    report.warnings = vec![evil().into()];
    report.comparisons[0].b = evil();
    let breach = Breach { framework: evil(), finding: evil(), remedy: evil(), is_compared: false };
    report.rules = vec![RuleState { sentence: evil(), broken_by: vec![breach], ..rule("R1") }];
    report
}

#[test]
fn everything_that_a_page_opens_it_closes_and_what_comes_from_outside_opens_nothing() {
    let gaps_ms = [(EVIL.to_owned(), vec![1.0, 2.0, 3.0])].into_iter().collect();
    let page = run::html(&evil(), &Times { gaps_ms, ..Times::default() }).unwrap();
    assert_eq!(left_open(&page), [""; 0]);
    assert!(!page.contains("<script") && !page.contains('\u{1b}'), "{page}");
    assert!(page.contains("R1 ") && page.contains("✗ broken"), "{page}");
}

#[test]
fn a_report_with_nothing_in_it_is_a_page_that_says_so() {
    let report = Report { rows: Vec::new(), comparisons: Vec::new(), ..report() };
    let page = html(&report);
    assert_eq!(left_open(&page), [""; 0]);
    assert!(page.contains("Nothing was measured."), "{page}");
}

#[test]
fn the_answer_claims_what_the_verdict_does() {
    let with = |verdict: Verdict| {
        let mut report = report();
        report.comparisons.truncate(1);
        report.comparisons[0].verdict = verdict;
        html(&report)
    };
    let answer = "<p class=\"answer\">ort decodes fastest: 47 tokens/s, 1.90x candle.</p>";
    assert!(with(Verdict::Faster).contains(answer));
    let inconclusive = with(Verdict::Inconclusive);
    assert!(!inconclusive.contains(answer) && inconclusive.contains("Too close to call: "), "{inconclusive}");
    assert!(inconclusive.contains("would settle it"), "{inconclusive}");
    assert!(with(Verdict::NotMeasurable).contains("No verdict on throughput"));
}

#[test]
fn an_unverified_rule_is_not_told_to_hold() {
    let rule = RuleState { unverified: Some("no GPU figures".into()), ..rule("R6") };
    let page = html(&Report { rules: vec![rule], ..report() });
    assert!(
        page.contains("? not verified") && page.contains("no GPU figures") && !page.contains("✓"),
        "{page}"
    );
}

#[test]
fn a_page_calls_metrics_by_their_titles_and_carries_its_report() {
    let page = html(&report());
    for metric in Metric::TABLE {
        assert!(page.contains(metric.title()), "{}", metric.title());
    }
    assert!(
        page.contains("data:application/json;base64,") && page.contains("tch failed: it was ended"),
        "{page}"
    );
    let states: Vec<State> = report().rows.iter().map(|row| row.state).collect();
    assert!(states.contains(&State::Unsupported) && page.contains(">unsupported<"), "{page}");
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
    assert_eq!(labels, ["candle", "ort", "tch", "odd"], "the best first, and those without a figure last");
    // Width and height are at the start of a PNG.
    let png = pictures::preview(&preview).unwrap();
    let pixels = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    assert_eq!((pixels(16), pixels(20)), (1200, 630));
}

#[test]
fn the_history_is_told_by_machine_and_case() {
    let mut later = regression::testing::record("one", 120.0);
    (later.run, later.time) = ("later".into(), "2026-01-02T00:00:00Z".into());
    later.machine.host = EVIL.into();
    let (mut latest, mut other, mut noisy) = (later.clone(), later.clone(), later.clone());
    (latest.run, latest.time) = ("latest".into(), "2026-01-03T00:00:00Z".into());
    latest.library = Some("lib 2".into());
    other.case.batch = 4;
    noisy.noise = Some(EVIL.into());
    let records = [regression::testing::record("one", 100.0), later, latest, other, noisy];
    let files = super::history(&records, 2).unwrap();
    let page = String::from_utf8(files[0].1.clone()).unwrap();
    assert_eq!(left_open(&page), [""; 0]);
    for told in [
        "3 runs; each machine, model and setting",
        "2 lines of the history could not be read",
        "<h2>a-model f32, 16 → 32, 2 threads</h2>",
        "<h2>a-model f32, 16 → 32, batch 4, 2 threads</h2>",
        "Average Throughput (tok/s) over time",
        "Fewer than 3 runs, so that no line is drawn: one",
        "01234567, one: library: lib 1 → lib 2",
        "1 record: 1 noisy",
    ] {
        assert!(page.contains(told), "{told}: {page}");
    }
}

#[test]
fn a_study_leads_to_the_pages_of_its_cells() {
    let at = |tokens: u32| Settings::from([(Axis::PromptTokens, Setting::Number(tokens))]);
    let cells = [4, 8].map(|tokens| Cell {
        results: Some(format!("results/study/prompt-{tokens}")),
        ..cell(at(tokens), [50.0, 40.0])
    });
    let refused = Cell::refused(at(64), EVIL.into());
    let cells = cells.into_iter().chain([refused]).collect();
    let report = crate::testing::study("sweep generate", StudyView::Sweep(SweepKind::Generate), cells);
    let page = study::html(&report, true, &|_| true).unwrap();
    assert_eq!(left_open(&page), [""; 0]);
    assert!(page.contains("<a href=\"prompt-8/report.html\">prompt-8</a>"), "{page}");
    assert!(page.contains("prompt 64: not run: &lt;/td&gt;") && !page.contains("<script"), "{page}");
}

#[test]
fn what_an_optimisation_is_worth_is_answered() {
    let place = Settings::from([(Axis::Framework, Setting::Name("ort".into()))]);
    let arms = ["fused".to_owned(), "base".to_owned()];
    let report = crate::testing::study("ab fused", StudyView::Ab(arms), vec![cell(place, [40.0, 50.0])]);
    let page = study::html(&report, true, &|_| true).unwrap();
    assert_eq!(left_open(&page), [""; 0]);
    assert!(page.contains("<h2>With and without</h2>") && page.contains("fused (tok/s)"), "{page}");
    assert!(
        page.contains("<p class=\"answer\">fused against base: slower in 1 of 1 cell (1.90x).</p>"),
        "{page}"
    );
}

#[test]
fn who_is_struck_looks_struck_and_has_no_mark_no_verdict_and_no_rank() {
    let mut report = report();
    report.rows[0].state = State::Struck;
    report.rows[0].reasons = vec!["R5: it kept 3.1 CPUs busy; set its threads".to_owned().into()];
    report.comparisons.clear();
    let page = html(&report);
    assert_eq!(left_open(&page), [""; 0]);
    assert!(page.contains("<th class=\"figure struck\" scope=\"col\">candle ✗ R5</th>"), "{page}");
    assert!(page.contains("struck: not compared"), "{page}");
    let pictures = pictures::Pictures::new(&report);
    let struck = &pictures.rows(Metric::Throughput)[0];
    assert_eq!((struck.label.as_str(), struck.value, struck.points.len()), ("candle ✗ R5", None, 0));
    let pairs = pictures.pairs(Metric::Throughput);
    let pairs: Vec<_> = pairs.iter().map(|pair| (&*pair.label, pair.value, &*pair.note)).collect();
    assert_eq!(pairs, [("candle ✗ R5", None, "struck: no verdict")]);
}

#[test]
fn each_forest_plot_has_its_figures_in_a_table() {
    let page = html(&report());
    for told in [
        "<caption>Average Throughput (tok/s), pair by pair</caption>",
        "<th scope=\"row\">ort vs candle</th>",
        "data-label=\"Times better\"><span>1.90</span>",
        "data-label=\"Interval\"><span>1.80 – 2.00</span>",
        "data-label=\"Verdict\"><span>ort is better</span>",
        "data-label=\"Verdict\"><span>inconclusive</span>",
    ] {
        assert!(page.contains(told), "{told}: {page}");
    }
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
    let ort = pictures::colours(&["ort".to_owned()])["ort"];
    assert_eq!(with(Verdict::Faster), (true, Some(ort)));
    assert_eq!(with(Verdict::Equivalent), (true, Some(charts::INK)));
    assert_eq!(with(Verdict::Inconclusive), (true, None));
    assert_eq!(with(Verdict::NotMeasurable), (false, None));
}

#[test]
fn a_picture_that_is_pasted_alone_has_the_answer_the_versions_and_the_date() {
    let report = report();
    let figure = pictures::Pictures::new(&report).comparison();
    assert!(figure.title.starts_with("ort decodes fastest"), "{:?}", figure.title);
    let [_, origin, command] = figure.note.as_slice() else { panic!("{:?}", figure.note) };
    assert_eq!(origin, "Photofinish 0 at commit – · 2026-01-01");
    assert!(command.starts_with("To repeat it: cargo xtask compare --seed "), "{command}");
}

#[test]
fn the_rules_that_hold_are_counted_in_one_line() {
    let open = RuleState { unverified: Some("no GPU figures".into()), ..rule("R6") };
    let breach =
        Breach { framework: "x".into(), finding: "f".into(), remedy: "r".into(), is_compared: false };
    let broken = RuleState { broken_by: vec![breach], ..rule("R5") };
    let page = html(&Report { rules: vec![rule("R1"), broken, open], ..report() });
    assert!(page.contains("<summary>1 of 3 rules hold; broken: R5; not verified: R6</summary>"), "{page}");
}

#[test]
fn a_sweep_groups_its_rows_and_begins_with_its_headline_and_its_warnings() {
    let at = |tokens: u32| Settings::from([(Axis::PromptTokens, Setting::Number(tokens))]);
    let cells = [4, 8].map(|tokens| cell(at(tokens), [50.0, 40.0]));
    let report = crate::testing::study("sweep generate", StudyView::Sweep(SweepKind::Generate), cells.into());
    let page = study::html(&report, true, &|_| true).unwrap();
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
    assert!(place("ort decodes fastest in 2 of 2 cells.") < place("<h2>Warnings</h2>"));
    assert!(place("<h2>Warnings</h2>") < place("<h2>Figures</h2>"));
    assert_eq!(page.matches("<tr class=\"group\">").count(), 2, "{page}");
    assert!(
        page.contains(&format!("cargo xtask compare --seed {}", crate::testing::report().plan.seed)),
        "{page}"
    );
    let picture = pictures::sweep::comparison(&report).unwrap();
    assert!(picture.note[0].contains("Photofinish 0 · 2026-01-01"), "{:?}", picture.note);
}

#[test]
fn no_directory_of_a_machine_is_in_the_title_of_a_study() {
    let mut place = Settings::from([(Axis::PromptTokens, Setting::Number(4))]);
    place.insert(Axis::Model, Setting::Name("~/models/tiny".into()));
    let cells = vec![cell(place, [50.0, 40.0])];
    let report = crate::testing::study("sweep generate", StudyView::Sweep(SweepKind::Generate), cells);
    let page = study::html(&report, true, &|_| true).unwrap();
    let (header, _) = page.split_once("</header>").unwrap();
    assert!(header.contains("<h1>sweep generate on tiny</h1>") && !header.contains("~/models"), "{header}");
}
