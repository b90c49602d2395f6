//! The figures that a suite's source published, and those of this machine below each.

use judge::metrics::Metric;
use judge::report::{State, number};
use judge::study::{Cell, CellRow, StudyReport};
use plan::Axis;

use crate::screen::Tone;
use crate::table::{self, Column, Table};
use crate::words::{DASH, or_dash, titled};

/// Title of the table.
pub(crate) const TITLE: &str = "Published figures, and ours";

/// The metrics that published tables have.
const FIGURES: [Metric; 5] =
    [Metric::Load, Metric::ColdStart, Metric::Latency, Metric::Throughput, Metric::PeakMemory];

/// Each published row, followed by a row for each cell that measured the column compared with it.
pub(crate) fn table(report: &StudyReport) -> Option<Table> {
    let published = report.published.as_ref()?;
    let titles = ["Row", "Model"].map(Column::left).into_iter();
    let mut table = Table::new(titles.chain(FIGURES.map(|metric| Column::right(metric.short_title()))));
    for row in &published.rows {
        let figure = |metric: Metric| or_dash(row.figures.get(metric.name()).copied(), number);
        let start = [format!("Published: {}", row.name), "the source's".to_owned()];
        table.add(start.into_iter().chain(FIGURES.map(figure)).map(table::Cell::from));
        let precision = row.precision.name();
        let at =
            |cell: &&Cell| cell.settings.get(&Axis::Precision).is_none_or(|at| at.to_string() == precision);
        for cell in report.cells.iter().filter(at) {
            let model = or_dash(cell.settings.get(&Axis::Model), ToString::to_string);
            let name = format!("{}, {precision}", row.framework);
            let ours = cell.rows.iter().find(|ours| ours.framework == row.framework);
            table.add(line(name, model, ours, cell.refused.is_some()));
        }
    }
    Some(table.captioned(format!(
        "Published by {}, measured with {}; the figures of this machine are below each row. They are of other hardware: \
         compare rows with each other, not with the source's",
        published.source, published.conditions
    )))
}

/// Ours: the figures, or that there are none, and why is in the table of the study.
fn line(name: String, model: String, ours: Option<&CellRow>, is_refused: bool) -> Vec<table::Cell> {
    let Some(row) = ours else {
        let why = if is_refused { "not run" } else { "not measured" };
        let nothing = FIGURES.map(|_| DASH.to_owned());
        return [format!("{name}: {why}"), model].into_iter().chain(nothing).map(table::Cell::from).collect();
    };
    let tone = if row.state == State::Struck { Tone::Struck } else { Tone::Plain };
    let figures = FIGURES.map(|metric| or_dash(row.typical(metric), number));
    let start = [titled(&name, row.state, &row.reasons), model];
    start.into_iter().chain(figures).map(|text| table::Cell::from(text).toned(tone)).collect()
}
