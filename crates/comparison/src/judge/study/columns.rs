//! The columns of a sweep's table.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use super::{Cell, CellRow, Compiled};
use crate::judge::metrics::Metric;
use crate::judge::report::memory::Part;
use crate::judge::report::{State, number};
use crate::plan::sweep::SweepKind;
use crate::plan::work::denoise::TOKEN_BY_TOKEN;
use crate::plan::{Axis, Setting, Settings};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Metric(Metric),
    /// Megabytes (10⁶ bytes).
    Memory(Part),
    /// Throughput ÷ throughput at the first value of the axis of batches or threads, and the efficiency: that ratio ÷
    /// the ratio of the values.
    Efficiency,
    Perplexity,
    Kl,
    Top1,
    /// Cosine of the vectors of texts with those in f32.
    MeanCosine,
    MinCosine,
    /// Share of the ten best documents in f32 that are found at this precision.
    Top10,
    KendallTau,
    WeightsSize,
    /// Extra time of cold start and warm-up over the same work later.
    FirstRuns,
    /// The part of it that disappears without the JIT.
    Compiling,
    /// Number of tokens from which on compiling pays.
    PaysFrom,
    SettledAt,
    /// The result of 5 tokens of warm-up and a test of 15, and of the same tokens in a steady process.
    ShortWarmup,
    ShortSteady,
    ShortError,
    /// New tokens of all sequences ÷ time of the request, for either way of generating.
    Tokens,
    Parity,
}

impl Column {
    /// The heading, with the unit, and the name for CSV, where it is a number.
    fn names(self) -> (&'static str, Option<&'static str>) {
        match self {
            Column::Metric(metric) => (metric.short_title(), Some(metric.name())),
            Column::Memory(part) => part.names(),
            Column::Efficiency => ("Against the first", None),
            Column::Perplexity => ("Perplexity", Some("perplexity")),
            Column::Kl => ("KL from f32", Some("mean_kl")),
            Column::Top1 => ("Top-1 of f32", Some("top1")),
            Column::MeanCosine => ("Cosine with f32", Some("mean_cosine")),
            Column::MinCosine => ("Least cosine", Some("min_cosine")),
            Column::Top10 => ("Top-10 of f32", Some("top10")),
            Column::KendallTau => ("Kendall's τ", Some("kendall_tau")),
            Column::WeightsSize => ("Weights (GB)", Some("weights_gb")),
            Column::FirstRuns => ("First runs (ms)", Some("first_runs_cost_ms")),
            Column::Compiling => ("Compiling (ms)", Some("compiling_ms")),
            Column::PaysFrom => ("Pays from", Some("pays_from_tokens")),
            Column::SettledAt => ("Settled at", Some("settled_at")),
            Column::ShortWarmup => ("Short warm-up says (tok/s)", Some("short_warmup_tokens_per_second")),
            Column::ShortSteady => ("Steady (tok/s)", Some("steady_tokens_per_second")),
            Column::ShortError => ("Error", Some("short_warmup_error")),
            Column::Tokens => ("tok/s in all", Some("tokens_per_second")),
            Column::Parity => ("Parity", None),
        }
    }

