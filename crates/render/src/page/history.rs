//! The page of the history: performance over time, separately for each machine and case.

use charts::{Figure, Panel, number};
use history::{Machine, Record};
use judge::Metric;
use maud::{Markup, html};

use super::html::{self, Chart};
use crate::pictures;
use crate::pictures::over_time::Group;
use crate::table::{Cell, Column, Table};
use crate::words::{self, DASH};

const TITLE: &str = "Performance over time";

/// The metrics that are shown over time.
const METRICS: [Metric; 3] = [Metric::Throughput, Metric::Latency, Metric::PeakMemory];

pub(super) fn html(groups: &[Group<'_>], skipped: usize) -> Result<String, String> {
    let all = groups.iter().flat_map(|group| &group.records);
    let runs = words::distinct(all.map(|record| record.run.clone())).len();
    let sections: Vec<Markup> =
        groups.iter().enumerate().map(|(index, group)| section(index, group)).collect::<Result<_, _>>()?;
    let body = html! {
        header {
            h1 { (TITLE) }
            p class="muted" { (runs) " runs; each machine, model and setting has its own section" }
            @if skipped > 0 { p { (skipped) " lines of the history could not be read and are not here." } }
        }
        @for section in sections { (section) }
    };
    Ok(html::document(TITLE, &body))
}

fn section(index: usize, group: &Group<'_>) -> Result<Markup, String> {
    let chart = |&metric: &Metric| Chart {
        id: format!("{}-{index}", metric.name()),
        title: format!("{} over time", metric.title()),
        description: "A line for each framework over the time of its runs, with 95 % intervals; the table has the figures",
        figure: Figure::single(Panel::Lines(group.lines(metric.title(), &pictures::better(metric), metric))),
        height: 300,
        table: None,
    };
    let is_known =
        |metric: &&Metric| group.records.iter().any(|record| record.metrics.contains_key(metric.name()));
    // One run is not a development over time; its figures are in the table.
    let charts: Vec<Chart> =
        METRICS.iter().filter(|_| group.runs() > 1).filter(is_known).map(chart).collect();
    let body = html! {
        (html::paragraph(&place(group.machine)))
        (html::charts(&charts)?)
        (html::details("Every run", &html! { (table(group)) }))
    };
    Ok(html::section(&group.title(), &body))
}

fn place(machine: &Machine) -> String {
    format!(
        "{} ({}), {} cores, {:.0} GB, {}; fingerprint {}",
        machine.host,
        machine.cpu,
        machine.available_cores,
        machine.memory_bytes as f64 / 1e9,
        machine.os.as_deref().unwrap_or("unknown system"),
        machine.fingerprint
    )
}

fn table(group: &Group<'_>) -> Table {
    let start = ["Time (UTC)", "Commit", "Framework"].map(Column::left);
    let figures = METRICS.map(|metric| Column::right(metric.short_title()));
    let end = [Column::right("Rounds"), Column::left("Parity"), Column::left("State")];
    let mut table = Table::new(start.into_iter().chain(figures).chain(end));
    for record in group.records.iter().rev() {
        let start = [words::second(&record.time), words::commit(record), record.framework.clone()];
        let parity = record.parity.as_ref();
        let parity = parity.map_or("not checked", |parity| if parity.agrees { "ok" } else { "BROKEN" });
        let end = [record.rounds.to_string(), parity.to_owned(), record.state.replace('_', " ")];
        let figures = METRICS.map(|metric| figure(record, metric));
        table.add(start.map(Cell::from).into_iter().chain(figures).chain(end.map(Cell::from)));
    }
    table
        .captioned("Medians over processes with their 95 % intervals; a + after a commit means local changes")
}

/// A figure, or a dash with the reason below it.
fn figure(record: &Record, metric: Metric) -> Cell {
    match record.metrics.get(metric.name()) {
        Some(figure) => Cell::with_small(number(figure.median), words::range(figure.interval)),
        None => Cell::with_small(DASH, record.reasons.first().cloned().unwrap_or_default()),
    }
}
