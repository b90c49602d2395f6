//! Reports made up for tests.

use std::collections::BTreeMap;

use bundle::Precision;
use comparison::facts::{End, Environment, testing};
use comparison::judge::Metric;
use comparison::judge::report::variation::Steadiness;
use comparison::judge::report::verdicts::{Comparison, Verdict};
use comparison::judge::report::{
    Figure, LoadParts, Loads, Machine, Prepared, Report, Requested, Row, SCHEMA, State,
};
use comparison::judge::study::{self, Cell, StudyReport, columns};
use comparison::plan::{Axis, Plan, Setting, Settings, StudyView};
use serde_json::json;

pub(crate) fn figure(metric: Metric, median: Option<f64>) -> Figure {
    Figure::new(metric, vec![median; 6], Vec::new())
}

const FIGURES: [Metric; 5] =
    [Metric::Load, Metric::ColdStart, Metric::Latency, Metric::Throughput, Metric::PeakMemory];

pub(crate) fn row(framework: &str, state: State, medians: [Option<f64>; 5], reasons: &[&str]) -> Row {
    let load = Loads {
        warm_resident_before: Some(1.0),
        cold: vec![0.5],
        cold_median: Some(0.5),
        cold_resident_before: Some(0.0),
        cold_unavailable: None,
        parts: Some(LoadParts {
            framework_cpu_s: 0.1,
            system_cpu_s: 0.2,
            own_bytes: 540e6,
            mapped_bytes: 4e6,
        }),
        memory_ready_in: Some([0.05, 1.5]),
    };
    let precision = Requested { requested: Precision::F32, observed: Some("f32".into()), stored: None };
    let bare = json!({
        "framework": framework,
        "state": state,
        "reasons": [],
        "precision": precision,
        "rounds": if medians[0].is_some() { 6 } else { 0 },
        "metrics": [],
        "load": load,
        "steadiness": Steadiness::default(),
    });
    Row {
        reasons: reasons.iter().map(|reason| (*reason).to_owned().into()).collect(),
        metrics: FIGURES.into_iter().zip(medians).map(|(metric, median)| figure(metric, median)).collect(),
        ..serde_json::from_value(bare).expect("a row without anything that it need not have")
    }
}

pub(crate) fn environment() -> Environment {
    Environment {
        host: "host".into(),
        cpu: "A Processor".into(),
        cpu_family: None,
        cpu_caches: Vec::new(),
        threads_per_core: None,
        cpu_extensions: Vec::new(),
        is_virtual: None,
        physical_cores: Some(2),
        available_cores: 2,
        memory_bytes: 1 << 34,
        driver_version: "0".into(),
        command: vec!["photofinish".into()],
        started: "2026-01-01T00:00:00Z".into(),
        ..Environment::default()
    }
}

pub(crate) fn model() -> Prepared {
    Prepared {
        name: "a-model".into(),
        architecture: "llama".into(),
        bundle: "bundle".into(),
        manifest: bundle::Manifest {
            format: 1,
            name: "a-model".into(),
            source: bundle::Source { kind: "gguf".into(), seed: None, stored: None, sha256: BTreeMap::new() },
            no_tokenizer: None,
            files: BTreeMap::new(),
        },
        config: testing::config(),
        parameters: Some(135),
    }
}

fn comparison(metric: Metric, verdict: Verdict) -> Comparison {
    Comparison {
        metric,
        a: "ort".into(),
        b: "candle".into(),
        advantage: Some(1.9),
        interval: Some((1.8, 2.0)),
        statistics: None,
        verdict,
        reason: None,
    }
}

/// Two frameworks with figures, one that failed and one that cannot.
pub(crate) fn report() -> Report {
    let plan = Plan { cold_loads: 3, ..testing::plan(&["candle", "ort", "tch", "odd"]) };
    Report {
        schema: SCHEMA,
        environment: environment(),
        plan,
        model: model(),
        rows: vec![
            row("candle", State::Measured, [Some(0.21), Some(79.84), Some(17.7), Some(155.6), None], &[]),
            row("ort", State::Measured, [Some(0.588), Some(9.99), Some(1.25), Some(47.2), Some(0.69)], &[]),
            row("tch", State::Failed, [None; 5], &["it was ended by signal 9"]),
            row("odd", State::Unsupported, [None; 5], &["no bf16 kernels"]),
        ],
        comparisons: vec![
            comparison(Metric::Throughput, Verdict::Faster),
            comparison(Metric::Latency, Verdict::Faster),
            comparison(Metric::Load, Verdict::Inconclusive),
        ],
        rounds: 6,
        blocks: None,
        slices: None,
        time: Default::default(),
        end: End::Planned,
        prompts: Vec::new(),
        from_text: Vec::new(),
        slow_moments: Vec::new(),
        allowed: None,
        floor: Vec::new(),
        rules: Vec::new(),
        sanity: Vec::new(),
        hybrids: Vec::new(),
        machine: Machine::default(),
        warnings: vec!["odd: it kept 1.0 of 2 threads busy (R5)".to_owned().into()],
        other_runs: None,
        interrupted: false,
        results: "results/x".into(),
    }
}

/// A study of these cells, with all derived parts.
pub(crate) fn study(name: &str, view: StudyView, cells: Vec<Cell>) -> StudyReport {
    StudyReport {
        schema: SCHEMA,
        study: name.into(),
        command: vec!["photofinish".into()],
        started: "2026-01-01T00:00:00Z".into(),
        analysis: String::new(),
        published: None,
        planned: cells.iter().map(|cell| cell.settings.clone()).collect(),
        scaling: match view {
            StudyView::Sweep(kind) => columns::along(kind, &cells),
            StudyView::Ab(_) => Vec::new(),
        },
        outcomes: if matches!(view, StudyView::Ab(_)) { study::outcomes(&cells) } else { Vec::new() },
        cells,
        interrupted: false,
        results: "results/study".into(),
        view,
    }
}

/// A place on an axis, with 32 new tokens.
pub(crate) fn at(axis: Axis, value: u32) -> Settings {
    Settings::from([(axis, Setting::Number(value)), (Axis::NewTokens, Setting::Number(32))])
}

/// A cell of two frameworks that decode so many tokens a second.
pub(crate) fn cell(settings: Settings, throughputs: [f64; 2]) -> Cell {
    let medians = |throughput: f64| [0.5, 80.0, 1000.0 / throughput, throughput, 0.7].map(Some);
    let mut report = report();
    report.rows.truncate(2);
    for (row, throughput) in report.rows.iter_mut().zip(throughputs) {
        let metrics = FIGURES.into_iter().zip(medians(throughput));
        row.metrics = metrics.map(|(metric, median)| figure(metric, median)).collect();
    }
    Cell::new(settings, &report)
}
