//! The charts of a run.

use std::collections::BTreeMap;

use charts::{
    Colour, Dots, DotsGroup, DotsRow, Figure, Forest, ForestGroup, GREY, INK, Line, LineAxis, Lines, Pair,
    Panel, Point, Stack,
};
use judge::Metric;
use judge::report::dependence::Dependence;
use judge::report::verdicts::{Comparison, Verdict};
use judge::report::{Report, Row, State};

use crate::{comparison, words};

pub(crate) struct Pictures<'a> {
    pub(super) report: &'a Report,
    colours: BTreeMap<String, Colour>,
}

pub(crate) fn title(report: &Report) -> String {
    let names: Vec<&str> = report.rows.iter().map(|row| row.framework.as_str()).collect();
    let names = match names.as_slice() {
        [] => "No framework".to_owned(),
        many if many.len() > 5 => format!("{} and {} more", many[..3].join(", "), many.len() - 3),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    };
    let model = if report.model.name.is_empty() { &report.plan.model } else { &report.model.name };
    format!("{names} on {model}")
}

pub(crate) fn subtitle(report: &Report) -> String {
    format!("{}, {}", words::summary(report).heading, report.plan.precision.name())
}

/// The text in place of a missing figure.
pub(crate) fn absent(state: State) -> &'static str {
    match state {
        State::Struck => "struck: not compared",
        state if state.has_figures() => "not available",
        state => state.words(),
    }
}

