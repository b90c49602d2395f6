//! The page of a collection: many results, a table for each machine and case, nothing ranked across machines.

#[cfg(test)]
mod tests;

use comparison::history::{Machine, Record, counted};
use comparison::judge::Metric;
use comparison::judge::records::{self, CollectedRun, Entry};
use comparison::judge::report::State;
use comparison::judge::report::verdicts::{Comparison, Verdict};
use maud::{Markup, PreEscaped, html};
use serde_json::{Value, json};

use super::Chart;
use crate::charts::{Panel, number};
use crate::history::{self, state};
use crate::pictures;
use crate::pictures::over_time::{self, Group};
use crate::table::{Cell, Column, Table};
use crate::trends::{FEWEST_RUNS, trends};
use crate::words::{self, DASH};
use crate::{page, result};

const TITLE: &str = "Collection of results";

pub(super) const STYLE: &str = include_str!("style.css");

/// Hides filtered entries. The script also shows the form, so that a page without scripts has no idle
/// controls.
const SCRIPT: &str = include_str!("filter.js");

/// Latency is the reciprocal of throughput: it is in the CSV.
const METRICS: [Metric; 4] = [Metric::Throughput, Metric::FirstToken, Metric::Load, Metric::PeakMemory];

pub(super) fn html(entries: &[Entry]) -> String {
    let machines = machines(entries);
    let runs = entries.iter().filter(|entry| entry.run.is_ok()).count();
    let body = html! {
        style { (PreEscaped(STYLE)) }
        header {
            h1 { (TITLE) }
            p class="muted" {
                (count(runs, "run")) " on " (count(machines.len(), "machine")) ". Figures are medians over processes with their 95 % \
                intervals, where there are rounds enough. Verdicts are those of each run. Nothing is compared across \
                machines, nor from run to run."
            }
            p { a href="collection.csv" { "collection.csv" } " has every figure." }
        }
        (filters(entries))
        @for group in &machines { (machine(group)) }
        (unreadable(entries))
        script { (PreEscaped(SCRIPT)) }
    };
    page::document(TITLE, &body)
}

fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Controls, hidden until the script that they need runs.
fn filters(entries: &[Entry]) -> Markup {
    let records = || entries.iter().filter_map(|entry| entry.run.as_ref().ok()).flat_map(|run| &run.records);
    let options = |of: fn(&Record) -> &str| {
        let mut names: Vec<String> = records().map(|record| of(record).to_owned()).collect();
        names.sort();
        names.dedup();
        names
    };
    let filters = [
        ("model", "Model", options(|record| &record.case.model)),
        ("precision", "Precision", options(|record| &record.case.precision)),
        ("framework", "Framework", options(|record| &record.framework)),
    ];
    html! {
        form id="filters" class="filters" hidden {
            @for (name, title, options) in &filters {
                label {
                    (title)
                    select name=(name) autocomplete="off" {
                        option value="" { "all" }
                        @for option in options { option value=(option) { (option) } }
                    }
                }
            }
        }
    }
}

fn machine(group: &MachineGroup<'_>) -> Markup {
    let Machine { cpu, available_cores, physical_cores, memory_bytes, gpus, os, fingerprint, .. } =
        group.machine;
    let records = group.cases.iter().flat_map(|case| &case.runs).flat_map(|named| &named.run.records);
    let hosts = words::distinct(records.map(|record| record.machine.host.clone()));
    let cores = physical_cores.map_or_else(String::new, |cores| format!(" of {cores}"));
    html! {
        section class="machine" {
            h2 { (cpu) @if !gpus.is_empty() { ", " (gpus.join(", ")) } }
            p class="muted" {
                (available_cores) (cores) " cores, " (format!("{:.0}", *memory_bytes as f64 / 1e9)) " GB, "
                (os.as_deref().unwrap_or("unknown system")) "; host " (hosts.join(", ")) "; fingerprint " (fingerprint)
            }
            @for case in &group.cases { (section(case)) }
        }
    }
}

fn section(case: &Case<'_>) -> Markup {
    html! {
        div class="case" data-model=(case.model) data-precision=(case.precision) {
            h3 { (case.title) }
            div class="scroll" tabindex="0" role="region" aria-label=(case.title) {
                table class="figures" {
                    thead {
                        tr {
                            th scope="col" { "Framework" }
                            th scope="col" { "Run" }
                            th scope="col" { "State" }
                            @for metric in METRICS { th class="figure" scope="col" { (metric.short_title()) } }
                        }
                    }
                    tbody { @for named in &case.runs { @for record in &named.run.records { (row(*named, record)) } } }
                }
            }
            @for named in &case.runs { (verdicts(*named)) }
        }
    }
}

