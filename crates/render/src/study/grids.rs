//! The tables of a study, and a line for each of its figures.

use comparison::judge::metrics::Metric;
use comparison::judge::report::number;
use comparison::judge::study::axes;
use comparison::judge::study::columns::{self, Column as Shown};
use comparison::judge::study::{self, Outcome, Side, StudyReport};
use comparison::judge::study::{Cell, CellRow};
use comparison::plan::sweep::SweepKind;
use comparison::plan::{Axis, Settings, StudyView};
use serde_json::json;

use crate::flat::{self, Line};
use crate::table::Tone;
use crate::table::{self, Table};
use crate::words::titled;
use crate::words::verdicts::word;
use crate::words::{self, DASH, or_dash};

fn places(axes: &[Axis], settings: &Settings) -> impl Iterator<Item = String> {
    axes.iter().map(|axis| or_dash(settings.get(axis), ToString::to_string))
}

/// A row for each cell and framework. With `ranges`, the least and the largest of each figure are below its median.
pub(super) fn sweep(report: &StudyReport, kind: SweepKind, ranges: bool) -> Table {
    let (axes, shown) = (axes(report), columns::columns(kind, &report.cells));
    let titles = axes.iter().map(|axis| axis.title()).chain(["Framework"]);
    let mut table = Table::of(titles, shown.iter().map(|column| column.title()));
    for cell in &report.cells {
        for row in &cell.rows {
            let figure = |column: &Shown| {
                let small = range(*column, row).filter(|_| ranges);
                table::Cell::with_small(column.text(cell, row, &report.scaling), words::range(small))
            };
            let tone = Tone::of(row.state);
            let name = titled(&row.framework, row.state, &row.reasons);
            let start = places(&axes, &cell.settings).chain([name]);
            table.push(start, shown.iter().map(|column| figure(column).toned(tone)));
        }
        if cell.refused.is_some() {
            let nothing = std::iter::repeat_n(DASH, shown.len().saturating_sub(1));
            table.push(places(&axes, &cell.settings).chain(["all".to_owned()]), nothing.chain(["not run"]));
        }
    }
    table.captioned(if ranges {
        "Geometric means over rounds; below them the least and the most"
    } else {
        "Geometric means over rounds"
    })
}

/// The least and the largest figure of a metric over processes, if they differ.
fn range(column: Shown, row: &CellRow) -> Option<(f64, f64)> {
    let Shown::Metric(metric) = column else { return None };
    let figure = row.metrics.get(&metric)?;
    (figure.min < figure.max).then_some((figure.min, figure.max))
}

/// Each framework with the optimisation and without it.
pub(super) fn ab(report: &StudyReport, arms: &[String; 2]) -> Table {
    let axes = axes(report);
    let are_mistakes = study::has_mistakes(&report.planned);
    let throughput = report.cells.first().map_or(Metric::Throughput, study::throughput);
    let unit = if are_mistakes { "ms" } else { throughput.unit() };
    let [with, without] = arms.each_ref().map(|arm| format!("{arm} ({unit})"));
    let times = if are_mistakes { "Times as long" } else { "Speed-up" };
    let figures = [times, "95 % interval", "Verdict", "Memory", "Same tokens", "Parity"];
    let figures = [with, without].into_iter().chain(figures.map(str::to_owned));
    let mut table = Table::of(axes.iter().map(|axis| axis.title()), figures);
    for outcome in &report.outcomes {
        let figure = |side: &Side| if are_mistakes { side.total_ms } else { side.throughput };
        let mut cells = outcome_cells(outcome, figure);
        if are_mistakes {
            // The cost of a mistake, not the saving of doing without it.
            cells[5] = memory(outcome.memory_change.map(|change| 1.0 / (1.0 + change) - 1.0));
        }
        table.push(places(&axes, &outcome.settings), cells);
    }
    if are_mistakes {
        return table.captioned("Time of a request without and with each mistake, the most expensive first");
    }
    let what = if throughput == Metric::Throughput { "Decoded tokens" } else { "Texts" };
    table.captioned(format!("{what} per second with and without, and how many times as fast"))
}

/// A line for each arm: the time of a request and of a token, the throughput and the peak memory.
pub(super) fn arms(report: &StudyReport) -> Option<Table> {
    // An arm's name has the framework's.
    let axes: Vec<Axis> = axes(report).into_iter().filter(|axis| *axis != Axis::Framework).collect();
    let metrics = report.cells.first().map(study::arm_metrics).filter(|_| !report.outcomes.is_empty())?;
    let titles = axes.iter().map(|axis| axis.title()).chain(["Arm"]);
    let mut table = Table::of(titles, metrics.iter().map(|metric| metric.short_title()));
    for cell in &report.cells {
        for row in &cell.rows {
            let start = places(&axes, &cell.settings).chain([row.framework.clone()]);
            table.push(start, metrics.iter().map(|&metric| or_dash(row.typical(metric), number)));
        }
    }
    (!table.rows.is_empty()).then(|| table.captioned("Each arm, geometric means over rounds"))
}

