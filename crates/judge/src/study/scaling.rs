//! Growth of figures along an axis.

use serde::{Deserialize, Serialize};

use super::cell::{Cell, CellRow};
use crate::metrics::Metric;
use plan::sweep::SweepKind;
use plan::{Axis, Setting, Settings};

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
        Axis::NewTokens
        | Axis::Precision
        | Axis::Framework
        | Axis::Steps
        | Axis::PrefillChunk
        | Axis::Callers
        | Axis::Rate
        | Axis::Mistake => None,
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

fn without(settings: &Settings, axis: Axis) -> Settings {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
