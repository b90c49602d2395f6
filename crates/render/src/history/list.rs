//! The list of records: a table for each machine and case.

use ::history::{Figure, Record, Skipped, counted};
use judge::metrics::Metric;
use judge::records::case;
use judge::report::number;
use serde_json::json;

use super::flat;
use crate::Format;
use crate::screen::Screen;
use crate::table::{Cell, Column, Table};
use crate::words::{self, or_dash};

/// Speeds, of which a record has the first that its kind of work has.
pub(super) const SPEEDS: [Metric; 4] =
    [Metric::Throughput, Metric::DenoisingThroughput, Metric::EncodingThroughput, Metric::SingleText];

/// The speed of these records. With it and the peak of memory, the rest fits into a terminal of 80 columns;
/// the other formats show all metrics.
pub(super) fn speed<'a>(records: impl Iterator<Item = &'a Record> + Clone) -> Metric {
    let has = |metric: &Metric| records.clone().any(|record| record.metrics.contains_key(metric.name()));
    SPEEDS.into_iter().find(has).unwrap_or(Metric::Throughput)
}

/// The records, one by one. Tables show these `metrics` with their intervals, or the default ones without.
/// The other formats show all. `apart` are the records that match too, but are excluded.
pub fn list(
    records: &[Record],
    (apart, skipped): (&[Record], &[Skipped]),
    metrics: &[Metric],
    format: Format,
    screen: &Screen,
) -> String {
    match format {
        Format::Table | Format::Markdown => tables(records, metrics, (format, screen)),
        Format::Json => document("records", &records, apart, skipped),
        Format::Csv => flat::table(&records.iter().map(flat::line).collect::<Vec<_>>()).csv(),
    }
}

/// A JSON document of the form `{"schema": 1, NAME: .., "kept_apart": .., "skipped": ..}`.
pub(super) fn document(
    name: &str,
    content: &impl serde::Serialize,
    apart: &[Record],
    skipped: &[Skipped],
) -> String {
    let apart: Vec<_> = apart
        .iter()
        .map(|record| json!({"run": record.run, "framework": record.framework, "apart": record.apart()}))
        .collect();
    let document =
        json!({"schema": ::history::SCHEMA, name: content, "kept_apart": apart, "skipped": skipped});
    format!("{document:#}\n")
}

/// How many records are excluded, and how to see them; `None` if there are none.
pub fn kept_apart(apart: &[Record]) -> Option<String> {
    let records = if apart.len() == 1 { "1 record is" } else { "records are" };
    let count = if apart.len() == 1 { String::new() } else { format!("{} ", apart.len()) };
    let counted = counted(apart.iter());
    (!apart.is_empty()).then(|| format!("{count}{records} kept apart ({counted}); --all shows them too"))
}

/// A heading and a table for each machine and case, in the order of their first runs.
fn tables(records: &[Record], metrics: &[Metric], (format, screen): (Format, &Screen)) -> String {
    let several = several_machines(records.iter());
    let places = words::distinct(records.iter().map(|record| place(record, several)));
    let section = |place_of_section: &String| {
        let own = records.iter().filter(|record| place(record, several) == *place_of_section);
        let table = table(own, metrics);
        match format {
            Format::Markdown => {
                format!("**{}**\n\n{}\n", untrusted::markdown(place_of_section), table.markdown())
            }
            _ => {
                format!(
                    "{}\n{}\n",
                    words::wrapped_at(&untrusted::line(place_of_section), screen.width),
                    table.terminal(screen)
                )
            }
        }
    };
    places.iter().map(section).collect::<Vec<_>>().join("\n")
}

/// The case, with its machine if there are several.
pub(super) fn place(record: &Record, several: bool) -> String {
    let machine = if several { format!(" on {}", words::machine(record)) } else { String::new() };
    format!("{}{machine}", case::in_full(&record.case))
}

fn table<'a>(records: impl Iterator<Item = &'a Record> + Clone, asked: &[Metric]) -> Table {
    let usual = [speed(records.clone()), Metric::PeakMemory];
    let metrics = if asked.is_empty() { &usual[..] } else { asked };
    let start = ["Time (UTC)", "Commit", "Framework"].map(Column::left);
    let title = |metric: &Metric| {
        let short = metric.short_title();
        match short.rsplit_once(" (") {
            Some((name, unit)) => Column::right(Cell::with_small(name, unit.trim_end_matches(')'))),
            None => Column::right(short),
        }
    };
    let figures = metrics.iter().map(title);
    let mut table = Table::new(start.into_iter().chain(figures).chain([Column::left("State")]));
    for record in records {
        let start = [words::minute(&record.time), words::commit(record), record.framework.clone()];
        let figures = metrics.iter().map(|metric| {
            or_dash(record.metrics.get(metric.name()), |found| figure(found, !asked.is_empty()))
        });
        table.add(start.into_iter().chain(figures).chain([state(record)]));
    }
    table
}

pub(super) fn several_machines<'a>(mut records: impl Iterator<Item = &'a Record>) -> bool {
    let first = records.next();
    records.any(|record| first.is_some_and(|first| first.machine.fingerprint != record.machine.fingerprint))
}

fn figure(figure: &Figure, with_interval: bool) -> String {
    match figure.interval.filter(|_| with_interval) {
        Some((low, high)) => format!("{} ({}–{})", number(figure.typical), number(low), number(high)),
        None => number(figure.typical),
    }
}

/// The record's result: that of parity, or the reason why there is none; and why it is excluded from trends.
pub(crate) fn state(record: &Record) -> String {
    let parity = record.parity.as_ref().map(|parity| if parity.agrees { "ok" } else { "BROKEN" });
    let state = match record.state.as_str() {
        "measured" => parity.unwrap_or("unchecked").to_owned(),
        state => state.replace('_', " "),
    };
    let apart = record.apart().into_iter().map(|reason| reason.words()).filter(|word| *word != state);
    let interrupted = record.interrupted.then_some("interrupted");
    let mut words = vec![state.as_str()];
    words.extend(apart.chain(interrupted));
    words.join(", ")
}
