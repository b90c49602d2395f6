//! A record as one line of a table that programs read.

use history::Record;
use serde_json::{Value, json};

use crate::judge::metrics::Metric;

/// Names with their values, in order.
pub(super) type Line = Vec<(String, Value)>;

/// `metric`, `metric_low` and `metric_high` of each metric, after all that tells what was measured.
pub(super) fn line(record: &Record) -> Line {
    let Record { machine, case, settings, .. } = record;
    let parity = record.parity.as_ref();
    let prompt_tokens: Vec<String> = case.prompt_tokens.iter().map(usize::to_string).collect();
    let plain = [
        ("time", json!(record.time)),
        ("run", json!(record.run)),
        ("study", json!(record.study)),
        ("framework", json!(record.framework)),
        ("state", json!(record.state)),
        ("rounds", json!(record.rounds)),
        ("interrupted", json!(record.interrupted)),
        ("noise", json!(record.noise)),
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
        ("suite", json!(settings.suite)),
        ("fair_comparison", json!(settings.fair_comparison)),
        ("iterations", json!(settings.iterations)),
        ("margin", json!(settings.margin)),
        ("seed", json!(settings.seed)),
        ("accept_noise", json!(settings.accept_noise)),
        ("library", json!(record.library)),
        ("binding", json!(record.binding)),
        ("driver_version", json!(record.driver_version)),
        ("git_commit", json!(record.git_commit)),
        ("git_modified", json!(record.git_modified)),
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
        ("agrees", json!(parity.map(|parity| parity.agrees))),
        ("parity", json!(parity.map(|parity| &parity.text))),
        ("max_abs", json!(parity.and_then(|parity| parity.max_abs))),
        ("top1", json!(parity.and_then(|parity| parity.top1))),
        ("results", json!(record.results)),
    ];
    let mut line: Line = plain.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let known = Metric::ALL.iter().map(|metric| metric.name());
    // Metrics of newer versions come after those that are known.
    let is_known = |name: &str| Metric::ALL.iter().any(|metric| metric.name() == name);
    let newer = record.metrics.keys().map(String::as_str).filter(|name| !is_known(name));
    for name in known.chain(newer) {
        let figure = record.metrics.get(name);
        let interval = figure.and_then(|figure| figure.interval);
        line.push((name.to_owned(), json!(figure.map(|figure| figure.median))));
        line.push((format!("{name}_low"), json!(interval.map(|(low, _)| low))));
        line.push((format!("{name}_high"), json!(interval.map(|(_, high)| high))));
    }
    for part in PARTS {
        line.push((format!("memory_{part}"), json!(record.memory.get(part))));
    }
    line
}

const PARTS: [&str; 6] = ["framework", "parameters", "kv_cache", "activations", "remainder", "peak"];

/// With a column for whatever one of the lines has. Truth is spelt as Python does, which pandas, DuckDB and
/// scripts that compare text all take.
pub(super) fn csv(lines: &[Line]) -> String {
    let mut header: Vec<&str> = Vec::new();
    for (name, _) in lines.iter().flatten() {
        if !header.contains(&name.as_str()) {
            header.push(name);
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut write = |cells: Vec<String>| writer.write_record(&cells).expect("memory can be written");
    if !header.is_empty() {
        write(header.iter().map(|&name| name.to_owned()).collect());
    }
    for line in lines {
        let value = |name: &&str| line.iter().find(|(found, _)| found == name).map(|(_, value)| cell(value));
        write(header.iter().map(|name| value(name).unwrap_or_default()).collect());
    }
    String::from_utf8(writer.into_inner().expect("memory can be flushed")).expect("cells are UTF-8")
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
