//! The charts of a run.

use std::collections::BTreeMap;

use charts::{
    Bar, Bars, Colour, Ecdf, Figure, Group, Line, LineAxis, Lines, Panel, Point, Sample, Spread, Stack,
    StackRow,
};

use super::view::{self, CurvePoint, Row, Run};

/// Frameworks that have a colour of their own, in every chart of every run.
pub(crate) const KNOWN: [&str; 3] = ["candle", "tch", "ort"];

pub(super) fn colours(labels: &[String]) -> BTreeMap<String, Colour> {
    labels.iter().cloned().zip(charts::assign(labels, &KNOWN)).collect()
}

/// One of the four that a comparison is looked at by.
pub(super) struct Measure {
    pub(super) metric: &'static str,
    pub(super) title: &'static str,
    pub(super) hint: &'static str,
    /// How the table calls it.
    pub(super) row: &'static str,
}

pub(super) const FOUR: [Measure; 4] = [
    Measure {
        metric: "throughput",
        title: "Tokens per second",
        hint: "higher is better",
        row: "Average Throughput (tok/s)",
    },
    Measure {
        metric: "latency",
        title: "Time per token",
        hint: "ms, lower is better",
        row: "Steady-State Latency (ms)",
    },
    Measure {
        metric: "total",
        title: "Total time",
        hint: "ms per request, lower is better",
        row: "Total Time (ms)",
    },
    Measure {
        metric: "peak_memory",
        title: "Peak memory",
        hint: "GB, lower is better",
        row: "Peak Memory (GB)",
    },
];

pub(super) struct Pictures<'a> {
    pub(super) run: &'a Run,
    pub(super) colours: BTreeMap<String, Colour>,
}

impl<'a> Pictures<'a> {
    pub(super) fn of(run: &'a Run) -> Pictures<'a> {
        let labels: Vec<String> = run.rows.iter().map(|row| row.framework.clone()).collect();
        Pictures { run, colours: colours(&labels) }
    }

    fn colour(&self, framework: &str) -> Colour {
        self.colours.get(framework).copied().unwrap_or(Colour(0x8C, 0x8C, 0x8C))
    }

    pub(super) fn bars(&self, measure: &Measure) -> Bars {
        let bar = |row: &Row| {
            let figure = row.figure(measure.metric);
            Bar {
                label: row.framework.clone(),
                colour: self.colour(&row.framework),
                value: figure.and_then(|figure| figure.median),
                interval: figure.and_then(view::Figure::interval),
                points: figure.map(view::Figure::known).unwrap_or_default(),
                note: absent(row),
            }
        };
        let bars = self.run.rows.iter().map(bar).collect();
        Bars {
            title: measure.title.into(),
            hint: measure.hint.into(),
            groups: vec![Group { label: String::new(), bars }],
            ..Bars::default()
        }
    }

    /// The four in one, to be pasted.
    pub(super) fn comparison(&self, title: &str, subtitle: &str) -> Figure {
        let has_intervals =
            self.run.rows.iter().flat_map(|row| &row.metrics).any(|figure| figure.interval().is_some());
        let whiskers =
            if has_intervals { ", whisker: 95 % interval of it" } else { "; too few rounds for an interval" };
        Figure {
            title: title.to_owned(),
            subtitle: subtitle.to_owned(),
            panels: FOUR.iter().map(|measure| Panel::Bars(self.bars(measure))).collect(),
            columns: 2,
            note: format!("Bar: median of the processes, dot: one process{whiskers}."),
        }
    }

    pub(super) fn curve(&self, title: &str, value: fn(&CurvePoint) -> Option<f64>) -> Lines {
        let line = |row: &Row| Line {
            label: row.framework.clone(),
            colour: self.colour(&row.framework),
            points: row
                .steadiness
                .curve
                .iter()
                .filter_map(|point| {
                    Some(Point { x: point.iteration as f64, y: value(point)?, interval: None })
                })
                .collect(),
        };
        let points = || self.run.rows.iter().flat_map(|row| &row.steadiness.curve);
        // What was warm-up for every process of everyone.
        let warm = |row: &Row| {
            let is_warm = |point: &&CurvePoint| point.warmup > 0 && point.warmup == point.processes;
            row.steadiness.curve.iter().take_while(is_warm).count()
        };
        let curves = self.run.rows.iter().filter(|row| !row.steadiness.curve.is_empty());
        let shaded = curves.map(warm).min().filter(|&warm| warm > 0);
        let shaded = shaded.map(|last| (last as f64 + 0.5, "warm-up".to_owned()));
        let last = points().map(|point| point.iteration).max().unwrap_or(1);
        Lines {
            title: title.to_owned(),
            hint: "ms".into(),
            x: LineAxis {
                label: "iteration of the process".into(),
                ticks: if last <= 12 {
                    (1..=last).map(|iteration| iteration as f64).collect()
                } else {
                    Vec::new()
                },
                ..LineAxis::default()
            },
            y: LineAxis { from_zero: true, ..LineAxis::default() },
            series: self.run.rows.iter().map(line).filter(|line| !line.points.is_empty()).collect(),
            shaded,
        }
    }

    pub(super) fn latencies(&self, gaps: &BTreeMap<String, Vec<f64>>) -> (Spread, Ecdf) {
        let sample = |row: &Row| {
            let values = gaps.get(&row.framework).filter(|values| !values.is_empty())?.clone();
            Some(Sample { label: row.framework.clone(), colour: self.colour(&row.framework), values })
        };
        let samples: Vec<Sample> = self.run.rows.iter().filter_map(sample).collect();
        let spread =
            Spread { title: "Every gap between tokens".into(), hint: "ms".into(), samples: samples.clone() };
        let ecdf = Ecdf { title: "Share of tokens within a time".into(), hint: "ms".into(), samples };
        (spread, ecdf)
    }

    pub(super) fn memory(&self) -> Option<Stack> {
        let row = |row: &Row| {
            let (parts, peak) = view::parts(row.memory.as_ref()?)?;
            let values = parts.into_iter().map(|bytes| bytes / 1e6).collect();
            Some(StackRow { label: row.framework.clone(), values, total: peak / 1e6 })
        };
        let rows: Vec<StackRow> = self.run.rows.iter().filter_map(row).collect();
        (!rows.is_empty()).then(|| Stack {
            title: "Peak memory by part".into(),
            hint: "MB".into(),
            parts: view::PARTS.iter().map(|(_, name)| (*name).to_owned()).collect(),
            rows,
        })
    }
}

/// What stands where there is no figure.
pub(super) fn absent(row: &Row) -> String {
    match row.state.as_str() {
        "unsupported" | "failed" => row.state.clone(),
        "not_run" => "not run".into(),
        _ => "not available".into(),
    }
}