    pub fn title(self) -> &'static str {
        self.names().0
    }

    pub fn name(self) -> Option<&'static str> {
        self.names().1
    }

    /// The value for people; a dash if it is not available.
    pub fn text(self, cell: &Cell, row: &CellRow, scaling: &[Scaling]) -> String {
        let dash = || "–".to_owned();
        let told = |words: fn(f64) -> String| self.value(cell, row).map_or_else(dash, words);
        match self {
            Column::Parity => row.parity.clone(),
            Column::Efficiency => {
                let point = scaling.iter().find_map(|scaling| scaling.share(cell, &row.framework));
                point.map_or_else(dash, |(ratio, efficiency)| {
                    format!("{ratio:.2}x ({:.0} %)", efficiency * 100.0)
                })
            }
            Column::Kl => told(|kl| format!("{kl:.1e}")),
            Column::Top1 | Column::Top10 => told(|share| format!("{:.1} %", 100.0 * share)),
            Column::MeanCosine | Column::MinCosine => told(|cosine| format!("{cosine:.6}")),
            Column::KendallTau => told(|tau| format!("{tau:.4}")),
            Column::FirstRuns | Column::Compiling => match self.cost(cell, row) {
                Some(ms) if ms <= 0.0 => "too short to measure".to_owned(),
                ms => ms.map_or_else(dash, number),
            },
            Column::SettledAt => told(|at| format!("iteration {at}")),
            Column::ShortError => told(|error| format!("{:+.0} %", 100.0 * error)),
            Column::PaysFrom => Compiled::new(cell, row).map_or_else(dash, |compiled| {
                compiled.pays_from().map_or("never".into(), |tokens| format!("{tokens} tokens"))
            }),
            Column::Memory(_) => told(|megabytes| format!("{megabytes:.1}")),
            _ => told(number),
        }
    }

    /// Extra time of first runs in milliseconds. Below zero it is the chance of the times that it is the difference of.
    fn cost(self, cell: &Cell, row: &CellRow) -> Option<f64> {
        match self {
            Column::Compiling => Some(Compiled::new(cell, row)?.compiling_ms),
            _ => Some(row.steadiness.first_runs.as_ref()?.cost_ms),
        }
    }

    /// The value as a number; `None` if it is not one.
    pub fn value(self, cell: &Cell, row: &CellRow) -> Option<f64> {
        match self {
            Column::Metric(metric) => row.typical(metric),
            Column::Memory(part) => Some(part.bytes(row.memory.as_ref()?)? / 1e6),
            Column::Perplexity => Some(row.text?.text()?.perplexity),
            Column::Kl => row.text?.text()?.mean_kl,
            Column::Top1 => row.text?.text()?.top1,
            Column::MeanCosine => Some(row.text?.retrieval()?.mean_cosine),
            Column::MinCosine => Some(row.text?.retrieval()?.min_cosine),
            Column::Top10 => row.text?.retrieval()?.top10,
            Column::KendallTau => row.text?.retrieval()?.kendall_tau,
            Column::WeightsSize => Some(cell.weights_bytes? / 1e9),
            Column::FirstRuns | Column::Compiling => self.cost(cell, row).filter(|&ms| ms > 0.0),
            Column::PaysFrom => Some(Compiled::new(cell, row)?.pays_from()? as f64),
            Column::SettledAt => row.steadiness.settled_at.map(|at| at as f64),
            Column::ShortWarmup => Some(row.steadiness.short_warmup.as_ref()?.tokens_per_second),
            Column::ShortSteady => Some(row.steadiness.short_warmup.as_ref()?.steady_tokens_per_second),
            Column::ShortError => Some(row.steadiness.short_warmup.as_ref()?.error),
            Column::Tokens => {
                let tokens = row.tokens.as_ref()?;
                let count =
                    tokens.iter().flatten().map(Vec::len).sum::<usize>() as f64 / tokens.len().max(1) as f64;
                Some(count / row.typical(Metric::Total)? * 1e3)
            }
            Column::Efficiency | Column::Parity => None,
        }
    }
}

const SERVED: [Metric; 6] = [
    Metric::RequestThroughput,
    Metric::CallLatency,
    Metric::LatencyP50,
    Metric::LatencyP95,
    Metric::LatencyP99,
    Metric::PeakMemory,
];

/// The columns of a study of masked diffusion.
const DENOISED: [Column; 5] = [
    Column::Metric(Metric::StepTime),
    Column::Metric(Metric::Total),
    Column::Tokens,
    Column::Metric(Metric::SamplerShare),
    Column::Metric(Metric::PeakMemory),
];

/// The columns of a study of texts to encode. Batches of several texts have no time of a single one, and vice versa.
const ENCODED: [Metric; 6] = [
    Metric::EncodingThroughput,
    Metric::SingleText,
    Metric::EncodedTokens,
    Metric::PaddingShare,
    Metric::Load,
    Metric::PeakMemory,
];

/// The columns of a study of their precisions.
const ENCODED_PRECISIONS: [Column; 9] = [
    Column::Metric(Metric::EncodingThroughput),
    Column::Metric(Metric::SingleText),
    Column::Metric(Metric::Load),
    Column::Metric(Metric::PeakMemory),
    Column::Metric(Metric::Efficiency),
    Column::MeanCosine,
    Column::MinCosine,
    Column::Top10,
    Column::KendallTau,
];

