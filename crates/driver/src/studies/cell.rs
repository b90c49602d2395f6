//! One cell of a study: a comparison, as far as the study's own tables need it. The whole of it lies in the
//! results directory that the cell names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::axes::{Axis, Setting, Settings};
use crate::judge::fairness::COMPARED;
use crate::judge::memory::Parts;
use crate::judge::metrics::Metric;
use crate::judge::parity::Agreement;
use crate::judge::steady::Steadiness;
use crate::judge::text::TextScore;
use crate::judge::verdicts::{Comparison, Verdict};
use crate::report::{Report, Row, State};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// What was varied, by axis.
    pub(crate) settings: Settings,
    /// Why nothing was measured.
    pub(crate) refused: Option<String>,
    /// What the comparison alone would have ended with.
    pub(crate) exit_code: u8,
    pub(crate) rounds: usize,
    /// Bytes of the weights as stored, at the precision asked for.
    pub(crate) weights_bytes: Option<f64>,
    pub(crate) rows: Vec<CellRow>,
    /// Of every pair and metric.
    pub(crate) verdicts: Vec<CellVerdict>,
    pub(crate) warnings: Vec<String>,
    /// Directory of the comparison.
    pub(crate) results: Option<String>,
}

/// One contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellRow {
    pub(crate) framework: String,
    pub(crate) state: State,
    pub(crate) reasons: Vec<String>,
    /// In short, as in the table of a comparison.
    pub(crate) parity: String,
    pub(crate) precision: String,
    /// Medians over processes, in each metric's unit.
    pub(crate) metrics: BTreeMap<Metric, Figure>,
    pub(crate) memory: Option<Parts>,
    pub(crate) agreement: Option<Agreement>,
    pub(crate) steadiness: Steadiness,
    pub(crate) text: Option<TextScore>,
    /// `[case][batch][new tokens]` of the last measured iteration.
    pub(crate) tokens: Option<Vec<Vec<Vec<u32>>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellVerdict {
    pub(crate) metric: Metric,
    /// The better of the two by its estimate.
    pub(crate) a: String,
    pub(crate) b: String,
    pub(crate) verdict: Verdict,
    pub(crate) sentence: String,
    /// How many times better a is, with its 95 % interval.
    pub(crate) advantage: Option<f64>,
    pub(crate) interval: Option<(f64, f64)>,
}

impl Cell {
    pub(crate) fn of(settings: Settings, report: &Report) -> Cell {
        let weights = report.rows.iter().filter_map(|row| Some(row.memory.as_ref()?.parameters));
        Cell {
            settings,
            refused: None,
            exit_code: report.exit_code(),
            rounds: report.rounds,
            weights_bytes: weights.reduce(f64::max),
            rows: report.rows.iter().map(CellRow::of).collect(),
            verdicts: report.comparisons.iter().map(CellVerdict::of).collect(),
            warnings: report.warnings.iter().filter(|text| !is_of_study(text)).cloned().collect(),
            results: Some(report.results.clone()),
        }
    }

    /// A combination that cannot be measured.
    pub(crate) fn refused(settings: Settings, reason: String) -> Cell {
        Cell {
            settings,
            refused: Some(reason),
            exit_code: 0,
            rounds: 0,
            weights_bytes: None,
            rows: Vec::new(),
            verdicts: Vec::new(),
            warnings: Vec::new(),
            results: None,
        }
    }
}

/// "batch 4, prompt 128": the place on those `axes`.
pub(crate) fn name(settings: &Settings, axes: &[Axis]) -> String {
    let place = |axis: &Axis| {
        let value = settings.get(axis)?;
        Some(if matches!(value, Setting::Name(_)) {
            value.to_string()
        } else {
            format!("{} {value}", axis.title().to_lowercase())
        })
    };
    axes.iter().filter_map(place).collect::<Vec<_>>().join(", ")
}

/// Departures that are what the study is about are no warnings in its table.
fn is_of_study(warning: &str) -> bool {
    warning.contains(COMPARED)
}

impl CellRow {
    fn of(row: &Row) -> CellRow {
        let figure = |figure: &crate::report::Figure| {
            let values = Figure { median: figure.median?, min: figure.min?, max: figure.max? };
            Some((figure.metric, values))
        };
        CellRow {
            framework: row.framework.clone(),
            state: row.state,
            reasons: row.reasons.clone(),
            parity: crate::report::parity(row),
            precision: crate::report::precision(row),
            metrics: row.metrics.iter().filter_map(figure).collect(),
            memory: row.memory.clone(),
            agreement: row.agreement.clone(),
            steadiness: row.steadiness.clone(),
            text: row.text,
            tokens: row.tokens.clone(),
        }
    }

    pub(crate) fn median(&self, metric: Metric) -> Option<f64> {
        Some(self.metrics.get(&metric)?.median)
    }
}

impl CellVerdict {
    fn of(comparison: &Comparison) -> CellVerdict {
        CellVerdict {
            metric: comparison.metric,
            a: comparison.a.clone(),
            b: comparison.b.clone(),
            verdict: comparison.verdict,
            sentence: comparison.sentence.clone(),
            advantage: comparison.advantage,
            interval: comparison.interval,
        }
    }
}
