//! A line for each cell, framework and figure.

use comparison::judge::study::columns::{self, Column};
use comparison::judge::study::{Cell, CellRow, StudyReport};
use comparison::plan::{Axis, StudyView};

use crate::table::Table;
use crate::words;

const TITLES: [&str; 8] = ["contender", "state", "parity", "metric", "median", "min", "max", "rounds"];

/// The fields after a cell's place: name and figures of one metric.
type Line = (String, [Option<f64>; 3]);

/// The figures as CSV, for spreadsheets.
pub fn csv(report: &StudyReport) -> String {
    let planned = report.planned.first().into_iter();
    let axes: Vec<Axis> = planned.flat_map(|settings| settings.keys().copied()).collect();
    let names = axes.iter().map(|axis| axis.title().to_lowercase().replace(' ', "_"));
    let mut table = Table::plain(names.chain(TITLES.map(str::to_owned)));
    for cell in &report.cells {
        let mut add = |start: [String; 3], (metric, figures): Line| {
            let place =
                axes.iter().map(|axis| cell.settings.get(axis).map_or(String::new(), ToString::to_string));
            let figures = figures.map(words::exact);
            table.add(place.chain(start).chain([metric]).chain(figures).chain([cell.rounds.to_string()]));
        };
        if cell.refused.is_some() {
            add(["", "not_run", "not run"].map(str::to_owned), Line::default());
        }
        for row in &cell.rows {
            let start = [row.framework.clone(), row.state.name().to_owned(), row.parity.clone()];
            for line in lines(&report.view, cell, row) {
                add(start.clone(), line);
            }
        }
    }
    table.csv()
}

fn lines(view: &StudyView, cell: &Cell, row: &CellRow) -> Vec<Line> {
    let mut lines = Vec::new();
    if row.metrics.is_empty() {
        lines.push(Line::default());
    }
    for (metric, figure) in &row.metrics {
        lines.push((metric.name().to_owned(), [figure.median, figure.min, figure.max].map(Some)));
    }
    let StudyView::Sweep(kind) = view else { return lines };
    let own = columns::columns(*kind, std::slice::from_ref(cell)).into_iter();
    let own = own.filter(|column| !matches!(column, Column::Metric(_)));
    lines.extend(
        own.filter_map(|column| Some((column.name()?, [Some(column.value(cell, row)?), None, None]))),
    );
    lines
}
