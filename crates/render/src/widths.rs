//! Nothing is wider than the terminal: every table and every sentence, at several widths.

use comparison::history::Record;
use comparison::judge::regression::testing::record;
use comparison::judge::study::Cell;
use comparison::plan::sweep::SweepKind;
use comparison::plan::{Axis, Setting, Settings, StudyView};

use crate::export::Exporter;
use crate::history::{Found, List, Trends};
use crate::regression;
use crate::result::precisions::Precisions;
use crate::table::{Screen, width};
use crate::testing::{cell, report, study};

const WIDTHS: [usize; 4] = [60, 80, 100, 120];

fn at(axis: Axis, value: u32) -> Settings {
    Settings::from([(axis, Setting::Number(value)), (Axis::NewTokens, Setting::Number(32))])
}

fn cells() -> Vec<Cell> {
    vec![cell(at(Axis::Batch, 1), [50.0, 40.0]), cell(at(Axis::Batch, 4), [100.0, 160.0])]
}

fn found(records: &[Record]) -> Found<'_> {
    Found { records, apart: &[], skipped: &[], metrics: &[] }
}

/// Every text for a terminal, by name.
fn texts(screen: &Screen) -> Vec<(&'static str, String)> {
    let sweep = study("sweep generate", StudyView::Sweep(SweepKind::Generate), cells());
    let memory = study("sweep memory", StudyView::Sweep(SweepKind::Memory), cells());
    let ab = study("ab fused", StudyView::Ab(["fused".to_owned(), "base".to_owned()]), cells());
    let records = vec![record("candle", 100.0), record("candle-transformers-q4_1", 108.0)];
    let reports = [report(), report()];
    vec![
        ("compare", screen.export(&reports[0])),
        ("quantize", screen.export(&Precisions(&reports))),
        ("sweep", screen.export(&sweep)),
        ("sweep memory", screen.export(&memory)),
        ("ab", screen.export(&ab)),
        ("check", screen.export(&regression::tests::slower())),
        ("history", screen.export(&List(found(&records)))),
        ("trend", screen.export(&Trends(found(&records)))),
    ]
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for columns in WIDTHS {
        for verbose in [false, true] {
            let screen = Screen { verbose, ..Screen::plain(columns) };
            for (name, text) in texts(&screen) {
                assert!(width(&text) <= columns, "{name} at {columns} columns:\n{text}");
                assert!(text.lines().count() > 2, "{name} is empty: {text}");
            }
        }
    }
}
