//! Renderings of studies as snapshots.

use comparison::judge::report::generate::Point;
use comparison::judge::study::Cell;
use comparison::plan::sweep::SweepKind;
use comparison::plan::{Axis, Setting, Settings, StudyView};
use insta::assert_snapshot;

use super::*;
use crate::export::{Csv, Exporter, Markdown};
use crate::table::WIDE;
use crate::testing::{cell, study};

fn at(axis: Axis, value: u32) -> Settings {
    Settings::from([(axis, Setting::Number(value)), (Axis::NewTokens, Setting::Number(32))])
}

fn sweep() -> StudyReport {
    let refused = Cell::refused(at(Axis::Batch, 64), "it does not fit into memory".into());
    let cells =
        vec![cell(at(Axis::Batch, 1), [50.0, 40.0]), cell(at(Axis::Batch, 4), [100.0, 160.0]), refused];
    study("sweep generate", StudyView::Sweep(SweepKind::Generate), cells)
}

#[test]
fn a_sweep_has_a_row_for_each_cell_and_framework() {
    assert_snapshot!(WIDE.export(&sweep()), @r"
    ort decodes fastest in 2 of 2 cells.

    sweep generate: 3 cells, 6 rounds each

      Batch  New tokens  Framework  First Token (ms)  Prefill (tok/s)  Latency (ms)  Decode (tok/s)  Peak (GB)  Against the first       Parity
       1     32          candle                    –                –          20.0            50.0      0.700      1.00x (100 %)  not checked
       1     32          ort                       –                –          25.0            40.0      0.700      1.00x (100 %)  not checked
       4     32          candle                    –                –          10.0             100      0.700       2.00x (50 %)  not checked
       4     32          ort                       –                –          6.25             160      0.700      4.00x (100 %)  not checked
      64     32          all                       –                –             –               –          –                  –      not run
    batch 64, new tokens 32: not run: it does not fit into memory
    batch 1, new tokens 32: ort decodes 1.90x as fast as candle (1.80–2.00)
    batch 4, new tokens 32: ort decodes 1.90x as fast as candle (1.80–2.00)
    warning: 2 cells, batch 1, new tokens 32 the first: odd: it kept 1.0 of 2 threads busy (R5)

    Every comparison, and report.html: results/study
    ");
}

#[test]
fn a_spreadsheet_has_a_line_for_each_cell_framework_and_figure() {
    let text = Csv.export(&sweep());
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| ["metric", "throughput", "not_run"].iter().any(|word| line.contains(word)))
        .collect();
    assert_snapshot!(lines.join("\n"), @r"
    batch,new_tokens,contender,state,parity,metric,median,min,max,rounds
    1,32,candle,measured,not checked,throughput,50,50,50,6
    1,32,ort,measured,not checked,throughput,40,40,40,6
    4,32,candle,measured,not checked,throughput,100,100,100,6
    4,32,ort,measured,not checked,throughput,160,160,160,6
    64,32,,not_run,not run,,,,,0
    ");
}

#[test]
fn with_and_without_stand_side_by_side() {
    let arms = ["fused".to_owned(), "base".to_owned()];
    let cells = vec![cell(at(Axis::PromptTokens, 16), [50.0, 40.0])];
    assert_snapshot!(Markdown::Whole.export(&study("ab fused", StudyView::Ab(arms), cells)), @r"
    **fused against base: slower in 1 of 1 cell (1.90x).**

    ab fused (prompt 16, new tokens 32): 1 cells, 6 rounds each

    | fused (tok/s) | base (tok/s) | Speed-up | 95 % interval | Verdict | Memory | Same tokens |      Parity |
    |--------------:|-------------:|---------:|--------------:|--------:|-------:|------------:|------------:|
    |          50.0 |         40.0 |    0.53x |     0.50–0.56 |  slower | +0.0 % |           – | not checked |

    - warning: odd: it kept 1.0 of 2 threads busy (R5)
    ");
}

#[test]
fn a_study_of_warm_up_shows_its_iterations() {
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
    let report = study("sweep warmup", StudyView::Sweep(SweepKind::Warmup), vec![cell]);
    assert_snapshot!(curve(&report).unwrap().markdown(), @r"
    | Iteration | candle first token (ms) | ms a token |
    |-----------|------------------------:|-----------:|
    | 1         |                    60.0 |       30.0 |
    | 2         |                    40.0 |       20.0 |
    ");
    assert!(
        WIDE.export(&report).contains("ms a token") && Markdown::Whole.export(&report).contains("ms a token")
    );
    assert!(curve(&sweep()).is_none());
}

#[test]
fn published_rows_have_ours_below_them_and_what_is_missing_says_so() {
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
        Settings::from([
            (Axis::Model, Setting::Name("small".into())),
            (Axis::Precision, Setting::Name(precision.into())),
        ])
    };
    let cells = vec![cell(at("f32"), [50.0, 40.0]), cell(at("f16"), [70.0, 60.0])];
    let report = StudyReport {
        published: Some(theirs),
        ..study("sweep size", StudyView::Sweep(SweepKind::Size), cells)
    };
    let table = published(&report).unwrap();
    let lines: Vec<String> = table
        .rows
        .iter()
        .map(|row| row.iter().map(|cell| cell.main.as_str()).collect::<Vec<_>>().join(" | "))
        .collect();
    // Of f32 alone, which the rows are of.
    assert_eq!(
        lines,
        [
            "Published: theirs | the source's | 15.7 | – | – | 81.4 | –",
            "candle, f32 | small | 0.500 | 80.0 | 20.0 | 50.0 | 0.700",
            "Published: another | the source's | 15.7 | – | – | 81.4 | –",
            "nobody, f32: not measured | small | – | – | – | – | –",
        ]
    );
    assert!(published(&sweep()).is_none());
}
