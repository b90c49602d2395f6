//! The charts of reports: the content of each panel, and pictures for sharing.

pub(crate) mod over_time;
pub(crate) mod sweep;

use std::collections::BTreeMap;

use comparison::judge::Metric;
use comparison::judge::report::generate::{IterationTimes, ProcessCurve};
use comparison::judge::report::memory::Parts;
use comparison::judge::report::verdicts::{Comparison, Verdict};
use comparison::judge::report::{Report, Row, State};

use crate::charts::{
    self, Colour, Content, Figure, GREY, Group, INK, Line, LineAxis, Lines, Panel, Point, Row as Mark,
    RowAxis, Rows, Size,
};
use crate::result;
use crate::words::answer::Standing;
use crate::words::{self, answer};

/// Frameworks that have the same colour in every chart of every run.
pub(crate) const KNOWN: [&str; 3] = ["candle", "tch", "ort"];

/// Width in pixels of a picture for issues and slides, and its largest height.
const WIDTH: u32 = 1200;

const HIGHEST: u32 = 6000;

pub(crate) const PREVIEW: Size = Size { width: 1200, height: 630 };

pub(crate) struct Colours(BTreeMap<String, Colour>);

impl Colours {
    pub(crate) fn new(labels: &[String]) -> Colours {
        Colours(labels.iter().cloned().zip(charts::assign(labels, &KNOWN)).collect())
    }

    pub(crate) fn of(&self, label: &str) -> Colour {
        self.0.get(label).copied().unwrap_or(GREY)
    }
}

/// The hint next to a metric's title: the better direction.
pub(crate) fn better(metric: Metric) -> String {
    if metric.higher_is_better() { "higher is better" } else { "lower is better" }.to_owned()
}

/// The parts of a peak in megabytes, a row each.
pub(crate) fn parts(label: String, colour: Colour, parts: &Parts) -> Group {
    let row = |(part, bytes): (&str, f64)| Mark {
        label: part.replace('_', " "),
        colour: Some(colour),
        value: Some(bytes / 1e6),
        ..Mark::default()
    };
    let peak = format!("{label}: {} MB", words::number(parts.peak / 1e6));
    Group { label: peak, rows: parts.summands().map(row).into() }
}

/// Peaks of memory by part; `None` without any.
pub(crate) fn memory(groups: Vec<Group>) -> Option<Panel> {
    let rows = Rows { axis: RowAxis::FromZero, groups };
    (!rows.groups.is_empty()).then(|| Panel::new("Peak memory by part", "MB", Content::Rows(rows)))
}

/// A picture for sharing, as high as its content.
fn size(figure: &Figure) -> Size {
    let Size { width, height } = figure.size(WIDTH);
    Size { width, height: height.min(HIGHEST) }
}

pub(crate) fn png(figure: &Figure) -> Result<Vec<u8>, String> {
    figure.png(size(figure)).map_err(|error| error.to_string())
}

pub(crate) fn preview(figure: &Figure) -> Result<Vec<u8>, String> {
    figure.png(PREVIEW).map_err(|error| error.to_string())
}

/// A figure as `<name>.png` and `<name>.svg`.
pub(crate) fn files(name: &str, figure: &Figure) -> Result<Vec<(String, Vec<u8>)>, String> {
    let svg = figure.svg(size(figure)).map_err(|error| error.to_string())?;
    Ok(vec![(format!("{name}.png"), png(figure)?), (format!("{name}.svg"), svg.into_bytes())])
}

// The charts of a run.

/// Most pairs per metric; with more, the picture only shows those of the best contender.
const FEW: usize = 6;

const COSTS: [Metric; 2] = [Metric::Load, Metric::PeakMemory];

const PREVIEWED: usize = 8;

pub(crate) struct Pictures<'a> {
    report: &'a Report,
    colours: Colours,
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

