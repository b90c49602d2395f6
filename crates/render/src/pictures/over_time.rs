//! Figures from run to run, separately for each machine and case.

use comparison::history::{Apart, Case, Machine, Record};
use comparison::judge::regression::pairing;
use comparison::judge::{Metric, records};
use protocol::untrusted::Foreign;

use super::{Colours, better};
use crate::charts::{Content, Figure, Line, LineAxis, Lines, Panel, Point};
use crate::trends::{FEWEST_RUNS, Trend, trends};
use crate::words;

/// Records that may be compared with each other, or are both arms of an A/B study.
pub(crate) struct Group<'a> {
    pub(crate) machine: &'a Machine,
    case: Case,
    has_arms: bool,
    pub(crate) records: Vec<&'a Record>,
}

/// A change other than in figures, from one run to the next.
pub(crate) struct Event {
    pub(crate) place: usize,
    /// "3f2a9c41, tch: library: torch 2.7 → torch 2.8".
    pub(crate) sentence: String,
}

/// Number of panels in the picture: the groups with the most runs.
const PANELS: usize = 4;

/// Whether a record belongs in the charts over time: it is not kept apart, or only as an arm of an A/B study.
pub(crate) fn has_place(record: &Record) -> bool {
    record.apart().iter().all(|reason| *reason == Apart::Ab)
}

/// Groups of records with the same machine, model, precision and shape of work; groups with the most runs come first.
pub(crate) fn groups<'a>(records: &[&'a Record]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for &record in records {
        let (machine, has_arms) = (&record.machine, record.apart().contains(&Apart::Ab));
        let case = if has_arms { records::shared_by_arms(&record.case) } else { record.case.clone() };
        let fits = |group: &&mut Group<'_>| {
            group.machine.fingerprint == machine.fingerprint
                && group.has_arms == has_arms
                && pairing::is_same(&group.case, &case)
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.records.push(record),
            None => groups.push(Group { machine, case, has_arms, records: vec![record] }),
        }
    }
    for group in &mut groups {
        group.records.sort_by(|a, b| a.time.cmp(&b.time));
    }
    groups.sort_by_key(|group| std::cmp::Reverse((group.runs().len(), group.records.len())));
    groups
}

impl<'a> Group<'a> {
    /// The runs, oldest first: one record of each.
    pub(crate) fn runs(&self) -> Vec<&'a Record> {
        let mut runs: Vec<&Record> = Vec::new();
        for record in &self.records {
            if !runs.iter().any(|run| run.run == record.run) {
                runs.push(record);
            }
        }
        runs
    }

    pub(crate) fn title(&self) -> String {
        let arms = if self.has_arms { ", A/B" } else { "" };
        format!("{}{arms}", records::in_full(&self.case))
    }

    /// The trends of a metric that have enough runs for a line.
    fn drawn(&self, metric: Metric) -> Vec<Trend<'a>> {
        trends(&self.records, &[metric]).into_iter().filter(Trend::is_drawn).collect()
    }

    pub(crate) fn is_drawn(&self, metric: Metric) -> bool {
        !self.drawn(metric).is_empty()
    }

    /// The frameworks that have a figure of this metric, but too few runs for a line.
    pub(crate) fn too_few(&self, metric: Metric) -> Vec<String> {
        let all = trends(&self.records, &[metric]);
        all.iter().filter(|trend| !trend.is_drawn()).map(|trend| trend.last().framework.clone()).collect()
    }

    /// Changes of versions, of the machine and of settings, by run. A change in several frameworks is listed
    /// once.
    pub(crate) fn events(&self) -> Vec<Event> {
        let runs = self.runs();
        let trends = trends(&self.records, &[Metric::Throughput]);
        let changes = trends.iter().flat_map(|trend| &trend.points).flat_map(|point| {
            let place = runs.iter().position(|run| run.run == point.record.run);
            point.changed.iter().filter_map(move |what| Some(((place?, what), &*point.record.framework)))
        });
        let mut found = words::grouped(changes);
        found.sort_by_key(|((place, _), _)| *place);
        let sentence = |((place, what), frameworks): ((usize, &String), Vec<&str>)| {
            let commit = words::commit(runs[place]);
            Event { place, sentence: format!("{commit}, {}: {what}", frameworks.join(", ")) }
        };
        found.into_iter().map(sentence).collect()
    }

    /// A line for each framework, over the runs in their order.
    pub(crate) fn panel(&self, title: impl Into<String>, hint: impl Into<String>, metric: Metric) -> Panel {
        let runs = self.runs();
        let place = |record: &Record| runs.iter().position(|run| run.run == record.run);
        let names = words::distinct(self.records.iter().map(|record| record.framework.clone()));
        let colours = Colours::new(&names);
        let line = |trend: &Trend| {
            let points = trend.points.iter().filter_map(|point| {
                let x = place(point.record)? as f64;
                Some(Point { x, y: point.figure.typical, interval: point.figure.interval })
            });
            let name = &trend.last().framework;
            Line::new(name, colours.of(name), points.collect())
        };
        let drawn = self.drawn(metric);
        let figures = || drawn.iter().flat_map(|trend| &trend.points).map(|point| point.figure.typical);
        let numbers = (1..).zip(self.events()).map(|(number, event)| (event.place, number.to_string()));
        let marks = words::grouped(numbers).into_iter();
        let marks = marks.map(|(place, numbers)| (place as f64, numbers.join(", "))).collect();
        let lines = Lines {
            x: LineAxis {
                label: "commit, oldest run first".into(),
                names: runs.iter().map(|run| words::commit(run)).collect(),
                marks,
                ..LineAxis::default()
            },
            // A change of one per cent should not look like one of fifty.
            y: LineAxis {
                shown: figures().flat_map(|figure| [figure * 0.9, figure * 1.1]).collect(),
                ..LineAxis::default()
            },
            series: drawn.iter().map(line).collect(),
            shaded: None,
        };
        Panel::new(title, hint, Content::Lines(lines))
    }
}

