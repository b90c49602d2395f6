//! The history of all runs: as a list, as trends, and in the layout that other scripts read.

mod optimised;
#[cfg(test)]
mod tests;
mod trend;

use comparison::history::{Figure, Record, Skipped, counted};
use comparison::judge::metrics::Metric;
use comparison::judge::records;
use comparison::judge::report::memory::Parts;
use comparison::judge::report::{State, number};
use optimised::is_optimised;
use serde::Serialize;
use serde_json::{Value, json};
pub use trend::Trends;

use crate::export::{Block, Body, Document};
use crate::flat::{self, Line};
use crate::pictures::{self, over_time};
use crate::table::{Cell, Column, Screen, Table};
use crate::words::{self, Json, or_dash};

// The layout that scripts of this field read: `inference_metrics.json`, `inference_metrics.csv` and pictures.

/// The files of the layout with its pictures, by name. `records` are in the order of their times.
pub fn export(records: &[&Record]) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    let optimised = pictures::png(&optimised::picture(records))?;
    let over_time: Vec<&Record> =
        records.iter().copied().filter(|record| over_time::has_place(record)).collect();
    let over_time = pictures::png(&over_time::picture(&over_time::groups(&over_time)))?;
    let mut files = layout(records);
    files.push(("optimization_comparison.png", optimised));
    files.push(("performance_over_time.png", over_time));
    Ok(files)
}

/// Whether a record has a place in the layout. The layout has no states, so only records with valid figures do.
pub fn is_exported(record: &Record) -> bool {
    record.state.takes_part() && record.metrics.contains_key(Metric::Throughput.name())
}

/// The layout's tables by name, oldest record first.
fn layout(records: &[&Record]) -> Vec<(&'static str, Vec<u8>)> {
    let lines: Vec<Line> = records.iter().map(|record| line(record)).collect();
    let csv = flat::table(&[], &lines).csv();
    // `json!` would sort the keys of the runs.
    let run = |line: Line| Json::Fields(line.into_iter().map(|(name, it)| (name, Json::Plain(it))).collect());
    let runs = Json::List(lines.into_iter().map(run).collect());
    let json = Json::Fields(vec![("runs".to_owned(), runs)]).pretty() + "\n";
    vec![("inference_metrics.json", json.into_bytes()), ("inference_metrics.csv", csv.into_bytes())]
}

/// The columns of the layout in its units, then the columns of Photofinish.
fn line(record: &Record) -> Line {
    let case = &record.case;
    let median = |metric: Metric| record.metrics.get(metric.name()).map(|figure| figure.typical);
    let columns = [
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
    ];
    let is_theirs = |name: &str| columns.iter().any(|(theirs, _)| *theirs == name);
    let ours = flat_line(record).into_iter().filter(|(name, _)| !is_theirs(name));
    let theirs: Vec<(String, Value)> =
        columns.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    theirs.into_iter().chain(ours).collect()
}

/// The prompt in the middle, because `total_time` is the median over prompts; of two prompts, the shorter one.
fn middle(prompt_tokens: &[usize]) -> Option<usize> {
    let mut sorted = prompt_tokens.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

// A record as one line of a table for programs.

/// The fields that identify a measurement, then `metric`, `metric_low` and `metric_high` of each metric.
pub(crate) fn flat_line(record: &Record) -> Line {
    let plain = [run(record), case(record), settings(record), machine(record), outcome(record)].concat();
    let plain = plain.into_iter().map(|(name, value)| (name.to_owned(), value));
    let parts = Parts::NAMES.into_iter().chain(["peak"]);
    let parts = parts.map(|part| (format!("memory_{part}"), json!(record.memory.get(part))));
    plain.chain(metrics(record)).chain(parts).collect()
}

type Plain = Vec<(&'static str, Value)>;

fn run(record: &Record) -> Plain {
    vec![
        ("time", json!(record.time)),
        ("run", json!(record.run)),
        ("study", json!(record.study)),
        ("framework", json!(record.framework)),
        ("state", json!(record.state)),
        ("rounds", json!(record.rounds)),
        ("interrupted", json!(record.interrupted)),
        ("noise", json!(record.noise)),
        ("apart", json!(record.apart().iter().map(|reason| reason.words()).collect::<Vec<_>>().join("+"))),
    ]
}

fn case(record: &Record) -> Plain {
    let case = &record.case;
    let prompt_tokens: Vec<String> = case.prompt_tokens.iter().map(usize::to_string).collect();
    vec![
        ("model", json!(case.model)),
        ("weights_sha256", json!(case.weights_sha256)),
        ("precision", json!(case.precision)),
        ("device", json!(case.device)),
        ("threads", json!(case.threads)),
        ("batch", json!(case.batch)),
        ("context", json!(case.context)),
        ("prompt_tokens", json!(prompt_tokens.join("+"))),
        ("new_tokens", json!(case.new_tokens)),
        ("decode", json!(case.decode)),
        ("kv_cache", json!(case.kv_cache)),
        ("jit", json!(case.jit)),
        ("optimised", json!(record.optimised)),
    ]
}

/// The names of the fields that identify machine, framework and case.
pub(crate) fn identifying(record: &Record) -> Vec<&'static str> {
    let of_case = case(record).into_iter().map(|(name, _)| name);
    let of_case = of_case.filter(|name| !["weights_sha256", "optimised"].contains(name));
    ["framework", "machine", "host"].into_iter().chain(of_case).collect()
}

fn settings(record: &Record) -> Plain {
    let settings = &record.settings;
    vec![
        ("suite", json!(settings.suite)),
        ("fair_comparison", json!(settings.fair_comparison)),
        ("iterations", json!(settings.iterations)),
        ("margin", json!(settings.margin)),
        ("seed", json!(settings.seed)),
        ("accept_noise", json!(settings.accept_noise)),
        ("noise_accepted", json!(settings.noise_accepted)),
        ("library", json!(record.library)),
        ("binding", json!(record.binding)),
        ("driver_version", json!(record.driver_version)),
        ("git_commit", json!(record.git_commit)),
        ("git_modified", json!(record.git_modified)),
    ]
}

fn machine(record: &Record) -> Plain {
    let machine = &record.machine;
    vec![
        ("machine", json!(machine.fingerprint)),
        ("host", json!(machine.host)),
        ("os", json!(machine.os)),
        ("kernel", json!(machine.kernel)),
        ("cpu", json!(machine.cpu)),
        ("physical_cores", json!(machine.physical_cores)),
        ("available_cores", json!(machine.available_cores)),
        ("memory_bytes", json!(machine.memory_bytes)),
        ("gpus", json!(machine.gpus.join("; "))),
        ("read_bandwidth", json!(machine.read_bandwidth)),
        ("arithmetic", json!(machine.arithmetic)),
    ]
}

fn outcome(record: &Record) -> Plain {
    let parity = record.parity.as_ref();
    vec![
        ("agrees", json!(parity.map(|parity| parity.agrees))),
        ("parity", json!(parity.map(|parity| &parity.text))),
        ("max_abs", json!(parity.and_then(|parity| parity.max_abs))),
        ("top1", json!(parity.and_then(|parity| parity.top1))),
        ("results", json!(record.results)),
    ]
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

/// Records of the history that were found.
pub struct Found<'a> {
    pub records: &'a [Record],
    /// Records that match too, but are excluded.
    pub apart: &'a [Record],
    /// Lines that could not be read.
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

/// Characters of a strip.
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

/// Whether there was a KV cache.
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
