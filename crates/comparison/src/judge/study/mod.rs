//! The summary of a study's cells. Each cell is a complete comparison with its own reference, parity gate,
//! fairness rules and verdicts; a study only shows them together.

pub mod columns;

use std::collections::BTreeMap;

use columns::Scaling;
pub use columns::{Crossing, crossings};
use configs::Published;
use protocol::untrusted::{Foreign, Foreigns};
use serde::{Deserialize, Serialize};

use crate::facts::agreement::{self, Agreement, QualityScore};
use crate::judge::metrics::Metric;
use crate::judge::report::memory::Parts;
use crate::judge::report::variation::Steadiness;
use crate::judge::report::verdicts::{Comparison, Verdict};
use crate::judge::report::{self, Reason, Report, Row, State, Warning};
use crate::plan::sweep::without_jit;
use crate::plan::{Axis, Setting, Settings, StudyView};

// A/B studies: each framework with an optimisation and without it, paired by round.

/// One framework at one place, with and without.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub settings: Settings,
    /// The reason why there is nothing to compare, if there is one.
    pub reason: Option<String>,
    pub a: Option<Side>,
    pub b: Option<Side>,
    /// The speed-up of decoding or encoding: a's throughput ÷ b's, with its 95 % interval, and the verdict on
    /// a. For a mistake: b's time of a whole request ÷ a's.
    pub speedup: Option<f64>,
    #[serde(deserialize_with = "crate::facts::agreement::interval")]
    pub interval: Option<(f64, f64)>,
    pub verdict: Option<Verdict>,
    /// Change of the peak memory as a share: a's peak ÷ b's − 1.
    pub memory_change: Option<f64>,
    /// Number of tokens chosen in the timed loop, and how many of them are the same in both arms.
    pub tokens: usize,
    pub same_tokens: usize,
    /// Parity of both arms, in words.
    pub parity: [String; 2],
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    pub contender: String,
    pub precision: String,
    /// Throughput in tokens per second, or in texts per second.
    pub throughput: Option<f64>,
    /// Time of one request in milliseconds, to its last mark.
    pub total_ms: Option<f64>,
    pub peak_memory: Option<f64>,
}

pub fn outcomes(cells: &[Cell]) -> Vec<Outcome> {
    cells.iter().map(outcome).collect()
}

fn outcome(cell: &Cell) -> Outcome {
    let [a, b] = [cell.rows.first(), cell.rows.get(1)];
    let of_pair = |metric: Metric| {
        let verdict = cell.verdicts.iter().find(|verdict| verdict.metric == metric)?;
        let is_a = Some(verdict.a.as_str()) == a.map(|row| row.framework.as_str());
        let turned = |(low, high): (f64, f64)| if is_a { (low, high) } else { (1.0 / high, 1.0 / low) };
        let word = if is_a { verdict.verdict } else { verdict.verdict.turned() };
        let speedup = verdict.advantage.map(|times| if is_a { times } else { 1.0 / times });
        Some((speedup, verdict.interval.map(turned), word))
    };
    let decides = deciding(cell);
    let (speedup, interval, verdict) = match of_pair(decides) {
        Some((speedup, interval, verdict)) => (speedup, interval, Some(verdict)),
        None => (None, None, None),
    };
    let peak = |row: Option<&CellRow>| row?.typical(Metric::PeakMemory);
    // One round cannot separate a difference from chance, but it gives this estimate.
    let figure = |row: Option<&CellRow>| row?.typical(decides);
    let speedup = speedup.or_else(|| {
        let (a, b) = (figure(a)?, figure(b)?);
        Some(if decides.higher_is_better() { a / b } else { b / a })
    });
    let throughput = throughput(cell);
    let (tokens, same_tokens) = same(a, b);
    let reasons =
        || cell.rows.iter().flat_map(|row| row.reasons.iter().map(|why| format!("{}: {why}", row.framework)));
    Outcome {
        settings: cell.settings.clone(),
        reason: cell.refused.clone().or_else(|| reasons().next()),
        a: a.map(|row| side(row, throughput, total(cell))),
        b: b.map(|row| side(row, throughput, total(cell))),
        speedup,
        interval,
        verdict,
        memory_change: peak(a).zip(peak(b)).map(|(a, b)| a / b - 1.0),
        tokens,
        same_tokens,
        parity: [a, b].map(|row| row.map_or("not run".into(), |row| row.parity.clone())),
    }
}

/// Whether these are the places of mistakes. Their cost is that of a whole request.
pub fn has_mistakes(planned: &[Settings]) -> bool {
    planned.iter().any(|settings| settings.contains_key(&Axis::Mistake))
}

/// Sorts the cells of mistakes by their cost, the worst first; those that could not be measured come last.
pub fn by_cost(cells: &mut [Cell]) {
    let cost = |cell: &Cell| outcome(cell).speedup.unwrap_or(0.0);
    cells.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
}