/// The columns of figures, after those of the axes and the framework's. Models that continue texts have
/// others than those that encode them.
pub fn columns(kind: SweepKind, cells: &[Cell]) -> Vec<Column> {
    let mut rows = cells.iter().flat_map(|cell| &cell.rows);
    let encodes = rows.any(|row| row.metrics.contains_key(&Metric::EncodedTokens));
    let middle = match kind {
        SweepKind::Precision if encodes => ENCODED_PRECISIONS.to_vec(),
        SweepKind::Size if encodes => {
            [Column::WeightsSize].into_iter().chain(ENCODED.map(Column::Metric)).collect()
        }
        SweepKind::Forward => vec![
            Column::Metric(Metric::PrefillThroughput),
            Column::Metric(Metric::FirstToken),
            Column::Memory(Part::Activations),
            Column::Metric(Metric::PeakMemory),
            Column::Efficiency,
        ],
        SweepKind::Generate => vec![
            Column::Metric(Metric::FirstToken),
            Column::Metric(Metric::PrefillThroughput),
            Column::Metric(Metric::Latency),
            Column::Metric(Metric::Throughput),
            Column::Metric(Metric::PeakMemory),
            Column::Efficiency,
        ],
        SweepKind::Warmup => vec![
            Column::Metric(Metric::ColdStart),
            Column::FirstRuns,
            Column::SettledAt,
            Column::Metric(Metric::Latency),
            Column::Compiling,
            Column::PaysFrom,
            Column::ShortWarmup,
            Column::ShortError,
        ],
        SweepKind::ShortWarmup => {
            vec![
                Column::ShortWarmup,
                Column::ShortSteady,
                Column::ShortError,
                Column::Metric(Metric::Throughput),
            ]
        }
        SweepKind::Memory => Part::VARIANTS.iter().copied().map(Column::Memory).collect(),
        SweepKind::Precision => vec![
            Column::Metric(Metric::Load),
            Column::Metric(Metric::PrefillThroughput),
            Column::Metric(Metric::Throughput),
            Column::Metric(Metric::PeakMemory),
            Column::Metric(Metric::Efficiency),
            Column::Perplexity,
            Column::Kl,
            Column::Top1,
        ],
        SweepKind::Denoise => DENOISED.to_vec(),
        SweepKind::Embed => ENCODED.map(Column::Metric).to_vec(),
        SweepKind::Callers => SERVED.map(Column::Metric).to_vec(),
        SweepKind::Size => vec![
            Column::WeightsSize,
            Column::Metric(Metric::Load),
            Column::Metric(Metric::FirstToken),
            Column::Metric(Metric::Throughput),
            Column::Metric(Metric::PeakMemory),
        ],
    };
    middle.into_iter().chain([Column::Parity]).collect()
}

// Growth of figures along an axis.

/// One framework along one axis, everything else unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    pub framework: String,
    pub axis: Axis,
    /// The other axes.
    pub at: Settings,
    pub metric: Metric,
    pub points: Vec<Point>,
    /// For lengths and sizes: k of `figure ∝ valueᵏ`, fitted by least squares on logarithms. It needs three
    /// points, because two always make a line.
    pub exponent: Option<f64>,
}

/// One value on the axis, and the figure there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub value: f64,
    pub figure: f64,
    /// Ratio of the figure to that of the first point.
    pub ratio: f64,
    /// For batches and threads: that ratio ÷ the ratio of the values, which is the best possible.
    pub efficiency: Option<f64>,
}

/// The metric for an axis: throughput for batches and threads, time for lengths.
fn metric(kind: SweepKind, axis: Axis) -> Option<Metric> {
    if kind == SweepKind::Denoise {
        return match axis {
            Axis::Batch | Axis::Threads => Some(Metric::DenoisingThroughput),
            Axis::Steps => Some(Metric::Total),
            Axis::NewTokens | Axis::PromptTokens | Axis::Model => Some(Metric::StepTime),
            _ => None,
        };
    }
    if kind == SweepKind::Embed {
        return match axis {
            Axis::Batch | Axis::Threads | Axis::PromptTokens | Axis::Model => Some(Metric::EncodedTokens),
            _ => None,
        };
    }
    if kind == SweepKind::Callers {
        return None;
    }
    let forward = kind == SweepKind::Forward;
    match axis {
        Axis::Batch | Axis::Threads => {
            Some(if forward { Metric::PrefillThroughput } else { Metric::Throughput })
        }
        Axis::PromptTokens => Some(Metric::FirstToken),
        Axis::Context | Axis::Model => Some(if forward { Metric::FirstToken } else { Metric::Latency }),
        _ => None,
    }
}

