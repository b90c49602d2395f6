//! Records made up for tests.

use crate::history::{Case, Figure, Machine, Record, SCHEMA, Settings};
use crate::judge::metrics::Metric;
use crate::judge::report::State;
use crate::judge::work;

/// Noise of six processes: mean logarithm 0, standard deviation 0.4 %.
const PROCESSES: [f64; 6] = [1.004, 0.996, 1.002, 0.998, 1.005, 0.995];

/// A framework with six processes that decodes so many tokens a second.
pub fn record(framework: &str, throughput: f64) -> Record {
    let mut record = Record {
        schema: SCHEMA,
        run: "20260101T000000Z-host".into(),
        results: "results/20260101T000000Z-host".into(),
        study: None,
        time: "2026-01-01T00:00:00Z".into(),
        git_commit: Some("0123456789abcdef".into()),
        git_modified: Some(false),
        driver_version: "0".into(),
        command: vec!["photofinish".into()],
        request: None,
        machine: Machine {
            fingerprint: "f".into(),
            host: "host".into(),
            cpu: "A Processor".into(),
            available_cores: 2,
            ..Machine::default()
        },
        case: Case {
            model: "a-model".into(),
            weights_sha256: Some("abc".into()),
            precision: "f32".into(),
            device: "cpu".into(),
            threads: 2,
            batch: 1,
            prompt_tokens: vec![16],
            jit: true,
            ..work::forced(32)
        },
        settings: Settings {
            fair_comparison: true,
            iterations: 2,
            turn: "request".into(),
            margin: 0.02,
            ..Settings::default()
        },
        framework: framework.into(),
        library: Some("lib 1".into()),
        binding: None,
        optimised: None,
        state: State::Measured,
        reasons: Vec::new(),
        rounds: 6,
        interrupted: false,
        noise: None,
        parity: None,
        metrics: Default::default(),
        memory: Default::default(),
        verdicts: Vec::new(),
        other: Default::default(),
    };
    set(&mut record, Metric::Throughput, throughput);
    set(&mut record, Metric::Latency, 1000.0 / throughput);
    set(&mut record, Metric::Load, 0.5);
    record
}

pub fn set(record: &mut Record, metric: Metric, typical: f64) {
    let higher_is_better = metric.higher_is_better();
    // A slow process is slow in both metrics.
    let of = |factor: &f64| Some(if higher_is_better { typical / factor } else { typical * factor });
    let figure = Figure {
        unit: metric.unit().into(),
        higher_is_better,
        typical,
        interval: None,
        values: PROCESSES.iter().map(of).collect(),
        other: Default::default(),
    };
    record.metrics.insert(metric.name().into(), figure);
}
