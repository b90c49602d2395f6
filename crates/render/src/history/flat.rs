//! A record as one line of a table for programs.

use history::Record;
use judge::metrics::Metric;
use judge::report::work::memory::Parts;
use serde_json::{Value, json};

use super::work::generate;
use crate::table::Table;

/// Names with their values, in order.
pub(crate) type Line = Vec<(String, Value)>;

/// The fields that identify a measurement, then `metric`, `metric_low` and `metric_high` of each metric.
pub(crate) fn line(record: &Record) -> Line {
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
    let before = [
        ("model", json!(case.model)),
        ("weights_sha256", json!(case.weights_sha256)),
        ("precision", json!(case.precision)),
        ("device", json!(case.device)),
        ("threads", json!(case.threads)),
        ("batch", json!(case.batch)),
    ];
    let behind = [("jit", json!(case.jit)), ("optimised", json!(record.optimised))];
    before.into_iter().chain(generate::fields(case)).chain(behind).collect()
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

/// A table with a column for every name that occurs in a line.
pub(crate) fn table(lines: &[Line]) -> Table {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in lines.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut table = Table::plain(names.iter().copied());
    for line in lines {
        let value = |name: &&str| line.iter().find(|(found, _)| found == name).map(|(_, value)| cell(value));
        table.add(names.iter().map(|name| value(name).unwrap_or_default()));
    }
    table
}

/// Booleans are spelt as in Python, which pandas, DuckDB and scripts that compare text all accept.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