/// Every framework along every axis of a sweep.
pub fn along(kind: SweepKind, cells: &[Cell]) -> Vec<Scaling> {
    let mut frameworks: Vec<&str> = Vec::new();
    for row in cells.iter().flat_map(|cell| &cell.rows) {
        if !frameworks.contains(&row.framework.as_str()) {
            frameworks.push(&row.framework);
        }
    }
    let axes = [
        Axis::Batch,
        Axis::Threads,
        Axis::PromptTokens,
        Axis::NewTokens,
        Axis::Context,
        Axis::Model,
        Axis::Steps,
    ];
    let mut all = Vec::new();
    for axis in axes {
        let Some(metric) = metric(kind, axis) else { continue };
        let mut others: Vec<Settings> = Vec::new();
        for cell in cells {
            let rest = without(&cell.settings, axis);
            if cell.settings.contains_key(&axis) && !others.contains(&rest) {
                others.push(rest);
            }
        }
        for rest in others {
            for framework in &frameworks {
                let along = cells.iter().filter(|cell| without(&cell.settings, axis) == rest);
                let points = along.filter_map(|cell| {
                    let figure = find(cell, framework)?.typical(metric)?;
                    Some((value(cell, axis)?, figure))
                });
                all.extend(scaling(framework, axis, rest.clone(), metric, &points.collect::<Vec<_>>()));
            }
        }
    }
    all
}

fn find<'a>(cell: &'a Cell, framework: &str) -> Option<&'a CellRow> {
    cell.rows.iter().find(|row| row.framework == framework)
}

pub(super) fn without(settings: &Settings, axis: Axis) -> Settings {
    let mut rest = settings.clone();
    rest.remove(&axis);
    rest
}

/// The number of a setting; for a model it is the size of its weights.
fn value(cell: &Cell, axis: Axis) -> Option<f64> {
    match cell.settings.get(&axis)? {
        Setting::Number(number) => Some(f64::from(*number)),
        Setting::Name(_) if axis == Axis::Model => cell.weights_bytes,
        Setting::Name(_) => None,
    }
}

/// How a metric grows along an axis, from its points in rising order; `None` with fewer than two.
pub fn scaling(
    framework: &str,
    axis: Axis,
    at: Settings,
    metric: Metric,
    points: &[(f64, f64)],
) -> Option<Scaling> {
    let &(first_value, first) = points.first()?;
    if points.len() < 2 {
        return None;
    }
    let at_once = matches!(axis, Axis::Batch | Axis::Threads);
    let point = |&(value, figure): &(f64, f64)| {
        let ratio = figure / first;
        Point { value, figure, ratio, efficiency: at_once.then(|| ratio / (value / first_value)) }
    };
    Some(Scaling {
        framework: framework.to_owned(),
        axis,
        at,
        metric,
        points: points.iter().map(point).collect(),
        exponent: if at_once { None } else { exponent(points) },
    })
}

/// Slope of the least-squares line through the logarithms.
fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> =
        points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    if logs.len() < 3 {
        return None;
    }
    let count = logs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let spread: f64 = logs.iter().map(|p| (p.0 - x).powi(2)).sum();
    let slope = logs.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread;
    slope.is_finite().then_some(slope)
}

impl Scaling {
    /// Ratio and efficiency of a cell along this axis.
    pub fn share(&self, cell: &Cell, framework: &str) -> Option<(f64, f64)> {
        let value = value(cell, self.axis)?;
        if self.framework != framework || without(&cell.settings, self.axis) != self.at {
            return None;
        }
        let point = self.points.iter().find(|point| point.value == value)?;
        Some((point.ratio, point.efficiency?))
    }
}

// A study's parts for one kind of work.

// Masked diffusion compared with the same body token by token: from how many steps on it is slower.

/// One framework at one place: a step of denoising, and all tokens one by one.
#[derive(Debug, Clone, PartialEq)]
pub struct Crossing {
    pub framework: String,
    /// The place, without the steps.
    pub at: Settings,
    /// Time of a step, in milliseconds: the mean of the cells, weighted by their steps.
    pub step_ms: f64,
    /// Time of a request token by token, in milliseconds.
    pub by_token_ms: f64,
}

