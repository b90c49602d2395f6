//! The history of all runs: as a list, as trends, and in the layout that other scripts read.

mod optimised;
#[cfg(test)]
pub(crate) mod tests;
mod trend;

use comparison::history::{Apart, Figure, Record, Skipped, counted};
use comparison::judge::metrics::Metric;
use comparison::judge::records;
use comparison::judge::report::memory::Parts;
use comparison::judge::report::{State, number};
use optimised::is_optimised;
use serde::Serialize;
use serde_json::json;
pub use trend::Trends;

use crate::charts;
use crate::export::{Block, Body, Document};
use crate::flat::{self, Field, Line};
use crate::pictures::{self, over_time};
use crate::table::{Cell, Column, Screen, Table};
use crate::words::{self, Json, or_dash};

// The layout that scripts of this field read: `inference_metrics.json`, `inference_metrics.csv` and pictures.

/// The files of the layout with its pictures, by name. `records` are in the order of their times.
pub fn export(records: &[&Record]) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    let lines: Vec<Line> = records.iter().map(|record| line(record)).collect();
    let csv = flat::table(&[], &lines).csv();
    // `json!` would sort the keys of the runs.
    let run = |line: Line| Json::Fields(line.into_iter().map(|(name, it)| (name, Json::Plain(it))).collect());
    let runs = Json::List(lines.into_iter().map(run).collect());
    let json = Json::Fields(vec![("runs".to_owned(), runs)]).pretty() + "\n";
    Ok(vec![
        ("inference_metrics.json", json.into_bytes()),
        ("inference_metrics.csv", csv.into_bytes()),
        ("optimization_comparison.png", pictures::png(&optimised::picture(records))?),
        ("performance_over_time.png", pictures::png(&over_time(records))?),
    ])
}

/// Also of noisy runs, which are exported only where they were asked for.
fn over_time(records: &[&Record]) -> charts::Figure {
    let has_place = |record: &&Record| record.apart().iter().all(|it| matches!(it, Apart::Ab | Apart::Noisy));
    let drawn: Vec<&Record> = records.iter().copied().filter(has_place).collect();
    let mut figure = over_time::picture(&over_time::groups(&drawn));
    let noisy = drawn.iter().filter(|record| record.apart().contains(&Apart::Noisy)).count();
    if noisy > 0 {
        figure.note.push(format!("{noisy} of {} records are of noisy runs.", drawn.len()));
    }
    figure
}

/// Whether a record has a place in the layout. The layout has no states, so only records with valid figures do.
pub fn is_exported(record: &Record) -> bool {
    record.state.takes_part() && record.metrics.contains_key(Metric::Throughput.name())
}

/// The columns of the layout in its units, then the columns of Photofinish.
fn line(record: &Record) -> Line {
    let case = &record.case;
    let median = |metric: Metric| record.metrics.get(metric.name()).map(|figure| figure.typical);
    let theirs = flat::line([
        ("run_name", json!(format!("{}/{}", record.run, record.framework))),
        ("timestamp", json!(record.time)),
        ("optimized", json!(is_optimised(record))),
        ("prompt_length", json!(middle(&case.prompt_tokens))),
        ("generated_length", json!(case.new_tokens)),
        ("total_time", json!(median(Metric::Total).map(|ms| ms / 1e3))),
        ("tokens_per_second", json!(median(Metric::Throughput))),
        ("time_per_token", json!(median(Metric::Latency))),
        ("memory_used_mb", json!(median(Metric::PeakMemory).map(|gigabytes| gigabytes * 1e3))),
        ("device", json!(case.device)),
    ]);
    let mut ours = flat_line(record);
    ours.retain(|(name, _)| !theirs.iter().any(|(other, _)| other == name));
    [theirs, ours].concat()
}