impl<'a> Pictures<'a> {
    pub(crate) fn new(report: &'a Report) -> Pictures<'a> {
        let labels: Vec<String> = report.rows.iter().map(|row| row.framework.clone()).collect();
        Pictures { report, colours: super::colours(&labels) }
    }

    pub(super) fn colour(&self, row: &Row) -> Colour {
        let own = self.colours.get(&row.framework).filter(|_| row.state != State::Struck);
        own.copied().unwrap_or(GREY)
    }

    /// The metrics with a picture of their own. The first is the one that decides.
    pub(crate) fn four(&self) -> [Metric; 4] {
        let deciding = Metric::deciding(self.report.plan.work.kind());
        [deciding, Metric::FirstToken, Metric::Load, Metric::PeakMemory]
    }

    /// A dot for each process, the median and its interval. Nothing is drawn of who is struck.
    pub(crate) fn dots(&self, metric: Metric) -> Dots {
        let of_row = |row: &Row| {
            let figure = row.metrics.iter().find(|figure| figure.metric == metric);
            let figure = figure.filter(|_| row.state != State::Struck);
            DotsRow {
                label: words::title(row),
                colour: self.colour(row),
                median: figure.and_then(|figure| figure.typical),
                interval: figure.and_then(words::interval),
                points: figure.map(words::known).unwrap_or_default(),
                note: absent(row.state).to_owned(),
            }
        };
        let rows = self.report.rows.iter().map(of_row).collect();
        let groups = vec![DotsGroup { label: String::new(), rows }];
        Dots { title: metric.title().into(), hint: super::better(metric), groups }
    }

    /// The metrics that are compared in pairs: first the one that decides. What follows another is left out.
    pub(crate) fn compared(&self) -> Vec<Metric> {
        let deciding = Metric::deciding(self.report.plan.work.kind());
        let is_compared = |metric: &Metric| self.report.comparisons.iter().any(|c| c.metric == *metric);
        let tested = Metric::tested(self.report.plan.work.kind()).into_iter();
        let others = tested
            .filter(|&metric| metric != deciding && metric.follows(self.report.plan.work.kind()).is_none());
        [deciding].into_iter().chain(others).filter(is_compared).collect()
    }

    /// Every pair of contenders in one metric; the largest difference comes first.
    pub(crate) fn forest(&self, metric: Metric) -> Forest {
        let comparisons = self.report.comparisons.iter().filter(|found| found.metric == metric);
        let mut compared: Vec<&Comparison> = comparisons.collect();
        compared.sort_by(|x, y| y.advantage.unwrap_or(0.0).total_cmp(&x.advantage.unwrap_or(0.0)));
        let struck = self.report.rows.iter().filter(|row| row.state == State::Struck);
        let struck = struck.map(|row| Pair {
            label: words::title(row),
            note: "struck: no verdict".into(),
            ..Pair::default()
        });
        let pairs = compared.into_iter().map(|found| self.pair(found)).chain(struck).collect();
        let margin = self.report.plan.margin;
        Forest {
            title: metric.title().into(),
            hint: "times better".into(),
            groups: vec![ForestGroup { label: String::new(), pairs }],
            band: Some((1.0 / (1.0 + margin), 1.0 + margin)),
        }
    }

    fn pair(&self, found: &Comparison) -> Pair {
        let measurable = found.verdict != Verdict::NotMeasurable;
        Pair {
            label: format!("{} vs {}", found.a, found.b),
            ratio: found.advantage.filter(|_| measurable),
            interval: found.interval.filter(|_| measurable),
            colour: match found.verdict {
                Verdict::Faster => self.colours.get(&found.a).copied(),
                Verdict::Equivalent => Some(INK),
                _ => None,
            },
            note: words::verdicts::word(found.verdict).into(),
        }
    }

    /// The answer, the pairs and the four charts in one picture for sharing. It says all that it takes to read it.
    pub(crate) fn comparison(&self) -> Figure {
        let compared = self.compared().into_iter().take(1);
        let pairs = compared.map(|metric| Panel::Forest(self.forest(metric)));
        let four = self.four().into_iter().map(|metric| Panel::Dots(self.dots(metric)));
        Figure {
            title: title(self.report),
            answer: words::summary(self.report).answer,
            subtitle: subtitle(self.report),
            panels: pairs.chain(four).collect(),
            columns: 2,
            note: self.note(),
        }
    }

    /// One metric in a picture of its own: its pairs, and the figures of every process. The answer is that of the metric.
    pub(crate) fn one_metric(&self, metric: Metric, title: Option<&str>) -> Figure {
        let is_compared = self.compared().contains(&metric);
        let pairs = is_compared.then(|| Panel::Forest(self.forest(metric)));
        let verdicts = self.report.comparisons.iter().filter(|found| found.metric == metric);
        let is_deciding = metric == Metric::deciding(self.report.plan.work.kind());
        Figure {
            title: title.map_or_else(|| self::title(self.report), str::to_owned),
            answer: match is_deciding {
                true => words::summary(self.report).answer.into_iter().take(1).collect(),
                false => verdicts.take(1).map(|found| comparison::verdict(self.report, found)).collect(),
            },
            subtitle: subtitle(self.report),
            panels: pairs.into_iter().chain([Panel::Dots(self.dots(metric))]).collect(),
            columns: 1,
            note: self.note(),
        }
    }

    /// How to read it, and what was measured, by what and when.
    fn note(&self) -> String {
        let Report { environment, rows, .. } = self.report;
        let versions = rows.iter().filter_map(|row| Some(row.hello.as_ref()?.library.to_string()));
        let mut said = vec![format!("Photofinish {}", environment.driver_version)];
        said.push(environment.started.chars().take(10).collect());
        said.extend(words::distinct(versions));
        let mut figures = rows.iter().flat_map(|row| &row.metrics);
        let intervals = if figures.any(|figure| words::interval(figure).is_some()) {
            "line: its 95 % interval"
        } else {
            "too few rounds for an interval"
        };
        let marks = format!(
            "Dot: one process; upright bar: geometric mean; {intervals}. Pairs are compared within rounds; coloured ones are \
             decided. Grey band: differences within {} % count as none.",
            100.0 * self.report.plan.margin
        );
        format!("{marks} {}.", said.join(" · "))
    }

    /// The ratio of a pair in each round by the speed of the others, in the deciding metric, and the fitted line, which is
    /// straight between two logarithms.
    pub(crate) fn by_state(&self, found: &Dependence) -> Lines {
        let metric = Metric::deciding(self.report.plan.work.kind());
        let point = |x: f64, y: f64| Point { x, y, interval: None };
        let (Some(first), Some(last)) = (found.points.first(), found.points.last()) else {
            return Lines::default();
        };
        let line = |label: &str, colour, points| Line { label: label.into(), colour, points };
        let [slow, fast] = found.ratios;
        Lines {
            title: format!("{} ÷ {}", found.a, found.b),
            hint: format!("in {}, by round", metric.words()),
            x: LineAxis {
                label: format!(
                    "{} of {} ({})",
                    metric.words(),
                    words::dependence::others(&found.others),
                    metric.unit()
                ),
                log: true,
                ..LineAxis::default()
            },
            y: LineAxis { log: true, shown: vec![1.0], ..LineAxis::default() },
            series: vec![
                line("rounds", INK, found.points.iter().map(|&[x, y]| point(x, y)).collect()),
                line("fitted", GREY, vec![point(first[0], slow), point(last[0], fast)]),
            ],
            shaded: None,
        }
    }

    /// The parts of the peak of everyone who is not struck.
    pub(crate) fn memory(&self) -> Option<Stack> {
        let rows = self.report.rows.iter().filter(|row| row.state != State::Struck);
        let row = |row: &Row| Some(super::stacked(words::title(row), row.memory.as_ref()?));
        super::stack(rows.filter_map(row).collect())
    }
}

pub(super) const ITERATION: &str = "iteration of the process";