/// A contender of a run. Figures that no verdict rests on are struck through or muted, and say why.
fn row(named: Named<'_>, record: &Record) -> Markup {
    let is_struck = State::parse(&record.state) == Some(State::Struck);
    let is_out = !records::takes_part(record) || record.noise.is_some();
    let commit = record.git_commit.is_some().then(|| format!(", {}", words::commit(record)));
    let why = record.reasons.first().or(record.noise.as_ref());
    let value = |metric: Metric| record.metrics.get(metric.name());
    html! {
        tr data-framework=(record.framework) class=[is_out.then_some("out")] {
            th scope="row" {
                @if is_struck { s { (record.framework) } " ✗" } @else { (record.framework) }
                @if let Some(library) = &record.library { small { (library) } }
            }
            td {
                (named.entry.name)
                small class="when" {
                    (words::minute(&record.time)) (commit.unwrap_or_default())
                    @if let Some(study) = &record.study { "; a cell of " (study) }
                }
            }
            td class=[why.map(|_| "why")] { (state(record)) @if let Some(why) = why { small { (why) } } }
            @for metric in METRICS {
                td class="figure" data-label=(metric.short_title()) {
                    @if let Some(figure) = value(metric) {
                        @if is_struck { s { (number(figure.typical)) } } @else { (number(figure.typical)) }
                        @if !is_struck { small { (words::range(figure.interval)) } }
                    } @else { (DASH) }
                }
            }
        }
    }
}

/// The verdicts of a run, according to its report: clear ones first, the others folded.
fn verdicts(named: Named<'_>) -> Markup {
    let report = &named.run.report;
    let is_clear = |verdict: Verdict| matches!(verdict, Verdict::Faster | Verdict::Equivalent);
    let (clear, open): (Vec<_>, Vec<_>) =
        report.comparisons.iter().partition(|comparison| is_clear(comparison.verdict));
    let sentences =
        |of: Vec<&Comparison>| page::list(of.into_iter().map(|found| result::verdict(report, found)));
    let (open_count, noise) = (open.len(), report.noise());
    html! {
        @if !report.comparisons.is_empty() || noise.is_some() {
            p { "Verdicts of " (named.entry.name) @if clear.is_empty() { ": none is clear" } @else { ":" } }
            @if let Some(noise) = &noise { p class="out" { "The machine was too noisy: " (noise) } }
            (sentences(clear))
            (page::details(&format!("{open_count} without a clear verdict"), &sentences(open)))
        }
    }
}

