//! Charts of the times of requests that are generated token by token.

use std::collections::BTreeMap;

use charts::{LineAxis, Sample, Strand, Strands, Survival};
use judge::report::Row;
use judge::report::work::generate::curve::{IterationTimes, ProcessCurve};

use crate::pictures::run::{ITERATION, Pictures};
use crate::words;

/// The curves of every process, by framework.
pub(crate) type Curves = BTreeMap<String, Vec<ProcessCurve>>;

/// A figure of an iteration, if it has one.
pub(crate) type Pick = fn(&IterationTimes) -> Option<f64>;

impl Pictures<'_> {
    /// The times of the iterations of every process.
    pub(crate) fn curve(
        &self,
        curves: &Curves,
        title: &str,
        value: fn(&IterationTimes) -> Option<f64>,
    ) -> Strands {
        let line = |curve: &ProcessCurve| -> Vec<(f64, f64)> {
            let places = curve.iterations.iter().enumerate();
            places.filter_map(|(index, times)| Some(((index + 1) as f64, value(times)?))).collect()
        };
        let strand = |row: &Row| {
            let own = curves.get(&row.framework)?;
            let lines: Vec<_> = own.iter().map(line).filter(|line| !line.is_empty()).collect();
            Some(Strand { label: words::title(row), colour: self.colour(row), lines })
        };
        let series = self.report.rows.iter().filter_map(strand).filter(|strand| !strand.lines.is_empty());
        // Iterations that were warm-up in every process of every framework.
        let warm = curves.values().flatten().map(|curve| curve.warmup).min().filter(|&warm| warm > 0);
        let last = curves.values().flatten().map(|curve| curve.iterations.len()).max().unwrap_or(1);
        let ticks = (1..=last).map(|iteration| iteration as f64).filter(|_| last <= 12);
        Strands {
            title: title.to_owned(),
            hint: "one line a process".into(),
            x: LineAxis { label: ITERATION.into(), ticks: ticks.collect(), ..LineAxis::default() },
            y: LineAxis { from_zero: true, ..LineAxis::default() },
            series: series.collect(),
            shaded: warm.map(|last| (last as f64 + 0.5, "warm-up".to_owned())),
        }
    }

    /// The tail of the gaps between tokens.
    pub(crate) fn tail(&self, gaps: &BTreeMap<String, Vec<f64>>) -> Survival {
        let sample = |row: &Row| {
            let values = gaps.get(&row.framework).filter(|values| !values.is_empty())?.clone();
            Some(Sample { label: words::title(row), colour: self.colour(row), values })
        };
        Survival {
            title: "Gaps between tokens".into(),
            hint: "ms; share that takes longer".into(),
            samples: self.report.rows.iter().filter_map(sample).collect(),
        }
    }
}