/// Throughput from run to run, for the cases with the most runs.
pub(crate) fn picture(groups: &[Group<'_>]) -> Figure {
    let metric = Metric::Throughput;
    let drawn: Vec<&Group<'_>> = groups.iter().filter(|group| group.is_drawn(metric)).collect();
    let panel = |group: &&Group<'_>| {
        let hint = format!("{} · {} {}", metric.unit(), group.machine.host, group.machine.cpu);
        group.panel(group.title(), hint, metric)
    };
    let mut panels: Vec<Panel> = drawn.iter().take(PANELS).map(panel).collect();
    let left = groups.len() - panels.len();
    if panels.is_empty() {
        let title = format!("No framework has {FEWEST_RUNS} runs of one case yet: there is no trend to draw");
        panels.push(Panel::new(title, "", Content::Lines(Lines::default())));
    }
    let more =
        if left > 0 { format!(" {left} more cases are in the list of history.html.") } else { String::new() };
    Figure {
        title: "Performance over time".into(),
        subtitle: format!("{}, {}", metric.title(), better(metric)),
        columns: if panels.len() > 1 { 2 } else { 1 },
        panels,
        note: vec![format!(
            "Point: median of a run's processes; whisker: its 95 % interval, where there are rounds enough; line across: \
             a version, the machine or a setting changed.{more}"
        )],
        ..Figure::default()
    }
}

// Figures by the version of a framework, separately for each machine and case.

/// The picture shows the first of these that the records have.
const SPEEDS: [Metric; 3] = [Metric::Throughput, Metric::DenoisingThroughput, Metric::EncodingThroughput];

const BY_VERSION_PANELS: usize = 4;

/// One column at several versions, the oldest version first.
struct Versions<'a> {
    /// Its name without a version.
    base: String,
    /// The newest record of each version, with the version.
    records: Vec<(String, &'a Record)>,
}

/// A picture with a panel for each column that has several versions in a case; `None` if there is none.
pub(crate) fn by_version_picture(groups: &[Group<'_>]) -> Option<Figure> {
    let panels: Vec<Panel> = groups
        .iter()
        .flat_map(|group| versions(group).into_iter().map(move |versions| (group, versions)))
        .filter_map(|(group, versions)| panel(group, &versions))
        .take(BY_VERSION_PANELS)
        .collect();
    (!panels.is_empty()).then(|| Figure {
        title: "Speed by version".into(),
        subtitle: "the newest run of each version, with its 95 % interval; versions of one run have verdicts in its report"
            .into(),
        columns: if panels.len() > 1 { 2 } else { 1 },
        panels,
        ..Figure::default()
    })
}

/// Panels of one metric each, which all versions have.
pub(crate) fn panels(group: &Group<'_>) -> Vec<Panel> {
    versions(group).iter().filter_map(|versions| panel(group, versions)).collect()
}

fn panel(group: &Group<'_>, versions: &Versions<'_>) -> Option<Panel> {
    let figure = |metric: Metric, record: &Record| record.metrics.get(metric.name()).cloned();
    let metric = SPEEDS
        .into_iter()
        .find(|metric| versions.records.iter().all(|(_, record)| figure(*metric, record).is_some()))?;
    let points = versions.records.iter().enumerate().filter_map(|(place, (_, record))| {
        let figure = figure(metric, record)?;
        Some(Point { x: place as f64, y: figure.typical, interval: figure.interval })
    });
    let points: Vec<Point> = points.collect();
    let shown = points.iter().flat_map(|point| [point.y * 0.9, point.y * 1.1]).collect();
    let colour = Colours::new(std::slice::from_ref(&versions.base)).of(&versions.base);
    let line = Line::new(&versions.base, colour, points);
    let lines = Lines {
        x: LineAxis {
            label: "version".into(),
            names: versions.records.iter().map(|(version, _)| version.clone()).collect(),
            ..LineAxis::default()
        },
        y: LineAxis { shown, ..LineAxis::default() },
        series: vec![line],
        shaded: None,
    };
    let title = format!("{}: {}", versions.base, group.title());
    let hint = format!("{}, {}", metric.title(), better(metric));
    Some(Panel::new(title, hint, Content::Lines(lines)))
}

/// The columns of a group that have several versions.
fn versions<'a>(group: &Group<'a>) -> Vec<Versions<'a>> {
    let base = |record: &Record| record.framework.split('@').next().unwrap_or_default().to_owned();
    let bases = words::distinct(group.records.iter().map(|record| base(record)));
    let of_base = |name: String| {
        let own: Vec<&'a Record> =
            group.records.iter().copied().filter(|record| base(record) == name).collect();
        // Several versions of a binding may use the same library.
        let libraries = words::distinct(own.iter().filter_map(|record| version(record.library.as_ref())));
        let of = |record: &Record| match libraries.len() {
            1 => version(record.binding.as_ref()),
            _ => version(record.library.as_ref()),
        };
        let mut records: Vec<(String, &'a Record)> = Vec::new();
        for record in own {
            let Some(version) = of(record).filter(|_| !record.metrics.is_empty()) else { continue };
            let version = version + &place(record);
            match records.iter_mut().find(|(other, _)| *other == version) {
                // Records are ordered by time.
                Some((_, newest)) => *newest = record,
                None => records.push((version, record)),
            }
        }
        records.sort_by_key(|(version, _)| numbers(version));
        Versions { base: name, records }
    };
    bases.into_iter().map(of_base).filter(|versions| versions.records.len() > 1).collect()
}