/// The metric that both sides of a cell are compared by.
fn deciding(cell: &Cell) -> Metric {
    if has_mistakes(std::slice::from_ref(&cell.settings)) { total(cell) } else { throughput(cell) }
}

/// The throughput of a cell, or that of its batches of texts.
pub fn throughput(cell: &Cell) -> Metric {
    if has(cell, Metric::EncodingThroughput) { Metric::EncodingThroughput } else { Metric::Throughput }
}

/// The time of a whole request in a cell: for a single encoded text, its own.
fn total(cell: &Cell) -> Metric {
    if has(cell, Metric::SingleText) { Metric::SingleText } else { Metric::Total }
}

fn has(cell: &Cell, metric: Metric) -> bool {
    cell.rows.iter().any(|row| row.metrics.contains_key(&metric))
}

/// What each arm of a cell is shown with: times of a request and of a token, throughput and memory.
pub fn arm_metrics(cell: &Cell) -> Vec<Metric> {
    let all = [total(cell), Metric::Latency, throughput(cell), Metric::PeakMemory];
    all.into_iter().filter(|&metric| has(cell, metric)).collect()
}

fn side(row: &CellRow, throughput: Metric, total: Metric) -> Side {
    Side {
        contender: row.framework.clone(),
        precision: row.precision.clone(),
        throughput: row.typical(throughput),
        total_ms: row.typical(total),
        peak_memory: row.typical(Metric::PeakMemory),
    }
}

/// Number of tokens that both sides chose in the timed loop, and how many of them are the same.
fn same(a: Option<&CellRow>, b: Option<&CellRow>) -> (usize, usize) {
    let flat = |row: &CellRow| -> Option<Vec<u32>> {
        Some(row.tokens.as_ref()?.iter().flatten().flatten().copied().collect())
    };
    let Some((a, b)) = a.and_then(flat).zip(b.and_then(flat)) else { return (0, 0) };
    (a.len().max(b.len()), a.iter().zip(&b).filter(|(a, b)| a == b).count())
}

/// Growth of the speed-up, and of the time of either side, with the number of new tokens.
pub fn scaling(outcomes: &[Outcome]) -> Vec<Scaling> {
    let mut places: Vec<Settings> = Vec::new();
    let place_of = |outcome: &Outcome| columns::without(&outcome.settings, Axis::NewTokens);
    for outcome in outcomes {
        if !places.contains(&place_of(outcome)) {
            places.push(place_of(outcome));
        }
    }
    let mut all = Vec::new();
    for place in places {
        let here: Vec<&Outcome> = outcomes.iter().filter(|outcome| place_of(outcome) == place).collect();
        for pick in [|o: &Outcome| o.a.clone(), |o: &Outcome| o.b.clone()] {
            let points = here.iter().filter_map(|outcome| {
                let Setting::Number(tokens) = outcome.settings.get(&Axis::NewTokens)? else { return None };
                Some((f64::from(*tokens), pick(outcome)?.total_ms?))
            });
            let points: Vec<(f64, f64)> = points.collect();
            let name = here.iter().find_map(|outcome| Some(pick(outcome)?.contender));
            let (at, name) = (columns::without(&place, Axis::Framework), name.unwrap_or_default());
            all.extend(columns::scaling(&name, Axis::NewTokens, at, Metric::Total, &points));
        }
    }
    all
}

// One cell of a study: a comparison, reduced to the figures for the study's own tables. The complete
// comparison is in the results directory that the cell names.