impl Crossing {
    /// The least number of steps that take longer than going token by token.
    pub fn slower_from(&self) -> u64 {
        (self.by_token_ms / self.step_ms).floor() as u64 + 1
    }
}

/// Every framework at every place that was measured both ways.
pub fn crossings(cells: &[Cell]) -> Vec<Crossing> {
    let is_by_token = |cell: &Cell| matches!(cell.settings.get(&Axis::Steps), Some(Setting::Name(name)) if name == TOKEN_BY_TOKEN);
    let place = |cell: &Cell| without(&cell.settings, Axis::Steps);
    let mut crossings = Vec::new();
    for by_token in cells.iter().filter(|cell| is_by_token(cell)) {
        let at = place(by_token);
        for row in by_token.rows.iter().filter(|row| row.state != State::Struck) {
            let Some(by_token_ms) = row.typical(Metric::Total) else { continue };
            let steps =
                cells.iter().filter(|cell| !is_by_token(cell) && place(cell) == at).filter_map(|cell| {
                    let Some(Setting::Number(steps)) = cell.settings.get(&Axis::Steps) else { return None };
                    let denoised = cell.rows.iter().find(|other| other.framework == row.framework)?;
                    Some((f64::from(*steps), denoised.typical(Metric::Total)?))
                });
            let (steps, ms) = steps.fold((0.0, 0.0), |sum, (steps, ms)| (sum.0 + steps, sum.1 + ms));
            if steps > 0.0 {
                let framework = row.framework.clone();
                crossings.push(Crossing { framework, at: at.clone(), step_ms: ms / steps, by_token_ms });
            }
        }
    }
    crossings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::judge::report::variation::Steadiness;

    fn along(axis: Axis, points: &[(f64, f64)]) -> Scaling {
        scaling("x", axis, Settings::new(), Metric::FirstToken, points).unwrap()
    }

    #[test]
    fn a_power_law_is_found_again() {
        let squares = along(Axis::PromptTokens, &[(128.0, 3.0), (256.0, 12.0), (512.0, 48.0)]);
        assert!((squares.exponent.unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(
            along(Axis::PromptTokens, &[(1.0, 1.0), (2.0, 2.0)]).exponent,
            None,
            "two are always a line"
        );
    }

    #[test]
    fn efficiency_is_what_is_left_of_the_ratio_of_values() {
        let batches = along(Axis::Batch, &[(1.0, 50.0), (4.0, 100.0)]);
        let last = batches.points.last().unwrap();
        assert_eq!((last.ratio, last.efficiency), (2.0, Some(0.5)));
        assert_eq!(batches.exponent, None);
    }

    #[test]
    fn a_cost_of_first_runs_that_is_not_above_zero_is_too_short_to_measure() {
        let told = |cost_ms: f64| {
            let first_runs = json!({"cost_ms": cost_ms, "prompts": [], "elapsed": []});
            let steadiness = Steadiness {
                first_runs: serde_json::from_value(first_runs).unwrap(),
                ..Steadiness::default()
            };
            let row: CellRow = serde_json::from_value(json!({
                "framework": "a", "state": "measured", "reasons": [], "parity": "ok", "precision": "f32",
                "metrics": {}, "steadiness": steadiness,
            }))
            .unwrap();
            let (cell, column) = (Cell::default(), Column::FirstRuns);
            (column.text(&cell, &row, &[]), column.value(&cell, &row))
        };
        assert_eq!(told(12.0), ("12.0".to_owned(), Some(12.0)));
        assert_eq!(told(-0.1), ("too short to measure".to_owned(), None));
    }

    fn crossing(step_ms: f64, by_token_ms: f64) -> Crossing {
        let at = Settings::from([(Axis::NewTokens, Setting::Number(64))]);
        Crossing { framework: "candle".into(), at, step_ms, by_token_ms }
    }

    #[test]
    fn diffusion_is_slower_from_where_its_steps_add_up_to_more() {
        assert_eq!(crossing(200.0, 1100.0).slower_from(), 6);
        assert_eq!(crossing(200.0, 1000.0).slower_from(), 6, "five take as long, not longer");
        assert_eq!(crossing(200.0, 100.0).slower_from(), 1);
    }
}