/// The version in the worker's description of its library or binding: `0.11.1` of `candle-core 0.11.1`.
fn version(told: Option<&Foreign>) -> Option<String> {
    told?.as_str().rsplit(' ').next().map(str::to_owned)
}

/// The name of the directory or file that a column was built from: two of them may have the same version.
fn place(record: &Record) -> String {
    let Some((_, asked)) = record.framework.split_once('@') else { return String::new() };
    match asked.rsplit_once('/').filter(|_| !asked.starts_with("git:")) {
        Some((_, name)) => format!(" ({name})"),
        None => String::new(),
    }
}

/// The numbers of a version, for sorting; text after a `+` is ignored.
fn numbers(version: &str) -> Vec<u64> {
    let release = version.split(['+', ' ']).next().unwrap_or_default();
    release.split(|byte: char| !byte.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use crate::pictures::over_time::groups;
    use comparison::judge::regression::testing::record;

    use super::*;

    #[test]
    fn both_arms_of_a_study_are_lines_of_one_panel() {
        let arm = |name: &str, jit: bool| {
            let mut arm = record(name, 10.0);
            (arm.study, arm.case.jit) = (Some("ab jit".into()), jit);
            arm
        };
        let records = [arm("ort (JIT)", true), arm("ort (none)", false), record("ort", 10.0)];
        let groups = groups(&records.iter().collect::<Vec<_>>());
        let sizes: Vec<usize> = groups.iter().map(|group| group.records.len()).collect();
        assert_eq!(sizes, [2, 1]);
        assert!(groups[0].title().ends_with(", A/B"), "{}", groups[0].title());
    }

    #[test]
    fn versions_of_a_column_are_in_order_with_the_newest_run_of_each() {
        let of = |framework: &str, library: &str, throughput: f64, time: &str| {
            let library = Some(library.to_owned().into());
            Record { library, time: time.into(), ..record(framework, throughput) }
        };
        let records = [
            of("fast@0.10.2", "fast 0.10.2", 80.0, "2026-01-01T00:00:00Z"),
            of("fast@0.9.1", "fast 0.9.1", 70.0, "2026-01-02T00:00:00Z"),
            of("fast@0.10.2", "fast 0.10.2", 90.0, "2026-01-03T00:00:00Z"),
            of("fast", "fast 0.11.0+ab12.modified", 100.0, "2026-01-03T00:00:00Z"),
            of("other", "other 1.0", 50.0, "2026-01-03T00:00:00Z"),
            of("fast@../mine", "fast 0.9.1", 60.0, "2026-01-04T00:00:00Z"),
        ];
        let records: Vec<&Record> = records.iter().collect();
        let panels: Vec<Panel> = groups(&records).iter().flat_map(panels).collect();
        let [Panel { content: Content::Lines(lines), .. }] = panels.as_slice() else { panic!("{panels:?}") };
        assert_eq!(lines.x.names, ["0.9.1", "0.9.1 (mine)", "0.10.2", "0.11.0+ab12.modified"]);
        let speeds: Vec<f64> = lines.series[0].strands[0].iter().map(|point| point.y).collect();
        assert_eq!(speeds, [70.0, 60.0, 90.0, 100.0]);
    }
}
