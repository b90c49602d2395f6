//! The tables of `ab optimised`: the gain of each switch, and the figures of every combination.

use judge::metrics::Metric;
use judge::report::crossed::{Contribution, Effect};
use judge::report::{State, number};
use judge::study::report::axes;
use judge::study::{Cell, StudyReport};
use plan::{Axis, StudyView};

use super::grids::places;
use super::words::crossed::{amount, times};
use crate::screen::Tone;
use crate::table::{self, Column, Table};
use crate::words::titled;
use crate::words::verdicts::word;
use crate::words::{DASH, or_dash};

/// The figures of a combination.
const FIGURES: [Metric; 3] = [Metric::Throughput, Metric::Total, Metric::PeakMemory];

/// A row for each framework and switch, and one for all together.
pub(crate) fn contributions(report: &StudyReport) -> Table {
    let axes = axes(report);
    let titles = axes.iter().map(|axis| axis.title()).chain(["Switch"]).map(Column::left);
    let figures = ["Alone", "Left out", "Share", "Verdict"].map(Column::right);
    let mut table = Table::new(titles.chain(figures));
    for cell in &report.cells {
        let start = |what: &str| places(&axes, &cell.settings).into_iter().chain([what.into()]);
        match &cell.crossed {
            Some(crossed) => {
                for part in crossed.switches.iter().chain([&crossed.together]) {
                    table.add(start(&part.switch).chain(figures_of(part)));
                }
            }
            None => {
                let nothing = [DASH, DASH, DASH, "not run"].map(table::Cell::from);
                table.add(start(DASH).chain(nothing));
            }
        }
    }
    table.captioned(
        "How many times as fast: alone, switched on first; left out, switched off last; share, the mean over all orders. \
         Shares multiply to the whole, which is the last of them",
    )
}

fn figures_of(part: &Contribution) -> [table::Cell; 4] {
    // In little room without intervals.
    let cell = |effect: &Option<Effect>| {
        let short = or_dash(effect.as_ref(), |effect| times(effect.ratio));
        table::Cell::from(or_dash(effect.as_ref(), amount)).short(short)
    };
    let verdict = part.share.as_ref().and_then(|share| share.verdict);
    let verdict = or_dash(verdict, |verdict| word(verdict).to_owned());
    [cell(&part.alone), cell(&part.left_out), cell(&part.share), verdict.into()]
}

/// The figures of every combination, with its parity.
pub(crate) fn combinations(report: &StudyReport) -> Option<Table> {
    if report.view != StudyView::Crossed || report.cells.iter().all(|cell| cell.rows.is_empty()) {
        return None;
    }
    let axes: Vec<Axis> = axes(report).into_iter().filter(|axis| *axis != Axis::Framework).collect();
    let titles = axes.iter().map(|axis| axis.title()).chain(["Switched on"]).map(Column::left);
    let figures = FIGURES.map(Metric::short_title).into_iter().chain(["Parity"]).map(Column::right);
    let mut table = Table::new(titles.chain(figures));
    for cell in &report.cells {
        for row in &cell.rows {
            let tone = if row.state == State::Struck { Tone::Struck } else { Tone::Plain };
            let name = titled(&row.framework, row.state, &row.reasons);
            let figures = FIGURES.map(|metric| or_dash(row.typical(metric), number));
            let figures = figures.into_iter().chain([row.parity.clone()]);
            let figures = figures.map(|text| table::Cell::from(text).toned(tone));
            table.add(places(&axes, &cell.settings).into_iter().chain([name.into()]).chain(figures));
        }
    }
    Some(table.captioned("Every combination: geometric means over rounds"))
}

/// The ratios of a cell for spreadsheets: name, then ratio and interval.
pub(super) fn lines(cell: &Cell) -> Vec<(String, [Option<f64>; 3])> {
    let Some(crossed) = &cell.crossed else { return Vec::new() };
    let of_part = |part: &Contribution| {
        let named = [("alone", &part.alone), ("left_out", &part.left_out), ("share", &part.share)];
        let line = |(order, effect): (&str, &Option<Effect>)| {
            let effect = effect.as_ref()?;
            let (low, high) = effect.interval.unzip();
            Some((format!("{}_{order}", part.switch.to_lowercase()), [Some(effect.ratio), low, high]))
        };
        named.into_iter().filter_map(line).collect::<Vec<_>>()
    };
    crossed.switches.iter().chain([&crossed.together]).flat_map(of_part).collect()
}
