//! Results: the journal and the report of a comparison, and the history. Input that is read goes through
//! everything that a user would do with it next.

use std::sync::LazyLock;

use comparison::facts::{Environment, Evidence, Fact};
use comparison::history::{Filter, History};
use comparison::judge;
use comparison::judge::report::generate::Times;
use comparison::judge::report::{self, Facts, Report};
use comparison::plan;
use comparison::plan::Plan;
use render::history::{Found, List, Trends};
use render::table::Screen;
use render::{Document, Exporter, Format, Markdown, export};
use serde_json::Value;

use crate::roundtrip::written_and_read;
use crate::{Outcome, text};

/// The comparison that journals are of.
static SCENE: LazyLock<Facts> = LazyLock::new(|| {
    let plan: Value =
        serde_json::from_str(include_str!("../../crates/comparison/tests/fixtures/candle-ort/plan.json"))
            .expect("it is JSON");
    let environment = include_str!("../../crates/comparison/tests/fixtures/candle-ort/environment.json");
    Facts {
        model: serde_json::from_value(plan["prepared"].clone()).expect("a model"),
        plan: serde_json::from_value(plan).expect("a plan"),
        environment: serde_json::from_str::<Environment>(environment).expect("an environment"),
        evidence: Evidence::default(),
        results: "results/scene".to_owned(),
    }
});

/// The labels in the scene's comparison.
pub(crate) fn labels() -> Vec<String> {
    SCENE.plan.contenders.iter().map(|contender| contender.label.clone()).collect()
}

/// The scene's plan.
pub(crate) fn plan_of_scene() -> &'static Plan {
    &SCENE.plan
}

/// Lines of `samples.jsonl`.
pub(crate) fn journal(input: &[u8]) -> Outcome {
    let facts: Result<Vec<Fact>, String> = text(input)?.lines().map(Fact::read).collect();
    let evidence = Evidence::from_facts(facts?);
    // As `measure::results` does, before anything is judged.
    let rounds = SCENE.plan.rounds.max();
    if evidence.runs.iter().chain(&evidence.repeated).any(|run| run.round >= rounds) {
        return Err("it has a process of a round that its plan does not have".to_owned());
    }
    judge(evidence.rejudged(&SCENE.plan));
    Ok(())
}

/// Judges the evidence of the scene's comparison, and shows the report.
pub(crate) fn judge(evidence: Evidence) {
    let report = Report::new(&Facts { evidence, ..SCENE.clone() });
    let written = export(&report, Format::Json, &Screen::plain(80));
    let read = report::read(&written).expect("a report is read back");
    shown(&read);
}

/// `report.json`.
pub(crate) fn report(input: &[u8]) -> Outcome {
    shown(&report::read(text(input)?)?);
    Ok(())
}

fn shown(report: &Report) {
    let formats = [Format::Table, Format::Markdown, Format::Csv];
    let mut tables: Vec<String> = formats.map(|format| export(report, format, &Screen::plain(80))).into();
    tables.push(Markdown::Short.export(report));
    assert!(tables.iter().all(|table| !table.is_empty()));
    assert_eq!(report.exit_code().max(3), 3);
    judge::records::records(report, None);
}

/// `report.json` as a page with pictures, which takes a hundred times as long as text. The error is the program's own:
/// a picture could not be drawn.
pub(crate) fn page(input: &[u8]) -> Outcome {
    let files = render::page::run(&report::read(text(input)?)?, &Times::default())?;
    assert!(files.iter().all(|(_, contents)| !contents.is_empty()));
    Ok(())
}

/// Lines of `history.jsonl`.
pub(crate) fn history(input: &[u8]) -> Outcome {
    let History { records, skipped } = History::parse(input);
    for record in &records {
        written_and_read(record);
        if let Some(request) = &record.request {
            // `photofinish check` measures this request again.
            let _ = serde_json::from_value::<plan::Request>(request.clone());
        }
    }
    let screen = Screen::plain(80);
    let found = || Found { records: &records, apart: &[], skipped: &skipped, metrics: &[] };
    let documents: [&dyn Document; 2] = [&List(found()), &Trends(found())];
    for format in [Format::Table, Format::Markdown, Format::Csv, Format::Json] {
        for document in documents {
            export(document, format, &screen);
        }
    }
    let pairs = judge::regression::pairing::pair(&records, &records, true);
    judge::regression::pairing::all_differences(&pairs.pairs);
    let found = Filter { last: Some(1), ..Filter::default() }.select(records);
    assert!(found.records.len() <= found.records.capacity());
    match skipped.first() {
        Some(line) if found.records.is_empty() => Err(line.reason.clone()),
        _ => Ok(()),
    }
}
