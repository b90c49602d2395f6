//! A metric of one contender over the rounds.

use serde::{Deserialize, Serialize};
use statistics::{Moments, geometric_interval, geometric_mean, median};

use super::slow_moments::Figures;
use crate::metrics::{self, Metric};
use facts::evidence::Evidence;
use plan::Plan;

/// A metric of one contender. Outputs show [`Figure::typical`]: the geometric mean over rounds, so that throughput is
/// the reciprocal of latency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub metric: Metric,
    pub unit: String,
    /// Geometric mean over rounds; the median if a value is zero, because then there is no geometric mean and no verdict;
    /// a percentile of all processes together where one has too few. `null`: not available.
    pub typical: Option<f64>,
    /// 95 % interval of the geometric mean; `null` below six rounds.
    #[serde(default, deserialize_with = "facts::reading::interval")]
    pub interval: Option<(f64, f64)>,
    /// Median over processes. `null`: not available.
    pub median: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    /// Arithmetic mean over processes.
    #[serde(default)]
    pub mean: Option<f64>,
    /// Between processes, with n − 1.
    #[serde(default)]
    pub standard_deviation: Option<f64>,
    /// Standard deviation ÷ mean.
    #[serde(default)]
    pub coefficient_of_variation: Option<f64>,
    /// By round.
    pub values: Vec<Option<f64>>,
    /// By round, the values that verdicts compare, if they differ: without the slowest and the fastest moments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compared: Vec<Option<f64>>,
}

impl Figure {
    /// From the values of each round, and from the compared values if they differ.
    pub fn new(metric: Metric, values: Vec<Option<f64>>, compared: Vec<Option<f64>>) -> Figure {
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        let moments = Moments::new(&known);
        Figure {
            metric,
            unit: metric.unit().to_owned(),
            typical: geometric_mean(&known).or_else(|| median(&known)),
            interval: geometric_interval(&known),
            median: median(&known),
            min: known.iter().copied().reduce(f64::min),
            max: known.iter().copied().reduce(f64::max),
            mean: moments.map(|moments| moments.mean),
            standard_deviation: moments.map(|moments| moments.standard_deviation),
            coefficient_of_variation: moments.and_then(Moments::coefficient_of_variation),
            values,
            compared,
        }
    }

    /// The figure of the contender at this place, with its compared values.
    pub(crate) fn of_row(
        metric: Metric,
        figures: &Figures,
        place: usize,
        plan: &Plan,
        evidence: &Evidence,
    ) -> Figure {
        let label = &plan.contenders[place].label;
        let (values, compared) = (figures.average[place].clone(), figures.compared(place).to_vec());
        let differs = compared.iter().any(Option::is_some) && compared != values;
        let found = Figure::new(metric, values, if differs { compared } else { Vec::new() });
        Figure { typical: found.typical.or_else(|| metrics::pooled(metric, plan, evidence, label)), ..found }
    }

    /// Rejects impossible figures in a report that was read.
    pub(super) fn check(&self, framework: &str) -> Result<(), String> {
        let Figure { typical, median, min, max, mean, values, compared, .. } = self;
        let whole = [*typical, *median, *min, *max, *mean];
        self.metric.check(framework, whole.into_iter().chain(values.iter().chain(compared).copied()))
    }

    /// By round, the values compared with another contender's figure. A figure without any is still shown.
    pub fn compared(&self) -> &[Option<f64>] {
        if self.compared.iter().all(Option::is_none) { &self.values } else { &self.compared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_one_row_agree() {
        let times = [10.0, 12.0, 11.0, 10.0, 13.0, 10.5].map(Some);
        let latency = Figure::new(Metric::Latency, times.to_vec(), Vec::new());
        let rates = times.map(|ms| ms.map(|ms: f64| 1000.0 / ms));
        let throughput = Figure::new(Metric::Throughput, rates.to_vec(), Vec::new());
        let product = latency.typical.unwrap() * throughput.typical.unwrap();
        assert!((product - 1000.0).abs() < 1e-9, "{product}");
        let (low, high) = latency.interval.unwrap();
        assert!(low < latency.typical.unwrap() && latency.typical.unwrap() < high);
    }

    #[test]
    fn the_average_is_shown_and_the_typical_value_compared() {
        let figure = Figure::new(Metric::Latency, vec![Some(9.0), Some(1.0)], vec![Some(8.0), Some(1.0)]);
        assert!((figure.typical.unwrap() - 3.0).abs() < 1e-12 && figure.median == Some(5.0));
        assert_eq!(figure.compared()[0], Some(8.0));
    }
}