/// The prompt in the middle, because `total_time` is the median over prompts; of two prompts, the shorter one.
fn middle(prompt_tokens: &[usize]) -> Option<usize> {
    let mut sorted = prompt_tokens.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

// A record as one line of a table for programs.

/// The fields before those of the case.
const RUN: &[Field<Record>] = &[
    ("time", |it| json!(it.time)),
    ("run", |it| json!(it.run)),
    ("study", |it| json!(it.study)),
    ("framework", |it| json!(it.framework)),
    ("state", |it| json!(it.state)),
    ("rounds", |it| json!(it.rounds)),
    ("interrupted", |it| json!(it.interrupted)),
    ("noise", |it| json!(it.noise)),
    ("apart", |it| json!(it.apart().iter().map(|reason| reason.words()).collect::<Vec<_>>().join("+"))),
];

const CASE: &[Field<Record>] = &[
    ("model", |it| json!(it.case.model)),
    ("weights_sha256", |it| json!(it.case.weights_sha256)),
    ("precision", |it| json!(it.case.precision)),
    ("device", |it| json!(it.case.device)),
    ("threads", |it| json!(it.case.threads)),
    ("batch", |it| json!(it.case.batch)),
    ("context", |it| json!(it.case.context)),
    ("prompt_tokens", |it| {
        let lengths: Vec<String> = it.case.prompt_tokens.iter().map(usize::to_string).collect();
        json!(lengths.join("+"))
    }),
    ("new_tokens", |it| json!(it.case.new_tokens)),
    ("decode", |it| json!(it.case.decode)),
    ("kv_cache", |it| json!(it.case.kv_cache)),
    ("jit", |it| json!(it.case.jit)),
    ("optimised", |it| json!(it.optimised)),
];

/// Settings, machine and outcome.
const CIRCUMSTANCES: &[Field<Record>] = &[
    ("suite", |it| json!(it.settings.suite)),
    ("fair_comparison", |it| json!(it.settings.fair_comparison)),
    ("iterations", |it| json!(it.settings.iterations)),
    ("margin", |it| json!(it.settings.margin)),
    ("seed", |it| json!(it.settings.seed)),
    ("accept_noise", |it| json!(it.settings.accept_noise)),
    ("noise_accepted", |it| json!(it.settings.noise_accepted)),
    ("library", |it| json!(it.library)),
    ("binding", |it| json!(it.binding)),
    ("driver_version", |it| json!(it.driver_version)),
    ("git_commit", |it| json!(it.git_commit)),
    ("git_modified", |it| json!(it.git_modified)),
    ("machine", |it| json!(it.machine.fingerprint)),
    ("host", |it| json!(it.machine.host)),
    ("os", |it| json!(it.machine.os)),
    ("kernel", |it| json!(it.machine.kernel)),
    ("cpu", |it| json!(it.machine.cpu)),
    ("physical_cores", |it| json!(it.machine.physical_cores)),
    ("available_cores", |it| json!(it.machine.available_cores)),
    ("memory_bytes", |it| json!(it.machine.memory_bytes)),
    ("gpus", |it| json!(it.machine.gpus.join("; "))),
    ("read_bandwidth", |it| json!(it.machine.read_bandwidth)),
    ("arithmetic", |it| json!(it.machine.arithmetic)),
    ("agrees", |it| json!(it.parity.as_ref().map(|parity| parity.agrees))),
    ("parity", |it| json!(it.parity.as_ref().map(|parity| &parity.text))),
    ("max_abs", |it| json!(it.parity.as_ref().and_then(|parity| parity.max_abs))),
    ("top1", |it| json!(it.parity.as_ref().and_then(|parity| parity.top1))),
    ("results", |it| json!(it.results)),
];

/// The fields that identify a measurement, then `metric`, `metric_low` and `metric_high` of each metric.
pub(crate) fn flat_line(record: &Record) -> Line {
    let plain = [RUN, CASE, CIRCUMSTANCES].concat().into_iter();
    let plain = plain.map(|(name, field)| (name.to_owned(), field(record)));
    let parts = Parts::NAMES.into_iter().chain(["peak"]);
    let parts = parts.map(|part| (format!("memory_{part}"), json!(record.memory.get(part))));
    plain.chain(metrics(record)).chain(parts).collect()
}

/// Whether the field of this name tells machine, framework and case apart.
pub(crate) fn is_identifying(name: &str) -> bool {
    let is_of_case = CASE.iter().any(|(field, _)| *field == name);
    ["framework", "machine", "host"].contains(&name)
        || (is_of_case && !["weights_sha256", "optimised"].contains(&name))
}

/// Metrics of newer versions follow the known ones.
fn metrics(record: &Record) -> Line {
    let is_known = |name: &str| Metric::ALL.iter().any(|metric| metric.name() == name);
    let newer = record.metrics.keys().map(String::as_str).filter(|name| !is_known(name));
    let figures = |name: &str| {
        let figure = record.metrics.get(name);
        let interval = figure.and_then(|figure| figure.interval);
        [
            (name.to_owned(), json!(figure.map(|figure| figure.typical))),
            (format!("{name}_low"), json!(interval.map(|(low, _)| low))),
            (format!("{name}_high"), json!(interval.map(|(_, high)| high))),
        ]
    };
    Metric::ALL.iter().map(|metric| metric.name()).chain(newer).flat_map(figures).collect()
}

// The list of records: a table for each machine and case.

/// Speeds, of which a record has the first that its kind of work has.
const SPEEDS: [Metric; 4] =
    [Metric::Throughput, Metric::DenoisingThroughput, Metric::EncodingThroughput, Metric::SingleText];

/// The speed of these records. With it and the peak of memory, the rest fits into a terminal of 80 columns;
/// the other formats show all metrics.
fn speed<'a>(records: impl Iterator<Item = &'a Record> + Clone) -> Metric {
    let has = |metric: &Metric| records.clone().any(|record| record.metrics.contains_key(metric.name()));
    SPEEDS.into_iter().find(has).unwrap_or(Metric::Throughput)
}

