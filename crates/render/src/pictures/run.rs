//! The charts of a run.

use std::collections::BTreeMap;

use charts::{
    Bar, Bars, Colour, Ecdf, Figure, Group, Line, LineAxis, Lines, Panel, Point, Sample, Spread, Stack,
};
use judge::Metric;
use judge::curve::Point as CurvePoint;
use judge::report::{Report, Row, State};

use super::GREY;
use crate::words;

/// The four main metrics of a comparison.
pub(crate) const FOUR: [Metric; 4] = [Metric::Throughput, Metric::Latency, Metric::Total, Metric::PeakMemory];

pub(crate) struct Pictures<'a> {
    report: &'a Report,
    colours: BTreeMap<String, Colour>,
}

pub(crate) fn title(report: &Report) -> String {
    let names: Vec<&str> = report.rows.iter().map(|row| row.framework.as_str()).collect();
    let names = match names.as_slice() {
        [] => "No framework".to_owned(),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    };
    let model = if report.model.name.is_empty() { &report.plan.model } else { &report.model.name };
    format!("{names} on {model}")
}

pub(crate) fn subtitle(report: &Report) -> String {
    format!("{}, {}", report.summary.heading, report.plan.precision.name())
}

/// The text in place of a missing figure.
pub(crate) fn absent(state: State) -> &'static str {
    if state.has_figures() { "not available" } else { state.words() }
}

impl<'a> Pictures<'a> {
    pub(crate) fn new(report: &'a Report) -> Pictures<'a> {
        let labels: Vec<String> = report.rows.iter().map(|row| row.framework.clone()).collect();
        Pictures { report, colours: super::colours(&labels) }
    }

    fn colour(&self, framework: &str) -> Colour {
        self.colours.get(framework).copied().unwrap_or(GREY)
    }

    pub(crate) fn bars(&self, metric: Metric) -> Bars {
        let bar = |row: &Row| {
            let figure = row.metrics.iter().find(|figure| figure.metric == metric);
            Bar {
                label: row.framework.clone(),
                colour: self.colour(&row.framework),
                value: figure.and_then(|figure| figure.median),
                interval: figure.and_then(words::interval),
                points: figure.map(words::known).unwrap_or_default(),
                note: absent(row.state).to_owned(),
            }
        };
        let bars = self.report.rows.iter().map(bar).collect();
        Bars {
            title: metric.title().into(),
            hint: super::better(metric),
            groups: vec![Group { label: String::new(), bars }],
            ..Bars::default()
        }
    }

    /// The four charts in one picture for sharing.
    pub(crate) fn comparison(&self) -> Figure {
        let mut figures = self.report.rows.iter().flat_map(|row| &row.metrics);
        let whiskers = if figures.any(|figure| words::interval(figure).is_some()) {
            ", whisker: 95 % interval of it"
        } else {
            "; too few rounds for an interval"
        };
        Figure {
            title: title(self.report),
            subtitle: subtitle(self.report),
            panels: FOUR.iter().map(|&metric| Panel::Bars(self.bars(metric))).collect(),
            columns: 2,
            note: format!("Bar: median of the processes, dot: one process{whiskers}."),
        }
    }

    pub(crate) fn curve(&self, title: &str, value: fn(&CurvePoint) -> Option<f64>) -> Lines {
        let rows = &self.report.rows;
        let line = |row: &Row| Line {
            label: row.framework.clone(),
            colour: self.colour(&row.framework),
            points: points(&row.steadiness.curve, value),
        };
        // Iterations that were warm-up in every process of every framework.
        let warm = |row: &Row| {
            let is_warm = |point: &&CurvePoint| point.warmup > 0 && point.warmup == point.processes;
            row.steadiness.curve.iter().take_while(is_warm).count()
        };
        let curves = rows.iter().filter(|row| !row.steadiness.curve.is_empty());
        let shaded = curves.map(warm).min().filter(|&warm| warm > 0);
        let points = rows.iter().flat_map(|row| &row.steadiness.curve);
        let last = points.map(|point| point.iteration).max().unwrap_or(1);
        let ticks = (1..=last).map(|iteration| iteration as f64).filter(|_| last <= 12);
        Lines {
            title: title.to_owned(),
            hint: String::new(),
            x: LineAxis { label: ITERATION.into(), ticks: ticks.collect(), ..LineAxis::default() },
            y: LineAxis { from_zero: true, ..LineAxis::default() },
            series: rows.iter().map(line).filter(|line| !line.points.is_empty()).collect(),
            shaded: shaded.map(|last| (last as f64 + 0.5, "warm-up".to_owned())),
        }
    }

    pub(crate) fn latencies(&self, gaps: &BTreeMap<String, Vec<f64>>) -> (Spread, Ecdf) {
        let sample = |row: &Row| {
            let values = gaps.get(&row.framework).filter(|values| !values.is_empty())?.clone();
            Some(Sample { label: row.framework.clone(), colour: self.colour(&row.framework), values })
        };
        let samples: Vec<Sample> = self.report.rows.iter().filter_map(sample).collect();
        let spread =
            Spread { title: "Every gap between tokens".into(), hint: "ms".into(), samples: samples.clone() };
        let ecdf = Ecdf { title: "Share of tokens within a time".into(), hint: "ms".into(), samples };
        (spread, ecdf)
    }

    pub(crate) fn memory(&self) -> Option<Stack> {
        let rows = self.report.rows.iter();
        let row = |row: &Row| Some(super::stacked(row.framework.clone(), row.memory.as_ref()?));
        super::stack(rows.filter_map(row).collect())
    }
}

pub(super) const ITERATION: &str = "iteration of the process";

pub(super) fn points(curve: &[CurvePoint], value: impl Fn(&CurvePoint) -> Option<f64>) -> Vec<Point> {
    let point =
        |found: &CurvePoint| Some(Point { x: found.iteration as f64, y: value(found)?, interval: None });
    curve.iter().filter_map(point).collect()
}
