//! A line for each cell, framework and figure.

use comparison::judge::study::columns::{self, Column};
use comparison::judge::study::{Cell, CellRow, StudyReport};
use comparison::plan::{Axis, StudyView};
use serde_json::json;

use crate::flat::{self, Line};
use crate::table::Table;

/// Name and figures of one metric: median, least, most.
type Figure = (String, [Option<f64>; 3]);

/// The columns after a cell's place.
const TITLES: [&str; 8] = ["contender", "state", "parity", "metric", "median", "min", "max", "rounds"];

fn column(axis: Axis) -> String {
    axis.title().to_lowercase().replace(' ', "_")
}

/// The figures of all cells under one header.
pub(super) fn table(report: &StudyReport) -> Table {
    let planned = report.planned.first().into_iter();
    let axes: Vec<Axis> = planned.flat_map(|settings| settings.keys().copied()).collect();
    let mut lines = Vec::new();
    for cell in &report.cells {
        let mut add = |[contender, state, parity]: [&str; 3], (metric, [median, min, max]): Figure| {
            let place = axes
                .iter()
                .map(|axis| (column(*axis), json!(cell.settings.get(axis).map(ToString::to_string))));
            let figures = flat::line([
                ("contender", json!(contender)),
                ("state", json!(state)),
                ("parity", json!(parity)),
                ("metric", json!(metric)),
                ("median", json!(median)),
                ("min", json!(min)),
                ("max", json!(max)),
                ("rounds", json!(cell.rounds)),
            ]);
            lines.push(place.chain(figures).collect::<Line>());
        };
        if cell.refused.is_some() {
            add(["", "not_run", "not run"], Figure::default());
        }
        for row in &cell.rows {
            for figure in figures(&report.view, cell, row) {
                add([&row.framework, row.state.name(), &row.parity], figure);
            }
        }
    }
    let titles: Vec<String> =
        axes.iter().map(|axis| column(*axis)).chain(TITLES.map(str::to_owned)).collect();
    flat::table(&titles.iter().map(String::as_str).collect::<Vec<_>>(), &lines)
}

fn figures(view: &StudyView, cell: &Cell, row: &CellRow) -> Vec<Figure> {
    let mut figures = Vec::new();
    if row.metrics.is_empty() {
        figures.push(Figure::default());
    }
    for (metric, figure) in &row.metrics {
        figures.push((metric.name().to_owned(), [figure.median, figure.min, figure.max].map(Some)));
    }
    if let StudyView::Sweep(kind) = view {
        let own = columns::columns(*kind, std::slice::from_ref(cell)).into_iter();
        let own = own.filter(|column| !matches!(column, Column::Metric(_)));
        figures.extend(own.filter_map(|column| {
            Some((column.name()?.to_owned(), [Some(column.value(cell, row)?), None, None]))
        }));
    }
    figures
}