fn outcome_cells(outcome: &Outcome, figure: impl Fn(&Side) -> Option<f64>) -> [String; 8] {
    let speed = |side: &Option<Side>| or_dash(side.as_ref().and_then(&figure), number);
    let [a, b] = &outcome.parity;
    let tokens = (outcome.tokens > 0).then_some((outcome.same_tokens, outcome.tokens));
    [
        speed(&outcome.a),
        speed(&outcome.b),
        or_dash(outcome.speedup, |times| format!("{times:.2}x")),
        or_dash(outcome.interval, |(low, high)| format!("{low:.2}–{high:.2}")),
        or_dash(outcome.verdict, |verdict| word(verdict).to_owned()),
        memory(outcome.memory_change),
        or_dash(tokens, |(same, all)| format!("{same} of {all}")),
        if a == b { a.clone() } else { format!("{a} / {b}") },
    ]
}

fn memory(change: Option<f64>) -> String {
    or_dash(change, |change| format!("{:+.1} %", 100.0 * change))
}

/// The iterations from the first, for a study of warm-up.
pub(crate) fn curve(report: &StudyReport) -> Option<Table> {
    if report.view != StudyView::Sweep(SweepKind::Warmup) {
        return None;
    }
    let rows: Vec<&CellRow> = report.cells.iter().flat_map(|cell| &cell.rows).collect();
    let longest = rows.iter().map(|row| row.steadiness.curve.len()).max().filter(|&longest| longest > 0)?;
    let titles =
        rows.iter().flat_map(|row| [format!("{} first token (ms)", row.framework), "ms a token".into()]);
    let mut table = Table::of(["Iteration"], titles);
    for index in 0..longest {
        let figures = rows.iter().flat_map(|row| {
            let point = row.steadiness.curve.get(index);
            let first_token = point.map(|point| point.first_token_ms);
            [first_token, point.and_then(|point| point.gap_ms)].map(|value| or_dash(value, number))
        });
        table.push([(index + 1).to_string()], figures);
    }
    Some(table.captioned("Iterations from the first, medians over processes"))
}

// The figures that a suite's source published, and those of this machine below each.

pub(crate) const PUBLISHED: &str = "Published figures, and ours";

const PUBLISHED_FIGURES: [Metric; 5] =
    [Metric::Load, Metric::ColdStart, Metric::Latency, Metric::Throughput, Metric::PeakMemory];

/// Each published row, followed by a row for each cell that measured the column compared with it.
pub(crate) fn published(report: &StudyReport) -> Option<Table> {
    let published = report.published.as_ref()?;
    let mut table = Table::of(["Row", "Model"], PUBLISHED_FIGURES.map(Metric::short_title));
    for row in &published.rows {
        let figure = |metric: Metric| or_dash(row.figures.get(metric.name()).copied(), number);
        table.push([&format!("Published: {}", row.name), "the source's"], PUBLISHED_FIGURES.map(figure));
        let precision = row.precision.name();
        let at =
            |cell: &&Cell| cell.settings.get(&Axis::Precision).is_none_or(|at| at.to_string() == precision);
        for cell in report.cells.iter().filter(at) {
            let model = or_dash(cell.settings.get(&Axis::Model), ToString::to_string);
            let name = format!("{}, {precision}", row.framework);
            // Ours: the figures, or that there are none, and why is in the table of the study.
            let Some(ours) = cell.rows.iter().find(|ours| ours.framework == row.framework) else {
                let why = if cell.refused.is_some() { "not run" } else { "not measured" };
                table.push([format!("{name}: {why}"), model], [DASH; PUBLISHED_FIGURES.len()]);
                continue;
            };
            let tone = Tone::of(ours.state);
            let toned = |text: String| table::Cell::from(text).toned(tone);
            let start = [titled(&name, ours.state, &ours.reasons), model].map(toned);
            table.push(start, PUBLISHED_FIGURES.map(|metric| toned(or_dash(ours.typical(metric), number))));
        }
    }
    Some(table.captioned(format!(
        "Published by {}, measured with {}; the figures of this machine are below each row. They are of other hardware: \
         compare rows with each other, not with the source's",
        published.source, published.conditions
    )))
}

// A line for each cell, framework and figure.

/// Name and figures of one metric: median, least, most.
type Figure = (String, [Option<f64>; 3]);

/// The columns after a cell's place.
const TITLES: [&str; 8] = ["contender", "state", "parity", "metric", "median", "min", "max", "rounds"];

fn column(axis: Axis) -> String {
    axis.title().to_lowercase().replace(' ', "_")
}

/// The figures of all cells under one header.
pub(super) fn figures(report: &StudyReport) -> Table {
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
            for figure in figures_of(&report.view, cell, row) {
                add([&row.framework, row.state.name(), &row.parity], figure);
            }
        }
    }
    let titles: Vec<String> =
        axes.iter().map(|axis| column(*axis)).chain(TITLES.map(str::to_owned)).collect();
    flat::table(&titles.iter().map(String::as_str).collect::<Vec<_>>(), &lines)
}

fn figures_of(view: &StudyView, cell: &Cell, row: &CellRow) -> Vec<Figure> {
    let mut figures = Vec::new();
    if row.metrics.is_empty() {
        figures.push(Figure::default());
    }
    for (metric, figure) in &row.metrics {
        figures.push((metric.name().to_owned(), [figure.median, figure.min, figure.max].map(Some)));
    }
    if let StudyView::Sweep(kind) = view {
        let own = columns::columns(*kind, std::slice::from_ref(cell)).into_iter();
        let own = own.filter(|column| !matches!(column, Shown::Metric(_)));
        figures.extend(own.filter_map(|column| {
            Some((column.name()?.to_owned(), [Some(column.value(cell, row)?), None, None]))
        }));
    }
    figures
}