/// The exit code of a comparison on a machine that was too noisy.
const NOISY: u8 = 3;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub settings: Settings,
    /// The reason why nothing was measured.
    pub refused: Option<String>,
    /// The exit code that the comparison alone would have had.
    pub exit_code: u8,
    /// Whether a column varies by more than `--max-cv`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_beyond_max_cv: bool,
    pub rounds: usize,
    /// Bytes of the weights as stored, at the precision asked for.
    pub weights_bytes: Option<f64>,
    pub rows: Vec<CellRow>,
    /// The verdict on every pair and metric.
    pub verdicts: Vec<Comparison>,
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
    pub typical: Option<f64>,
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Cell {
    pub fn new(settings: Settings, report: &Report) -> Cell {
        let weights = report.rows.iter().filter_map(|row| Some(row.memory.as_ref()?.parameters));
        Cell {
            settings,
            refused: None,
            exit_code: report.exit_code(),
            is_beyond_max_cv: report.is_beyond_max_cv() && report.noise().is_none(),
            rounds: report.rounds,
            weights_bytes: weights.reduce(f64::max),
            rows: report.rows.iter().map(CellRow::new).collect(),
            verdicts: report.comparisons.clone(),
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
        self.exit_code == NOISY && !self.is_beyond_max_cv
    }

    /// The cell of a combination that cannot be measured.
    pub fn refused(settings: Settings, reason: String) -> Cell {
        Cell { settings, refused: Some(reason), ..Cell::default() }
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
        let figure = |figure: &crate::judge::report::Figure| {
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

// The outcome of a study as one value.

/// The outcome as one value. Crate `render` makes the table, Markdown, CSV and JSON from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyReport {
    pub schema: u32,
    pub study: String,
    pub command: Vec<String>,
    pub started: String,
    /// The analysis of the suite that named it: its conclusions and their limits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub analysis: String,
    /// Published figures, to be shown next to these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Published>,
    /// Places of all planned cells. A planned cell that is missing was not reached.
    pub planned: Vec<Settings>,
    pub cells: Vec<Cell>,
    pub scaling: Vec<Scaling>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Outcome>,
    pub interrupted: bool,
    /// Directory that holds every comparison.
    pub results: String,
    pub view: StudyView,
}

/// Reads `report.json` of a study back. The error is one sentence.
pub fn read(text: &str) -> Result<StudyReport, String> {
    let report: StudyReport = agreement::document(text, report::SCHEMA, "the report of a study")?;
    report.cells.iter().try_for_each(Cell::check)?;
    Ok(report)
}

/// The axes with a column: those that vary and those that the study is named for.
pub fn axes(document: &StudyReport) -> Vec<Axis> {
    let own: &[Axis] = match &document.view {
        StudyView::Sweep(kind) => kind.own_axes(),
        StudyView::Ab(_) => &[Axis::Framework],
    };
    let Some(first) = document.planned.first() else { return Vec::new() };
    let varied = varied(&document.planned);
    first.keys().filter(|axis| own.contains(axis) || varied.contains(axis)).copied().collect()
}

/// Axes on which cells differ.
pub fn varied(planned: &[Settings]) -> Vec<Axis> {
    let Some(first) = planned.first() else { return Vec::new() };
    let varies = |axis: &&Axis| planned.iter().any(|settings| settings.get(axis) != first.get(axis));
    first.keys().filter(varies).copied().collect()
}

impl StudyReport {
    /// The worst exit code of its cells; 0 if the remaining cells could not be measured by their nature.
    pub fn exit_code(&self) -> u8 {
        self.cells.iter().map(|cell| cell.exit_code).max().unwrap_or(0)
    }
}

/// Fills in everything that is derived from the cells of `report`: outcomes, scaling.
pub fn new(mut report: StudyReport) -> StudyReport {
    if has_mistakes(&report.planned) {
        by_cost(&mut report.cells);
    }
    report.outcomes = match &report.view {
        StudyView::Ab(_) => outcomes(&report.cells),
        StudyView::Sweep(_) => Vec::new(),
    };
    report.scaling = match &report.view {
        StudyView::Sweep(kind) => columns::along(*kind, &report.cells),
        StudyView::Ab(_) => scaling(&report.outcomes),
    };
    report
}

// Cost and gain of compiling: a contender compared with itself without its JIT, in the same rounds.

/// A contender with a JIT, and the same without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compiled {
    /// Extra time of first runs compared with those without the JIT, in milliseconds.
    pub compiling_ms: f64,
    /// Time of a token with and without, in steady processes, in milliseconds.
    pub with_ms: f64,
    pub without_ms: f64,
}

impl Compiled {
    /// The figures of a row with its counterpart in the cell.
    pub fn new(cell: &Cell, row: &CellRow) -> Option<Compiled> {
        let name = without_jit(&row.framework);
        let other = cell.rows.iter().find(|other| other.framework == name)?;
        let cost = |row: &CellRow| Some(row.steadiness.first_runs.as_ref()?.cost_ms);
        Some(Compiled {
            compiling_ms: cost(row)? - cost(other)?,
            with_ms: row.typical(Metric::Latency)?,
            without_ms: other.typical(Metric::Latency)?,
        })
    }

    /// The number of tokens after which the time for compiling is regained: 1 if compiling takes none, `None`
    /// if a token gains nothing.
    pub fn pays_from(&self) -> Option<u64> {
        let gained = self.without_ms - self.with_ms;
        (gained > 0.0).then(|| (self.compiling_ms / gained).ceil().max(1.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(compiling_ms: f64, with_ms: f64, without_ms: f64) -> Compiled {
        Compiled { compiling_ms, with_ms, without_ms }
    }

    #[test]
    fn compiling_pays_once_its_time_is_gained_back() {
        assert_eq!(compiled(1000.0, 10.0, 60.0).pays_from(), Some(20));
        assert_eq!(compiled(1001.0, 10.0, 60.0).pays_from(), Some(21));
        assert_eq!(compiled(-3.0, 10.0, 60.0).pays_from(), Some(1));
        assert_eq!(compiled(1000.0, 60.0, 60.0).pays_from(), None);
    }
}
