//! The page of a collection: many results, a table for each machine and case, nothing ranked across machines.

mod groups;
#[cfg(test)]
mod tests;

use charts::number;
use history::{Machine, Record};
use judge::records::collection::Entry;
use judge::report::State;
use judge::report::verdicts::{Comparison, Verdict};
use judge::{Metric, records};
use maud::{Markup, PreEscaped, html};
use serde_json::{Value, json};

use super::html;
use crate::comparison;
use crate::history::flat;
use crate::history::list::state;
use crate::words::{self, DASH};
use groups::{Case, MachineGroup, Named, machines};

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
    html::document(TITLE, &body)
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
        |of: Vec<&Comparison>| html::list(of.into_iter().map(|found| comparison::verdict(report, found)));
    let (open_count, noise) = (open.len(), report.noise());
    html! {
        @if !report.comparisons.is_empty() || noise.is_some() {
            p { "Verdicts of " (named.entry.name) @if clear.is_empty() { ": none is clear" } @else { ":" } }
            @if let Some(noise) = &noise { p class="out" { "The machine was too noisy: " (noise) } }
            (sentences(clear))
            (html::details(&format!("{open_count} without a clear verdict"), &sentences(open)))
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
    let mut lines: Vec<flat::Line> = Vec::new();
    for entry in entries {
        let start = |reason: String| -> flat::Line {
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
                let own = flat::line(record).into_iter().filter(|(name, _)| name != "results");
                let concerns = |it: &&Comparison| [&it.a, &it.b].contains(&&record.framework);
                let of_record = run.report.comparisons.iter().filter(concerns);
                let verdicts: Vec<String> =
                    of_record.map(|found| comparison::verdict(&run.report, found)).collect();
                let verdicts = ("verdicts".to_owned(), json!(verdicts.join("; ")));
                start(record.reasons.join("; ")).into_iter().chain(own).chain([verdicts]).collect()
            })),
        }
    }
    // Names of columns are those of the first line: one that could be read.
    lines.sort_by_key(|line| std::cmp::Reverse(line.len() > 4));
    flat::table(&lines).csv()
}
