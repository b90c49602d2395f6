//! Figures from run to run, separately for each machine and case.

use charts::{Figure, Line, LineAxis, Lines, Panel, Point};
use history::{Apart, Case, Machine, Record};
use judge::Metric;
use judge::records::case;
use judge::regression::pairing;

use super::{better, colours};
use crate::trends::{FEWEST_RUNS, Trend, trends};
use crate::words;

/// Records that may be compared with each other, or are both arms of an A/B study.
pub(crate) struct Group<'a> {
    pub(crate) machine: &'a Machine,
    case: Case,
    /// Whether they are arms of A/B studies.
    has_arms: bool,
    /// Records by time.
    pub(crate) records: Vec<&'a Record>,
}

/// A change other than in figures, from one run to the next.
pub(crate) struct Event {
    /// Index of the run in the group.
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
        let case = if has_arms { case::shared_by_arms(&record.case) } else { record.case.clone() };
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
        format!("{}{arms}", case::in_full(&self.case))
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
        let mut found: Vec<(usize, Vec<String>, String)> = Vec::new();
        for trend in trends(&self.records, &[Metric::Throughput]) {
            for point in &trend.points {
                let Some(place) = runs.iter().position(|run| run.run == point.record.run) else { continue };
                for what in &point.changed {
                    let framework = point.record.framework.clone();
                    match found.iter_mut().find(|(at, _, told)| *at == place && told == what) {
                        Some((_, frameworks, _)) => frameworks.push(framework),
                        None => found.push((place, vec![framework], what.clone())),
                    }
                }
            }
        }
        found.sort_by_key(|(place, _, _)| *place);
        let sentence = |(place, frameworks, what): (usize, Vec<String>, String)| {
            let commit = words::commit(runs[place]);
            Event { place, sentence: format!("{commit}, {}: {what}", frameworks.join(", ")) }
        };
        found.into_iter().map(sentence).collect()
    }

    /// A line for each framework, over the runs in their order.
    pub(crate) fn lines(&self, title: &str, hint: &str, metric: Metric) -> Lines {
        let runs = self.runs();
        let place = |record: &Record| runs.iter().position(|run| run.run == record.run);
        let names = words::distinct(self.records.iter().map(|record| record.framework.clone()));
        let colours = colours(&names);
        let line = |trend: &Trend| {
            let points = trend.points.iter().filter_map(|point| {
                let x = place(point.record)? as f64;
                Some(Point { x, y: point.figure.typical, interval: point.figure.interval })
            });
            let name = &trend.last().framework;
            Line { label: name.clone(), colour: colours[name], points: points.collect() }
        };
        let drawn = self.drawn(metric);
        let figures = || drawn.iter().flat_map(|trend| &trend.points).map(|point| point.figure.typical);
        let mut marks: Vec<(f64, String)> = Vec::new();
        for (index, event) in self.events().into_iter().enumerate() {
            let (place, number) = (event.place as f64, (index + 1).to_string());
            match marks.last_mut().filter(|(at, _)| *at == place) {
                Some((_, numbers)) => *numbers += &format!(", {number}"),
                None => marks.push((place, number)),
            }
        }
        Lines {
            title: title.to_owned(),
            hint: hint.to_owned(),
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
        }
    }
}

/// Throughput from run to run, for the cases with the most runs.
pub(crate) fn picture(groups: &[Group<'_>]) -> Figure {
    let metric = Metric::Throughput;
    let drawn: Vec<&Group<'_>> = groups.iter().filter(|group| group.is_drawn(metric)).collect();
    let panel = |group: &&Group<'_>| {
        let hint = format!("{} · {} {}", metric.unit(), group.machine.host, group.machine.cpu);
        Panel::Lines(group.lines(&group.title(), &hint, metric))
    };
    let mut panels: Vec<Panel> = drawn.iter().take(PANELS).map(panel).collect();
    let left = groups.len() - panels.len();
    if panels.is_empty() {
        let title = format!("No framework has {FEWEST_RUNS} runs of one case yet: there is no trend to draw");
        panels.push(Panel::Lines(Lines { title, ..Lines::default() }));
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

#[cfg(test)]
mod tests {
    use judge::regression::testing::record;

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
}
