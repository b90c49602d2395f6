//! Records from a report.json that came from anywhere: what the history would have kept of that run.

use std::collections::BTreeMap;

use history::{Case, Figure, Machine, Parity, Record, SCHEMA, Settings};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use statistics::median_interval;

use crate::judge::fairness::MACHINE;
use crate::judge::metrics::Metric;
use crate::records::{self, MadeOf};
use crate::report;

/// The part of a report that records are made of.
#[derive(Deserialize)]
struct Report {
    environment: Environment,
    plan: Plan,
    model: Model,
    rows: Vec<Value>,
    rules: Vec<Rule>,
    machine: Probed,
    interrupted: bool,
    results: String,
}

#[derive(Deserialize)]
struct Environment {
    host: String,
    os: Option<String>,
    kernel: Option<String>,
    cpu: String,
    physical_cores: Option<usize>,
    available_cores: usize,
    cpu_quota: Option<f64>,
    memory_bytes: u64,
    gpus: Vec<Gpu>,
    git_commit: Option<String>,
    git_modified: Option<bool>,
    driver_version: String,
    command: Vec<String>,
    started: String,
}

#[derive(Deserialize)]
struct Gpu {
    name: String,
}

#[derive(Deserialize)]
struct Plan {
    contenders: Vec<Contender>,
    device: String,
    threads: usize,
    jit: bool,
    batch: usize,
    context: usize,
    new_tokens: usize,
    decode: Value,
    iterations: usize,
    margin: f64,
    accept_noise: bool,
    fair_comparison: bool,
    seed: u64,
    suite: Option<String>,
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Contender {
    label: String,
    jit: bool,
    threads: usize,
    kv_cache: String,
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Model {
    name: String,
    manifest: bundle::Manifest,
}

#[derive(Deserialize)]
struct Rule {
    broken_by: Vec<Breach>,
}

#[derive(Deserialize)]
struct Breach {
    framework: String,
    finding: String,
    remedy: String,
}

#[derive(Deserialize)]
struct Probed {
    probes: Vec<Probe>,
}

#[derive(Deserialize)]
struct Probe {
    read_bandwidth: f64,
    arithmetic: f64,
}

#[derive(Deserialize)]
struct MetricOfRow {
    metric: String,
    unit: String,
    median: Option<f64>,
    values: Vec<Option<f64>>,
}

/// `Err` says what is not as it should be.
pub(super) fn records(text: &str) -> Result<Vec<Record>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
    match value.get("schema").and_then(Value::as_u64) {
        Some(schema) if schema == u64::from(report::SCHEMA) => {}
        Some(schema) => {
            return Err(format!("it has schema {schema}, and this driver reads {}", report::SCHEMA));
        }
        None => return Err("it is no report of a comparison".into()),
    }
    let report: Report =
        serde_json::from_value(value).map_err(|error| format!("it is no report of a comparison: {error}"))?;
    report.rows.iter().map(|row| record(&report, row)).collect()
}

fn record(report: &Report, row: &Value) -> Result<Record, String> {
    let Report { environment, plan, model, .. } = report;
    let framework: String = of(row, "/framework")?;
    let precision: String = of(row, "/precision/requested")?;
    let contender = plan.contenders.iter().find(|contender| contender.label == framework);
    let metrics: Vec<MetricOfRow> = of(row, "/metrics")?;
    let run = std::path::Path::new(&report.results).file_name();
    let weights = model.manifest.files.get(&format!("{precision}.safetensors"));
    let max_abs: Option<f64> = of(row, "/agreement/max_abs")?;
    let broken: Option<String> = of(row, "/agreement/broken")?;
    Ok(Record {
        schema: SCHEMA,
        run: run.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        results: report.results.clone(),
        study: None,
        time: environment.started.clone(),
        git_commit: environment.git_commit.clone(),
        git_modified: environment.git_modified,
        driver_version: environment.driver_version.clone(),
        command: environment.command.clone(),
        request: None,
        machine: machine(report),
        case: Case {
            model: model.name.clone(),
            weights_sha256: weights.map(|file| file.sha256.clone()),
            precision,
            device: plan.device.clone(),
            threads: contender.map_or(plan.threads, |contender| contender.threads),
            batch: plan.batch,
            context: plan.context,
            prompt_tokens: plan.prompts.iter().map(|prompt| prompt.tokens.len()).collect(),
            new_tokens: plan.new_tokens,
            // What is drawn has its settings with it.
            decode: plan.decode.as_str().unwrap_or("sampled").to_owned(),
            kv_cache: contender.map_or_else(String::new, |contender| contender.kv_cache.clone()),
            jit: contender.map_or(plan.jit, |contender| contender.jit),
            other: Default::default(),
        },
        settings: Settings {
            suite: plan.suite.clone(),
            fair_comparison: plan.fair_comparison,
            iterations: plan.iterations,
            margin: plan.margin,
            seed: plan.seed,
            accept_noise: plan.accept_noise,
            other: Default::default(),
        },
        framework,
        library: of(row, "/hello/library")?,
        binding: of(row, "/hello/binding")?,
        optimised: None,
        state: of(row, "/state")?,
        reasons: of(row, "/reasons")?,
        rounds: of(row, "/rounds")?,
        interrupted: report.interrupted,
        noise: noise(report),
        parity: max_abs.map(|max_abs| Parity {
            agrees: broken.is_none(),
            text: broken.clone().unwrap_or_else(|| format!("ok, Δ = {max_abs:.1e}")),
            reference: of(row, "/agreement/reference").ok(),
            max_abs: Some(max_abs),
            top1: of(row, "/agreement/top1").ok(),
            other: Default::default(),
        }),
        metrics: metrics.into_iter().filter_map(figure).collect(),
        memory: BTreeMap::new(),
        verdicts: Vec::new(),
        other: Default::default(),
    })
}

/// What a report has at this place; what is not there is `null`.
fn of<T: DeserializeOwned>(row: &Value, pointer: &str) -> Result<T, String> {
    let value = row.pointer(pointer).cloned().unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(|error| format!("a row's {pointer} cannot be read: {error}"))
}

fn figure(figure: MetricOfRow) -> Option<(String, Figure)> {
    let known: Vec<f64> = figure.values.iter().copied().flatten().collect();
    let metric = Metric::ALL.into_iter().find(|metric| metric.name() == figure.metric)?;
    let kept = Figure {
        unit: figure.unit,
        higher_is_better: metric.higher_is_better(),
        median: figure.median?,
        interval: median_interval(&known),
        values: figure.values,
        other: Default::default(),
    };
    Some((figure.metric, kept))
}

fn machine(report: &Report) -> Machine {
    let environment = &report.environment;
    let gpus: Vec<String> = environment.gpus.iter().map(|gpu| gpu.name.clone()).collect();
    let probes = |of: fn(&Probe) -> f64| report.machine.probes.iter().map(of).collect::<Vec<f64>>();
    let (bandwidths, arithmetic) = (probes(|probe| probe.read_bandwidth), probes(|probe| probe.arithmetic));
    let made_of = MadeOf {
        cpu: &environment.cpu,
        physical_cores: environment.physical_cores,
        available_cores: environment.available_cores,
        cpu_quota: environment.cpu_quota,
        memory_bytes: environment.memory_bytes,
        gpus: &gpus,
    };
    Machine {
        fingerprint: made_of.fingerprint(),
        host: environment.host.clone(),
        os: environment.os.clone(),
        kernel: environment.kernel.clone(),
        cpu: environment.cpu.clone(),
        physical_cores: environment.physical_cores,
        available_cores: environment.available_cores,
        memory_bytes: environment.memory_bytes,
        read_bandwidth: statistics::median(&bandwidths),
        arithmetic: statistics::median(&arithmetic),
        other: records::probe_intervals(&bandwidths, &arithmetic),
        gpus,
    }
}

fn noise(report: &Report) -> Option<String> {
    let breaches = report.rules.iter().flat_map(|rule| &rule.broken_by);
    let mut of_machine = breaches.filter(|breach| breach.framework == MACHINE && !report.plan.accept_noise);
    of_machine.next().map(|breach| format!("{}; {}", breach.finding, breach.remedy))
}
