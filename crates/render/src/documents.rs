//! Every document as people and spreadsheets see it: a visible change is a reviewable diff of `snapshots`.

use comparison::judge::Metric;
use comparison::judge::report::generate::Point;
use comparison::judge::study::{Cell, StudyReport};
use comparison::plan::sweep::SweepKind;
use comparison::plan::{Axis, Setting, Settings, StudyView};

use crate::combined::Combined;
use crate::combined::tests::three as runs_combined;
use crate::export::{Csv, Document, Exporter, Markdown};
use crate::history::tests::{apart, found, four, records};
use crate::history::{Found, List, Trends};
use crate::layer_parity::tests::parity;
use crate::regression::tests::slower;
use crate::result::precisions::Precisions;
use crate::result::tests::{memory, two_prompts};
use crate::table::{Screen, WIDTH, width};
use crate::testing::{at, cell, report, study};
use crate::words::answer::tests::{crowd, three, two_ends};

/// Shows every document, by name.
fn each(mut show: impl FnMut(&str, &dyn Document)) {
    show("compare", &report());
    show("compare-prompts", &two_prompts());
    show("compare-memory", &memory());
    show("compare-three", &three());
    show("compare-crowd", &crowd());
    show("compare-two-ends", &two_ends());
    show("quantize", &Precisions(&[report(), two_prompts()]));
    let cells = || vec![cell(at(Axis::Batch, 1), [50.0, 40.0]), cell(at(Axis::Batch, 4), [100.0, 160.0])];
    let refused = Cell::refused(at(Axis::Batch, 64), "it does not fit into memory".into());
    let sweep = |name: &str, kind, cells| study(name, StudyView::Sweep(kind), cells);
    show("sweep", &sweep("sweep generate", SweepKind::Generate, [cells(), vec![refused]].concat()));
    show("sweep-memory", &sweep("sweep memory", SweepKind::Memory, cells()));
    show("sweep-warmup", &sweep("sweep warmup", SweepKind::Warmup, vec![warming_up()]));
    let arms = StudyView::Ab(["fused".to_owned(), "base".to_owned()]);
    show("ab", &study("ab fused", arms.clone(), cells()));
    show("ab-one", &study("ab fused", arms, vec![cell(at(Axis::PromptTokens, 16), [50.0, 40.0])]));
    show("published", &published());
    show("check", &slower());
    show("combined", &Combined(&runs_combined()));
    show("parity", &parity());
    show("history", &List(found(&records(), &[])));
    show("history-asked", &List(found(&records(), &[Metric::Latency])));
    show("history-apart", &List(Found { apart: &apart(), ..found(&apart(), &[]) }));
    show("trends", &Trends(found(&four(), &[])));
}

/// A cell of one framework that becomes faster.
fn warming_up() -> Cell {
    let mut cell = cell(Settings::new(), [50.0, 40.0]);
    let point = |iteration: usize, gap_ms: f64| Point {
        iteration,
        processes: 1,
        warmup: 0,
        first_token_ms: 2.0 * gap_ms,
        gap_ms: Some(gap_ms),
        ratio: None,
    };
    cell.rows[0].steadiness.curve = vec![point(1, 30.0), point(2, 20.0)];
    cell.rows.truncate(1);
    cell
}

/// A study with published figures, one of a framework that was not measured.
fn published() -> StudyReport {
    let row = |name: &str, framework: &str| configs::PublishedRow {
        name: name.into(),
        framework: framework.into(),
        precision: bundle::Precision::F32,
        figures: [("load".to_owned(), 15.66), ("throughput".to_owned(), 81.4)].into(),
    };
    let theirs = configs::Published {
        source: "A guide".into(),
        conditions: "a GPU".into(),
        rows: vec![row("theirs", "candle"), row("another", "nobody")],
    };
    let at = |precision: &str| {
        let named = |name: &str| Setting::Name(name.into());
        Settings::from([(Axis::Model, named("small")), (Axis::Precision, named(precision))])
    };
    let cells = vec![cell(at("f32"), [50.0, 40.0]), cell(at("f16"), [70.0, 60.0])];
    StudyReport { published: Some(theirs), ..study("sweep size", StudyView::Sweep(SweepKind::Size), cells) }
}

#[test]
fn every_document_is_shown_as_it_was() {
    each(|name, document| {
        let csv = Csv.export(document);
        let lines: Vec<&str> = csv.lines().take(4).collect();
        let formats =
            [Screen::plain(WIDTH).export(document), Markdown::Whole.export(document), lines.join("\n")];
        insta::assert_snapshot!(name, formats.join("\n"));
    });
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for columns in [60, 80, 100, 120] {
        for verbose in [false, true] {
            let screen = Screen { verbose, ..Screen::plain(columns) };
            each(|name, document| {
                let text = screen.export(document);
                assert!(width(&text) <= columns, "{name} at {columns} columns:\n{text}");
                assert!(text.lines().count() > 2, "{name} is empty: {text}");
            });
        }
    }
}