fn unreadable(entries: &[Entry]) -> Markup {
    let unreadable: Vec<(&Entry, &String)> =
        entries.iter().filter_map(|entry| Some((entry, entry.run.as_ref().err()?))).collect();
    html! {
        @if !unreadable.is_empty() {
            section class="warnings" {
                h2 { "Not shown" }
                div class="scroll" tabindex="0" role="region" aria-label="Results that cannot be shown" {
                    table {
                        thead { tr { th scope="col" { "Results" } th scope="col" { "Schema" } th scope="col" { "Why" } } }
                        tbody {
                            @for (entry, why) in unreadable {
                                tr {
                                    th scope="row" { (entry.name) }
                                    td { @match entry.schema { Some(schema) => (schema), None => (DASH) } }
                                    td { (why) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A line for each contender of each run, and for each directory that cannot be shown.
pub(super) fn csv(entries: &[Entry]) -> String {
    let mut lines: Vec<history::Line> = Vec::new();
    for entry in entries {
        let start = |reason: String| -> history::Line {
            let schema = json!(entry.schema);
            [("directory", json!(entry.name)), ("schema", schema), ("reason", json!(reason))]
                .map(|(name, value)| (name.to_owned(), value))
                .into()
        };
        match &entry.run {
            Err(why) => {
                let state = ("state".to_owned(), Value::from("unreadable"));
                lines.push(start(why.clone()).into_iter().chain([state]).collect());
            }
            Ok(run) => lines.extend(run.records.iter().map(|record| {
                // Local paths are not published.
                let own = history::flat_line(record).into_iter().filter(|(name, _)| name != "results");
                let concerns = |it: &&Comparison| [&it.a, &it.b].contains(&&record.framework);
                let of_record = run.report.comparisons.iter().filter(concerns);
                let verdicts: Vec<String> =
                    of_record.map(|found| result::verdict(&run.report, found)).collect();
                let verdicts = ("verdicts".to_owned(), json!(verdicts.join("; ")));
                start(record.reasons.join("; ")).into_iter().chain(own).chain([verdicts]).collect()
            })),
        }
    }
    // Names of columns are those of the first line: one that could be read.
    lines.sort_by_key(|line| std::cmp::Reverse(line.len() > 4));
    history::table(&lines).csv()
}

// Runs by machine and case.

/// A run with the name of its results.
#[derive(Clone, Copy)]
struct Named<'a> {
    entry: &'a Entry,
    run: &'a CollectedRun,
}

/// Runs of one case on one machine.
struct Case<'a> {
    title: String,
    model: &'a str,
    precision: &'a str,
    runs: Vec<Named<'a>>,
}

struct MachineGroup<'a> {
    machine: &'a Machine,
    cases: Vec<Case<'a>>,
}

/// The runs by machine and case. Machines are in the order of their processors' names, cases in that of
/// theirs: no order is a ranking.
fn machines(entries: &[Entry]) -> Vec<MachineGroup<'_>> {
    let mut machines: Vec<MachineGroup> = Vec::new();
    for entry in entries {
        let Ok(run) = &entry.run else { continue };
        let Some(first) = run.records.first() else { continue };
        let machine = &first.machine;
        let at = machines.iter().position(|group| group.machine.fingerprint == machine.fingerprint);
        let at = at.unwrap_or_else(|| {
            machines.push(MachineGroup { machine, cases: Vec::new() });
            machines.len() - 1
        });
        let title = records::in_full(&records::shared_by_arms(&first.case));
        let (cases, named) = (&mut machines[at].cases, Named { entry, run });
        match cases.iter_mut().find(|case| case.title == title) {
            Some(case) => case.runs.push(named),
            None => cases.push(Case {
                title,
                model: &first.case.model,
                precision: &first.case.precision,
                runs: vec![named],
            }),
        }
    }
    machines.sort_by_key(|group| (group.machine.cpu.clone(), group.machine.fingerprint.clone()));
    for group in &mut machines {
        group.cases.sort_by(|a, b| a.title.cmp(&b.title));
        for case in &mut group.cases {
            case.runs.sort_by_key(|named| &named.run.report.environment.started);
        }
    }
    machines
}

// The page of the history: performance from run to run, separately for each machine and case.

const HISTORY_TITLE: &str = "Performance over time";

/// The metrics that are shown over time.
const HISTORY_METRICS: [Metric; 3] = [Metric::Throughput, Metric::Latency, Metric::PeakMemory];

/// The page of these groups; `apart` are the records that are excluded from trends.
pub(super) fn history_html(
    groups: &[Group<'_>],
    apart: &[&Record],
    skipped: usize,
) -> Result<String, String> {
    let all = groups.iter().flat_map(|group| &group.records);
    let runs = words::distinct(all.map(|record| record.run.clone())).len();
    let sections: Vec<Markup> = groups
        .iter()
        .enumerate()
        .map(|(index, group)| history_section(index, group))
        .collect::<Result<_, _>>()?;
    let body = html! {
        header {
            h1 { (HISTORY_TITLE) }
            p class="muted" { (runs) @if runs == 1 { " run" } @else { " runs" } "; each machine, model and setting has its own section" }
            @if skipped > 0 { p { (skipped) " lines of the history could not be read and are not here." } }
        }
        @for section in sections { (section) }
        (kept_apart(apart))
    };
    Ok(page::document(HISTORY_TITLE, &body))
}

fn history_section(index: usize, group: &Group<'_>) -> Result<Markup, String> {
    let chart = |&metric: &Metric| Chart {
        id: format!("{}-{index}", metric.name()),
        title: format!("{} over time", metric.title()),
        description: "A line for each framework over its runs, with 95 % intervals; the table has the figures",
        panel: Panel::Lines(group.lines(metric.title(), &pictures::better(metric), metric)),
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
    let over_time = HISTORY_METRICS.iter().filter(|metric| group.is_drawn(**metric)).map(chart);
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
    Ok(page::html_section(&group.title(), &body))
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
    let figures = HISTORY_METRICS.map(|metric| Column::right(metric.short_title()));
    let end = [Column::right("Change"), Column::right("Rounds"), Column::left("State")];
    let mut table = Table::new(start.into_iter().chain(figures).chain(end));
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
        let figures = HISTORY_METRICS.map(|metric| figure(record, metric));
        table.add(start.map(Cell::from).into_iter().chain(figures).chain([change]).chain(end));
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
        Some(figure) => Cell::with_small(number(figure.typical), words::range(figure.interval)),
        None => Cell::with_small(DASH, record.reasons.first().cloned().unwrap_or_default()),
    }
}

/// The records that no chart shows, newest first, each with the reason.
fn kept_apart(apart: &[&Record]) -> Markup {
    let start = ["Time (UTC)", "Framework", "Case", "Why"].map(Column::left);
    let mut table = Table::new(start.into_iter().chain([Column::right(Metric::Throughput.short_title())]));
    for record in apart.iter().rev() {
        let start = [
            words::second(&record.time),
            record.framework.clone(),
            format!("{} on {}", records::in_full(&record.case), words::machine(record)),
            state(record),
        ];
        table.add(start.map(Cell::from).into_iter().chain([figure(record, Metric::Throughput)]));
    }
    let table = table.captioned("Records that say nothing about a development over time");
    let records = if apart.len() == 1 { "record" } else { "records" };
    let summary = format!("{} {records}: {}", apart.len(), counted(apart.iter().copied()));
    html! { @if !apart.is_empty() { (page::html_section("Kept apart", &page::details(&summary, &html! { (table) }))) } }
}