pub struct Found<'a> {
    pub records: &'a [Record],
    /// Records that match too, but are excluded.
    pub apart: &'a [Record],
    pub skipped: &'a [Skipped],
    /// The metrics that were asked for; if there are none, tables have the usual ones.
    pub metrics: &'a [Metric],
}

impl Found<'_> {
    /// `{"schema": 1, NAME: .., "kept_apart": .., "skipped": ..}`
    fn document(&self, name: &str, content: &impl Serialize) -> Json {
        let apart = self.apart.iter();
        let apart = apart.map(|it| json!({"run": it.run, "framework": it.framework, "apart": it.apart()}));
        Json::new(&json!({
            "schema": comparison::history::SCHEMA,
            name: content,
            "kept_apart": apart.collect::<Vec<_>>(),
            "skipped": self.skipped,
        }))
    }
}

/// The records, one by one: a table for each machine and case. Tables show the metrics that were asked for with their
/// intervals, or the usual ones without.
pub struct List<'a>(pub Found<'a>);

impl Document for List<'_> {
    fn body(&self, _: Option<&Screen>) -> Body {
        let List(Found { records, metrics, .. }) = self;
        let several = several_machines(records.iter());
        let places = words::distinct(records.iter().map(|record| place(record, several)));
        let section = |title: String| {
            let own = records.iter().filter(|record| place(record, several) == title);
            let table = list_table(own, metrics);
            [Block::Heading(vec![title]), Block::Table(table)]
        };
        Body { answer: places.into_iter().flat_map(section).collect(), rest: Vec::new() }
    }

    fn json(&self) -> Json {
        self.0.document("records", &self.0.records)
    }

    fn figures(&self) -> Table {
        flat::table(&[], &self.0.records.iter().map(flat_line).collect::<Vec<_>>())
    }
}

/// How many records are excluded, and how to see them; `None` if there are none.
pub fn kept_apart(apart: &[Record]) -> Option<String> {
    let records = if apart.len() == 1 { "1 record is" } else { "records are" };
    let count = if apart.len() == 1 { String::new() } else { format!("{} ", apart.len()) };
    let counted = counted(apart.iter());
    (!apart.is_empty()).then(|| format!("{count}{records} kept apart ({counted}); --all shows them too"))
}

/// The case, with its machine if there are several.
fn place(record: &Record, several: bool) -> String {
    let machine = if several { format!(" on {}", words::machine(record)) } else { String::new() };
    format!("{}{machine}", records::in_full(&record.case))
}