/// How to read pairs. Intervals agree with verdicts (`statistics::decide`).
pub(crate) fn reading(margin: f64) -> String {
    format!(
        "Grey band: within {} % is equal. A coloured pair is decided: its interval is on one side of 1, or within the band. \
         That of a hollow pair contains 1. All intervals hold together with 95 % certainty.",
        100.0 * margin
    )
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
        Pictures { report, colours: Colours::new(&labels) }
    }

    fn colour(&self, row: &Row) -> Colour {
        if row.state == State::Struck { GREY } else { self.colours.of(&row.framework) }
    }

    /// The metrics with their own picture: those that readers ask about, and two costs.
    pub(crate) fn drawn(&self) -> Vec<Metric> {
        Metric::questions(self.report.plan.work.kind()).into_iter().chain(COSTS).collect()
    }

    /// The best first: a small mark for each process, their geometric mean, and beside it the mark of the table. Struck
    /// contenders have none, and are last.
    pub(crate) fn rows(&self, metric: Metric) -> Vec<Mark> {
        let standing = Standing::of_report(self.report, metric);
        let of_row = |row: &Row| {
            let figure = row.figure(metric).filter(|_| row.state != State::Struck);
            Mark {
                label: words::title(row),
                colour: Some(self.colour(row)),
                value: figure.and_then(|figure| figure.typical),
                points: figure.map(words::known).unwrap_or_default(),
                sign: answer::mark(self.report, &standing, row).text(),
                note: absent(row.state).to_owned(),
                ..Mark::default()
            }
        };
        answer::sorted(self.report, &standing).into_iter().map(of_row).collect()
    }

    pub(crate) fn dots(&self, metric: Metric) -> Panel {
        let groups = vec![Group { label: String::new(), rows: self.rows(metric) }];
        let rows = Rows { axis: RowAxis::FromZero, groups };
        Panel::new(metric.title(), better(metric), Content::Rows(rows))
    }

    /// The metrics that are compared in pairs, the deciding one first. Metrics that follow from another are
    /// left out.
    pub(crate) fn compared(&self) -> Vec<Metric> {
        let mut asked = Metric::asked(self.report.plan.work.kind());
        asked.retain(|metric| self.report.comparisons.iter().any(|found| found.metric == *metric));
        asked
    }

    /// The comparisons in one metric, the largest difference first.
    pub(crate) fn comparisons(&self, metric: Metric) -> Vec<&'a Comparison> {
        let comparisons = self.report.comparisons.iter().filter(|found| found.metric == metric);
        let mut compared: Vec<&Comparison> = comparisons.collect();
        compared.sort_by(|x, y| y.advantage.unwrap_or(0.0).total_cmp(&x.advantage.unwrap_or(0.0)));
        compared
    }

    pub(crate) fn pairs(&self, metric: Metric) -> Vec<Mark> {
        self.marked(self.comparisons(metric).into_iter())
    }

    fn marked(&self, compared: impl Iterator<Item = &'a Comparison>) -> Vec<Mark> {
        let struck = self.report.rows.iter().filter(|row| row.state == State::Struck);
        let struck = struck.map(|row| Mark {
            label: words::title(row),
            note: "struck: no verdict".into(),
            ..Mark::default()
        });
        compared.map(|found| self.pair(found)).chain(struck).collect()
    }

    pub(crate) fn forest(&self, metric: Metric, rows: Vec<Mark>) -> Panel {
        let margin = self.report.plan.margin;
        let axis =
            RowAxis::Ratio { sides: ["worse", "better"], band: Some((1.0 / (1.0 + margin), 1.0 + margin)) };
        let groups = vec![Group { label: String::new(), rows }];
        Panel::new(metric.title(), "times better", Content::Rows(Rows { axis, groups }))
    }

    fn pair(&self, found: &Comparison) -> Mark {
        let measurable = found.verdict != Verdict::NotMeasurable;
        Mark {
            label: format!("{} vs {}", found.a, found.b),
            value: found.advantage.filter(|_| measurable),
            interval: found.interval.filter(|_| measurable),
            colour: match found.verdict {
                Verdict::Faster => Some(self.colours.of(&found.a)),
                Verdict::Equivalent => Some(INK),
                _ => None,
            },
            note: words::verdicts::word(found.verdict).into(),
            ..Mark::default()
        }
    }

    /// The answer, the figures and the pairs of the first question in one picture for sharing. It contains everything
    /// needed to read it.
    pub(crate) fn comparison(&self) -> Figure {
        let figures = self.drawn().into_iter().map(|metric| self.dots(metric));
        let deciding = self.compared().into_iter().next();
        let pairs = deciding.map(|metric| {
            let compared = self.comparisons(metric);
            let best = Standing::of_report(self.report, metric).best().filter(|_| compared.len() > FEW);
            let is_shown = |found: &&Comparison| best.is_none_or(|best| found.a == best || found.b == best);
            self.forest(metric, self.marked(compared.into_iter().filter(is_shown)))
        });
        Figure {
            title: answer::brief(self.report),
            answer: answer::sentences(self.report).into_iter().skip(1).collect(),
            subtitle: answer::about(self.report),
            panels: figures.chain(pairs).collect(),
            columns: 2,
            note: self.note(),
        }
    }

    /// The verdict on the deciding metric and its figures, for previews of links.
    pub(crate) fn preview(&self) -> Figure {
        let metric = Metric::deciding(self.report.plan.work.kind());
        let mut rows = self.rows(metric);
        rows.iter_mut().for_each(|row| row.points.clear());
        let more = rows.len().saturating_sub(PREVIEWED);
        rows.truncate(PREVIEWED);
        let left_out = if more > 0 { format!("; {more} more are not shown") } else { String::new() };
        let rows = Rows { axis: RowAxis::FromZero, groups: vec![Group { label: String::new(), rows }] };
        let hint = format!("{}{left_out}", self::better(metric));
        Figure {
            title: answer::brief(self.report),
            answer: Vec::new(),
            subtitle: answer::about(self.report),
            panels: vec![Panel::new(metric.title(), hint, Content::Rows(rows))],
            columns: 1,
            note: vec![self.origin()],
        }
    }

    /// A picture of one metric: its answer, its pairs, and the figures of every process.
    pub(crate) fn one_metric(&self, metric: Metric, title: Option<&str>) -> Figure {
        let is_compared = self.compared().contains(&metric);
        let pairs = is_compared.then(|| self.forest(metric, self.pairs(metric)));
        let verdicts = self.report.comparisons.iter().filter(|found| found.metric == metric);
        let is_deciding = metric == Metric::deciding(self.report.plan.work.kind());
        Figure {
            title: title.map_or_else(|| self::title(self.report), str::to_owned),
            answer: match is_deciding {
                true => vec![answer::brief(self.report)],
                false => verdicts.take(1).map(|found| result::verdict(self.report, found)).collect(),
            },
            subtitle: answer::about(self.report),
            panels: [self.dots(metric)].into_iter().chain(pairs).collect(),
            columns: 1,
            note: self.note(),
        }
    }

    /// How to read the picture, its origin, and how to repeat the run.
    fn note(&self) -> Vec<String> {
        let Report { environment, rows, plan, .. } = self.report;
        let marks = format!("Small mark: one process; bar: geometric mean. {}", reading(plan.margin));
        let versions = rows.iter().filter_map(|row| Some(row.hello.as_ref()?.library.to_string()));
        let origin: Vec<String> = [self.origin()].into_iter().chain(words::distinct(versions)).collect();
        let (command, _) = words::elsewhere(&environment.command, Some(plan.seed));
        vec![marks, origin.join(" · "), format!("To repeat it: {}", words::quoted(&command))]
    }

    fn origin(&self) -> String {
        let environment = &self.report.environment;
        let commit = words::short_commit(environment.git_commit.as_deref(), environment.git_modified);
        let day = words::day(&environment.started);
        format!("Photofinish {} at commit {commit} · {day}", environment.driver_version)
    }
}

