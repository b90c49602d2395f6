//! The page of the history: performance from run to run, separately for each machine and case.

use comparison::history::{Machine, Record, counted};
use comparison::judge::{Metric, records};
use maud::{Markup, html};

use super::{Chart, Shared};
use crate::charts::Panel;
use crate::history::state;
use crate::page;
use crate::pictures;
use crate::pictures::over_time::{self, Group};
use crate::table::{Cell, Column, Table};
use crate::trends::{FEWEST_RUNS, trends};
use crate::words::{self, DASH};

const TITLE: &str = "Performance over time";

const METRICS: [Metric; 3] = [Metric::Throughput, Metric::Latency, Metric::PeakMemory];

/// The page of these groups; `apart` are the records that are excluded from trends.
pub(super) fn html(groups: &[Group<'_>], apart: &[&Record], skipped: usize) -> Result<String, String> {
    let all = groups.iter().flat_map(|group| &group.records);
    let runs = words::distinct(all.map(|record| record.run.clone())).len();
    let sections: Vec<Markup> = groups
        .iter()
        .enumerate()
        .map(|(index, group)| group_section(index, group))
        .collect::<Result<_, _>>()?;
    let runs = words::count(runs, "run");
    let body = html! {
        header {
            h1 { (TITLE) }
            p class="muted" { (runs) "; each machine, model and setting has its own section" }
            @if skipped > 0 { p { (skipped) " lines of the history could not be read and are not here." } }
        }
        @for section in sections { (section) }
        (kept_apart(apart))
    };
    let shared = Shared { title: TITLE, description: &runs, image: Some("performance_over_time.png") };
    Ok(page::document(TITLE, &shared, &body))
}

fn group_section(index: usize, group: &Group<'_>) -> Result<Markup, String> {
    let chart = |&metric: &Metric| Chart {
        id: format!("{}-{index}", metric.name()),
        title: format!("{} over time", metric.title()),
        description: "A line for each framework over its runs, with 95 % intervals; the table has the figures",
        panel: group.panel(metric.title(), pictures::better(metric), metric),
        table: None,
    };
    let of_versions = |(place, panel): (usize, Panel)| Chart {
        id: format!("versions-{index}-{place}"),
        title: "Speed by version".to_owned(),
        description: "The newest run of each version, with its 95 % interval; the table has the figures",
        panel,
        table: None,
    };
    let by_version = over_time::panels(group).into_iter().enumerate().map(of_versions);
    let over_time = METRICS.iter().filter(|metric| group.is_drawn(**metric)).map(chart);
    let charts: Vec<Chart> = over_time.chain(by_version).collect();
    let events: Vec<String> = group.events().into_iter().map(|event| event.sentence).collect();
    let few = group.too_few(Metric::Throughput);
    let table = table(group);
    let body = html! {
        (page::paragraph(&place(group.machine)))
        (page::charts(&charts)?)
        @if !few.is_empty() {
            p { "Fewer than " (FEWEST_RUNS) " runs, so that no line is drawn: " (few.join(", ")) }
        }
        @if !events.is_empty() {
            h3 { "What else changed" }
            ol { @for event in &events { li { (event) } } }
        }
        @if charts.is_empty() { (table) } @else { (page::details("Every run", &html! { (table) })) }
    };
    Ok(page::section(&group.title(), &body))
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
    let figures = METRICS.map(Metric::short_title).into_iter().chain(["Change", "Rounds"]);
    let mut table = Table::of(["Time (UTC)", "Commit", "Framework"], figures);
    table.columns.push(Column::left("State"));
    let trends = trends(&group.records, &[Metric::Throughput]);
    for record in group.records.iter().rev() {
        let own =
            trends.iter().flat_map(|trend| &trend.points).find(|point| std::ptr::eq(point.record, *record));
        let change = own.and_then(|point| point.change);
        let change = change.map_or_else(
            || Cell::from(DASH),
            |change| Cell::with_small(words::change(change.share), met(change.intervals_apart)),
        );
        let start = [words::second(&record.time), words::commit(record), record.framework.clone()];
        let end = [Cell::from(record.rounds.to_string()), Cell::from(state(record))];
        let figures = METRICS.map(|metric| figure(record, metric));
        table.push(start, figures.into_iter().chain([change]).chain(end));
    }
    table.captioned(
        "Medians over processes with their 95 % intervals; change of throughput from the previous comparable run; a + \
         after a commit means local changes",
    )
}

fn met(apart: Option<bool>) -> &'static str {
    match apart {
        Some(true) => "intervals apart",
        Some(false) => "intervals meet",
        None => "",
    }
}

/// A figure, or a dash with the reason below it.
fn figure(record: &Record, metric: Metric) -> Cell {
    match record.metrics.get(metric.name()) {
        Some(figure) => Cell::with_small(words::number(figure.typical), words::range(figure.interval)),
        None => Cell::with_small(DASH, record.reasons.first().cloned().unwrap_or_default()),
    }
}

/// The records that no chart shows, newest first, each with the reason.
fn kept_apart(apart: &[&Record]) -> Markup {
    let start = ["Time (UTC)", "Framework", "Case", "Why"];
    let mut table = Table::of(start, [Metric::Throughput.short_title()]);
    for record in apart.iter().rev() {
        let start = [
            words::second(&record.time),
            record.framework.clone(),
            format!("{} on {}", records::in_full(&record.case), words::machine(record)),
            state(record),
        ];
        table.push(start, [figure(record, Metric::Throughput)]);
    }
    let table = table.captioned("Records that say nothing about a development over time");
    let summary = format!("{}: {}", words::count(apart.len(), "record"), counted(apart.iter().copied()));
    html! { @if !apart.is_empty() { (page::section("Kept apart", &page::details(&summary, &html! { (table) }))) } }
}