fn list_table<'a>(records: impl Iterator<Item = &'a Record> + Clone, asked: &[Metric]) -> Table {
    let usual = [speed(records.clone()), Metric::PeakMemory];
    let metrics = if asked.is_empty() { &usual[..] } else { asked };
    let titles = metrics.iter().map(|metric| Cell::unit_below(metric.short_title()));
    let mut table = Table::of(["Time (UTC)", "Commit", "Framework"], titles);
    table.columns.push(Column::left("State"));
    for record in records {
        let start = [words::minute(&record.time), words::commit(record), record.framework.clone()];
        let figures = metrics.iter().map(|metric| {
            or_dash(record.metrics.get(metric.name()), |found| figure(found, !asked.is_empty()))
        });
        table.push(start, figures.chain([state(record)]));
    }
    table
}

fn several_machines<'a>(mut records: impl Iterator<Item = &'a Record>) -> bool {
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
    let state = match record.state {
        State::Measured => parity.unwrap_or("unchecked").to_owned(),
        state => state.name().replace('_', " "),
    };
    let apart = record.apart().into_iter().map(|reason| reason.words()).filter(|word| *word != state);
    let interrupted = record.interrupted.then_some("interrupted");
    let mut words = vec![state.as_str()];
    words.extend(apart.chain(interrupted));
    words.join(", ")
}

// Figures and their intervals as marks on one scale, a row each, for a terminal.

const WIDTH: usize = 10;

/// A strip for each figure, from the least end of an interval to the largest: `├─●─┤`.
fn strips(figures: &[&Figure]) -> Vec<String> {
    let ends = |figure: &Figure| figure.interval.unwrap_or((figure.typical, figure.typical));
    let low = figures.iter().map(|figure| ends(figure).0.min(figure.typical)).fold(f64::INFINITY, f64::min);
    let high =
        figures.iter().map(|figure| ends(figure).1.max(figure.typical)).fold(f64::NEG_INFINITY, f64::max);
    let place = |value: f64| match (value - low) / (high - low) {
        share if share.is_finite() => (share.clamp(0.0, 1.0) * (WIDTH - 1) as f64).round() as usize,
        // All are the same.
        _ => WIDTH / 2,
    };
    let strip = |figure: &&Figure| {
        let mut cells = [' '; WIDTH];
        let (from, to) = ends(figure);
        let (from, to) = (place(from), place(to));
        if from < to {
            cells[from..=to].fill('─');
            (cells[from], cells[to]) = ('├', '┤');
        }
        cells[place(figure.typical)] = '●';
        cells.iter().collect()
    };
    figures.iter().map(strip).collect()
}

fn has_cache(record: &Record) -> bool {
    record.case.kv_cache != "off"
}

#[cfg(test)]
mod unit {
    use comparison::judge::regression::testing::record;

    use super::*;

    #[test]
    fn the_prompt_in_the_middle_stands_for_several() {
        assert_eq!(middle(&[]), None);
        assert_eq!(middle(&[7]), Some(7));
        assert_eq!(middle(&[34, 12]), Some(12));
        assert_eq!(middle(&[34, 12, 100]), Some(34));
    }

    fn figure(typical: f64, interval: Option<(f64, f64)>) -> Figure {
        Figure {
            unit: String::new(),
            higher_is_better: true,
            typical,
            interval,
            values: Vec::new(),
            other: Default::default(),
        }
    }

    #[test]
    fn a_strip_spans_all_intervals() {
        let figures = [figure(1.0, Some((0.0, 2.0))), figure(8.0, Some((7.0, 9.0))), figure(4.0, None)];
        let figures: Vec<&Figure> = figures.iter().collect();
        assert_eq!(strips(&figures), ["├●┤       ", "       ├●┤", "    ●     "]);
        let same = figure(2.0, None);
        assert_eq!(strips(&[&same, &same]), ["     ●    "; 2]);
        assert_eq!(strips(&[]), [""; 0]);
    }

    #[test]
    fn records_that_do_not_tell_had_a_cache() {
        let mut record = record("tch", 40.0);
        for (told, expected) in [("on", true), ("", true), ("off", false)] {
            record.case.kv_cache = told.into();
            assert_eq!(has_cache(&record), expected, "{told:?}");
        }
    }
}
