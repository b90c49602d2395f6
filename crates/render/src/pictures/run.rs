//! The charts of a run.

use std::collections::BTreeMap;

use charts::{
    Bar, Bars, Colour, Dots, DotsGroup, DotsRow, Figure, Forest, ForestGroup, GREY, Group, INK, Pair, Panel,
    Stack,
};
use judge::Metric;
use judge::report::verdicts::{Comparison, Verdict};
use judge::report::{Report, Row, State};

use crate::comparison;
use crate::words::{self, answer};

/// Most pairs per metric; with more, the picture only shows those of the best contender.
const FEW: usize = 6;
/// Metrics drawn in addition to speeds.
const COSTS: [Metric; 2] = [Metric::Load, Metric::PeakMemory];
/// Most bars in a preview.
const PREVIEWED: usize = 8;

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

    /// The metrics with their own picture: the first two that readers ask about, and two costs.
    pub(crate) fn drawn(&self) -> Vec<Metric> {
        let asked = Metric::questions(self.report.plan.work.kind()).into_iter().take(2);
        asked.chain(COSTS).collect()
    }

    /// A dot for each process, and their geometric mean. Struck contenders have no marks.
    pub(crate) fn dots(&self, metric: Metric) -> Dots {
        let of_row = |row: &Row| {
            let figure = row.metrics.iter().find(|figure| figure.metric == metric);
            let figure = figure.filter(|_| row.state != State::Struck);
            DotsRow {
                label: words::title(row),
                colour: self.colour(row),
                median: figure.and_then(|figure| figure.typical),
                points: figure.map(words::known).unwrap_or_default(),
                note: absent(row.state).to_owned(),
            }
        };
        let rows = self.report.rows.iter().map(of_row).collect();
        let groups = vec![DotsGroup { label: String::new(), rows }];
        Dots { title: metric.title().into(), hint: super::better(metric), groups }
    }

    /// The metrics that are compared in pairs, the deciding one first. Metrics that follow from another are
    /// left out.
    pub(crate) fn compared(&self) -> Vec<Metric> {
        let deciding = Metric::deciding(self.report.plan.work.kind());
        let is_compared = |metric: &Metric| self.report.comparisons.iter().any(|c| c.metric == *metric);
        let tested = Metric::tested(self.report.plan.work.kind()).into_iter();
        let others = tested
            .filter(|&metric| metric != deciding && metric.follows(self.report.plan.work.kind()).is_none());
        [deciding].into_iter().chain(others).filter(is_compared).collect()
    }

    /// The comparisons in one metric, the largest difference first.
    pub(crate) fn comparisons(&self, metric: Metric) -> Vec<&'a Comparison> {
        let comparisons = self.report.comparisons.iter().filter(|found| found.metric == metric);
        let mut compared: Vec<&Comparison> = comparisons.collect();
        compared.sort_by(|x, y| y.advantage.unwrap_or(0.0).total_cmp(&x.advantage.unwrap_or(0.0)));
        compared
    }

    /// Every pair of contenders in one metric.
    pub(crate) fn forest(&self, metric: Metric) -> Forest {
        let pairs = self.comparisons(metric).into_iter();
        self.forest_of(metric, pairs.map(|found| (format!("{} vs {}", found.a, found.b), found)).collect())
    }

    /// Pairs with the figures that they compare; only those of the best contender if there are many.
    fn forest_with_figures(&self, metric: Metric) -> Forest {
        let mut compared = self.comparisons(metric);
        let best = compared.first().map(|found| found.a.clone()).filter(|_| compared.len() > FEW);
        compared.retain(|found| best.as_ref().is_none_or(|best| *best == found.a));
        let figured = |label: &str| {
            let row = self.report.rows.iter().find(|row| row.framework == label);
            let figure = row.and_then(|row| row.typical(metric)).map(charts::number);
            [label.to_owned()].into_iter().chain(figure).collect::<Vec<_>>().join(" ")
        };
        let label = |found: &Comparison| format!("{} vs {}", figured(&found.a), figured(&found.b));
        self.forest_of(metric, compared.into_iter().map(|found| (label(found), found)).collect())
    }

    fn forest_of(&self, metric: Metric, compared: Vec<(String, &Comparison)>) -> Forest {
        let struck = self.report.rows.iter().filter(|row| row.state == State::Struck);
        let struck = struck.map(|row| Pair {
            label: words::title(row),
            note: "struck: no verdict".into(),
            ..Pair::default()
        });
        let pairs = compared.into_iter().map(|(label, found)| self.pair(label, found)).chain(struck);
        let margin = self.report.plan.margin;
        Forest {
            title: metric.title().into(),
            hint: "times better".into(),
            sides: ["worse", "better"],
            groups: vec![ForestGroup { label: String::new(), pairs: pairs.collect() }],
            band: Some((1.0 / (1.0 + margin), 1.0 + margin)),
        }
    }

    fn pair(&self, label: String, found: &Comparison) -> Pair {
        let measurable = found.verdict != Verdict::NotMeasurable;
        Pair {
            label,
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

    /// The answer and the metrics in one picture for sharing: speeds as pairs, if they are compared, and
    /// costs by process. It contains everything needed to read it.
    pub(crate) fn comparison(&self) -> Figure {
        let compared = self.compared();
        let panel = |metric: Metric| {
            if !COSTS.contains(&metric) && compared.contains(&metric) {
                Panel::Forest(self.forest_with_figures(metric))
            } else {
                Panel::Dots(self.dots(metric))
            }
        };
        Figure {
            title: answer::brief(self.report),
            answer: answer::sentences(self.report).into_iter().skip(1).collect(),
            subtitle: answer::about(self.report),
            panels: self.drawn().into_iter().map(panel).collect(),
            columns: 2,
            note: self.note(),
        }
    }

    /// The verdict on the deciding metric and its figures, for previews of links.
    pub(crate) fn preview(&self) -> Figure {
        let metric = Metric::deciding(self.report.plan.work.kind());
        let DotsGroup { rows, .. } = self.dots(metric).groups.remove(0);
        let bar = |row: DotsRow| Bar {
            label: row.label,
            colour: row.colour,
            value: row.median,
            interval: None,
            points: Vec::new(),
            note: row.note,
        };
        let mut bars: Vec<Bar> = rows.into_iter().map(bar).collect();
        let better = |one: f64, other: f64| match metric.higher_is_better() {
            true => other.total_cmp(&one),
            false => one.total_cmp(&other),
        };
        bars.sort_by(|one, other| match (one.value, other.value) {
            (Some(one), Some(other)) => better(one, other),
            (one, other) => other.is_some().cmp(&one.is_some()),
        });
        let more = bars.len().saturating_sub(PREVIEWED);
        bars.truncate(PREVIEWED);
        let left_out = if more > 0 { format!("; {more} more are not shown") } else { String::new() };
        let groups = vec![Group { label: String::new(), bars }];
        let hint = format!("{}{left_out}", super::better(metric));
        Figure {
            title: answer::brief(self.report),
            answer: Vec::new(),
            subtitle: answer::about(self.report),
            panels: vec![Panel::Bars(Bars { title: metric.title().into(), hint, groups, ..Bars::default() })],
            columns: 1,
            note: vec![self.origin()],
        }
    }

    /// A picture of one metric: its answer, its pairs, and the figures of every process.
    pub(crate) fn one_metric(&self, metric: Metric, title: Option<&str>) -> Figure {
        let is_compared = self.compared().contains(&metric);
        let pairs = is_compared.then(|| Panel::Forest(self.forest(metric)));
        let verdicts = self.report.comparisons.iter().filter(|found| found.metric == metric);
        let is_deciding = metric == Metric::deciding(self.report.plan.work.kind());
        Figure {
            title: title.map_or_else(|| self::title(self.report), str::to_owned),
            answer: match is_deciding {
                true => vec![answer::brief(self.report)],
                false => verdicts.take(1).map(|found| comparison::verdict(self.report, found)).collect(),
            },
            subtitle: answer::about(self.report),
            panels: pairs.into_iter().chain([Panel::Dots(self.dots(metric))]).collect(),
            columns: 1,
            note: self.note(),
        }
    }

    /// How to read the picture, its origin, and how to repeat the run.
    fn note(&self) -> Vec<String> {
        let Report { environment, rows, plan, .. } = self.report;
        let marks = format!(
            "Small mark: one process; upright bar: geometric mean. Line: the interval of a ratio; all hold together with \
             95 % certainty. Coloured pairs are decided. Grey band: within {} % is equal.",
            100.0 * plan.margin
        );
        let versions = rows.iter().filter_map(|row| Some(row.hello.as_ref()?.library.to_string()));
        let origin: Vec<String> = [self.origin()].into_iter().chain(words::distinct(versions)).collect();
        let (command, _) = words::command::elsewhere(&environment.command, Some(plan.seed));
        vec![marks, origin.join(" · "), format!("To repeat it: {}", words::command::quoted(&command))]
    }

    fn origin(&self) -> String {
        let environment = &self.report.environment;
        let commit = words::short_commit(environment.git_commit.as_deref(), environment.git_modified);
        let day = words::day(&environment.started);
        format!("Photofinish {} at commit {commit} · {day}", environment.driver_version)
    }

    /// The parts of the peak memory of all contenders that are not struck.
    pub(crate) fn memory(&self) -> Option<Stack> {
        let rows = self.report.rows.iter().filter(|row| row.state != State::Struck);
        let row = |row: &Row| Some(super::stacked(words::title(row), row.memory.as_ref()?));
        super::stack(rows.filter_map(row).collect())
    }
}

pub(super) const ITERATION: &str = "iteration of the process";
