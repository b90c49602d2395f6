//! One cell of a study: a comparison, reduced to the figures for the study's own tables. The complete
//! comparison is in the results directory that the cell names.

use std::collections::BTreeMap;
use untrusted::{Foreign, Foreigns};

use serde::{Deserialize, Serialize};

use crate::metrics::Metric;
use crate::report::crossed::Crossed;
use crate::report::verdicts::Comparison;
use crate::report::work::generate::steady::Steadiness;
use crate::report::work::memory::Parts;
use crate::report::{Reason, Report, Row, State, Warning};
use facts::agreement::Agreement;
use facts::text::QualityScore;
use plan::{Axis, Setting, Settings};

/// The exit code of a comparison on a machine that was too noisy.
const NOISY: u8 = 3;

/// One comparison of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The cell's values on the axes.
    pub settings: Settings,
    /// The reason why nothing was measured.
    pub refused: Option<String>,
    /// The exit code that the comparison alone would have had.
    pub exit_code: u8,
    /// Number of complete rounds.
    pub rounds: usize,
    /// Bytes of the weights as stored, at the precision asked for.
    pub weights_bytes: Option<f64>,
    pub rows: Vec<CellRow>,
    /// The verdict on every pair and metric.
    pub verdicts: Vec<Comparison>,
    /// The effects of crossed switches, in a cell of `ab optimised`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crossed: Option<Crossed>,
    pub warnings: Vec<Warning>,
    /// Directory of the comparison.
    pub results: Option<String>,
    /// The versions and the seed of its measurement. Empty in results that did not store them yet.
    #[serde(default)]
    pub origin: Origin,
}

/// The versions and the seed of a comparison, to repeat it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Version of Photofinish.
    pub driver_version: String,
    pub git_commit: Option<String>,
    /// Whether tracked files differed from the commit.
    pub git_modified: Option<bool>,
    pub seed: Option<u64>,
    /// Margin within which figures are equivalent, as a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// The contenders' libraries with their versions, each once.
    pub libraries: Foreigns,
}

/// One contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellRow {
    pub framework: String,
    pub state: State,
    pub reasons: Vec<Reason>,
    /// The row's state in short, as in the table of a comparison.
    pub parity: String,
    pub precision: String,
    /// In each metric's unit.
    pub metrics: BTreeMap<Metric, Figure>,
    pub memory: Option<Parts>,
    pub agreement: Option<Agreement>,
    pub steadiness: Steadiness,
    pub text: Option<QualityScore>,
    /// `[case][batch][new tokens]` of the last measured iteration.
    pub tokens: Option<Vec<Vec<Vec<u32>>>>,
}

/// A metric over processes: the figure shown by outputs, the median, and the least and largest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Geometric mean over rounds; `null` in a study of an older version.
    #[serde(default)]
    pub typical: Option<f64>,
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Cell {
    /// The cell of a finished comparison.
    pub fn new(settings: Settings, report: &Report) -> Cell {
        let weights = report.rows.iter().filter_map(|row| Some(row.memory.as_ref()?.parameters));
        Cell {
            settings,
            refused: None,
            exit_code: report.exit_code(),
            rounds: report.rounds,
            weights_bytes: weights.reduce(f64::max),
            rows: report.rows.iter().map(CellRow::new).collect(),
            verdicts: report.comparisons.clone(),
            crossed: report.crossed.clone(),
            warnings: report.warnings.iter().filter(|warning| !warning.is_of_study()).cloned().collect(),
            results: Some(report.results.clone()),
            origin: Origin::new(report),
        }
    }

    /// Rejects impossible figures. A cell that is read may come from anyone.
    pub fn check(&self) -> Result<(), String> {
        for row in &self.rows {
            for (metric, figure) in &row.metrics {
                let Figure { typical, median, min, max } = *figure;
                metric.check(&row.framework, [typical, Some(median), Some(min), Some(max)])?;
            }
        }
        Ok(())
    }

    /// Whether the machine was too noisy for verdicts on speed. The figures exist, but are disturbed.
    pub fn is_noisy(&self) -> bool {
        self.exit_code == NOISY
    }

    /// The cell of a combination that cannot be measured.
    pub fn refused(settings: Settings, reason: String) -> Cell {
        Cell {
            settings,
            refused: Some(reason),
            exit_code: 0,
            rounds: 0,
            weights_bytes: None,
            rows: Vec::new(),
            verdicts: Vec::new(),
            crossed: None,
            warnings: Vec::new(),
            results: None,
            origin: Origin::default(),
        }
    }
}

impl Origin {
    fn new(report: &Report) -> Origin {
        let mut libraries: Vec<Foreign> = Vec::new();
        for hello in report.rows.iter().filter_map(|row| row.hello.as_ref()) {
            if !libraries.contains(&hello.library) {
                libraries.push(hello.library.clone());
            }
        }
        Origin {
            driver_version: report.environment.driver_version.clone(),
            git_commit: report.environment.git_commit.clone(),
            git_modified: report.environment.git_modified,
            seed: Some(report.plan.seed),
            margin: Some(report.plan.margin),
            libraries: libraries.into(),
        }
    }
}

/// The cell's place on those `axes`: "batch 4, prompt 128".
pub fn name(settings: &Settings, axes: &[Axis]) -> String {
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

impl CellRow {
    fn new(row: &Row) -> CellRow {
        let figure = |figure: &crate::report::Figure| {
            let (median, min, max) = (figure.median?, figure.min?, figure.max?);
            let values = Figure { typical: figure.typical, median, min, max };
            Some((figure.metric, values))
        };
        CellRow {
            framework: row.framework.clone(),
            state: row.state,
            reasons: row.reasons.clone(),
            parity: row.parity_words(),
            precision: row.precision_words(),
            metrics: row.metrics.iter().filter_map(figure).collect(),
            memory: row.memory.clone(),
            agreement: row.agreement.clone(),
            steadiness: row.steadiness.clone(),
            text: row.text,
            tokens: row.tokens.clone(),
        }
    }

    /// The figure of a metric that every output shows, in its unit.
    pub fn typical(&self, metric: Metric) -> Option<f64> {
        self.metrics.get(&metric)?.typical
    }
}