const ITERATION: &str = "iteration of the process";

// Charts of the times of requests that are generated token by token.

pub(crate) type Curves = BTreeMap<String, Vec<ProcessCurve>>;

/// A figure of an iteration, if it has one.
pub(crate) type Pick = fn(&IterationTimes) -> Option<f64>;

/// Percentiles of the gaps between tokens, with their names. One is drawn where at least one gap is beyond it.
pub(crate) const PERCENTILES: [(f64, &str); 6] =
    [(0.0, "least"), (0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"), (1.0, "most")];

impl Pictures<'_> {
    /// The times of the iterations of every process.
    pub(crate) fn curve(&self, curves: &Curves, title: &str, value: Pick) -> Panel {
        let strand = |curve: &ProcessCurve| -> Vec<Point> {
            let places = curve.iterations.iter().enumerate();
            let point =
                |(index, times)| Some(Point { x: (index + 1) as f64, y: value(times)?, interval: None });
            places.filter_map(point).collect()
        };
        let line = |row: &Row| {
            let own = curves.get(&row.framework)?;
            let strands: Vec<_> = own.iter().map(strand).filter(|strand| !strand.is_empty()).collect();
            Some(Line { label: words::title(row), colour: self.colour(row), strands })
        };
        let series = self.report.rows.iter().filter_map(line).filter(|line| !line.strands.is_empty());
        // Iterations that were warm-up in every process of every framework.
        let warm = curves.values().flatten().map(|curve| curve.warmup).min().filter(|&warm| warm > 0);
        let last = curves.values().flatten().map(|curve| curve.iterations.len()).max().unwrap_or(1);
        let ticks = (1..=last).map(|iteration| iteration as f64).filter(|_| last <= 12);
        let lines = Lines {
            x: LineAxis { label: ITERATION.into(), ticks: ticks.collect(), ..LineAxis::default() },
            y: LineAxis { from_zero: true, ..LineAxis::default() },
            series: series.collect(),
            shaded: warm.map(|last| (last as f64 + 0.5, "warm-up".to_owned())),
        };
        Panel::new(title, "one line a process", Content::Lines(lines))
    }

    /// The gaps between tokens by percentile: rare ones get as much room as common ones.
    pub(crate) fn tail(&self, gaps: &BTreeMap<String, Vec<f64>>) -> Panel {
        let line = |row: &Row| {
            let gaps = gaps.get(&row.framework).filter(|gaps| !gaps.is_empty())?;
            let is_known = |share: f64| share == 1.0 || (1.0 - share) * gaps.len() as f64 >= 1.0;
            let places = PERCENTILES.iter().enumerate().filter(|(_, (share, _))| is_known(*share));
            let point = |(place, (share, _)): (usize, &(f64, &str))| {
                Some(Point { x: place as f64, y: statistics::quantile(gaps, *share)?, interval: None })
            };
            Some(Line::new(words::title(row), self.colour(row), places.filter_map(point).collect()))
        };
        let names = PERCENTILES.map(|(_, name)| name.to_owned()).into();
        let lines = Lines {
            x: LineAxis { label: "percentile".into(), names, ..LineAxis::default() },
            y: LineAxis { log: true, ..LineAxis::default() },
            series: self.report.rows.iter().filter_map(line).collect(),
            shaded: None,
        };
        Panel::new("Gaps between tokens", "ms, by percentile", Content::Lines(lines))
    }
}
