//! Performance over time, separately for each machine and case.

use std::collections::BTreeSet;

use charts::{Figure, Line, LineAxis, Lines, Panel, Point};
use history::{Case, Machine, Record};
use judge::{Metric, case};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{better, colours};
use crate::words;

/// Records that may be compared with each other.
pub(crate) struct Group<'a> {
    pub(crate) machine: &'a Machine,
    case: &'a Case,
    /// Records by time.
    pub(crate) records: Vec<&'a Record>,
}

/// Number of panels in the picture: the groups with the most runs.
const PANELS: usize = 4;

/// Groups of records with the same machine, model, precision and shape of work; groups with the most runs come first.
pub(crate) fn groups<'a>(records: &[&'a Record]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for &record in records {
        let fits = |group: &&mut Group<'_>| {
            group.machine.fingerprint == record.machine.fingerprint && group.case == &record.case
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.records.push(record),
            None => {
                groups.push(Group { machine: &record.machine, case: &record.case, records: vec![record] });
            }
        }
    }
    for group in &mut groups {
        group.records.sort_by(|a, b| a.time.cmp(&b.time));
    }
    groups.sort_by_key(|group| std::cmp::Reverse((group.runs(), group.records.len())));
    groups
}

fn seconds(record: &Record) -> Option<f64> {
    Some(OffsetDateTime::parse(&record.time, &Rfc3339).ok()?.unix_timestamp() as f64)
}

impl Group<'_> {
    pub(crate) fn runs(&self) -> usize {
        self.records.iter().map(|record| &record.run).collect::<BTreeSet<_>>().len()
    }

    pub(crate) fn title(&self) -> String {
        case::in_full(self.case)
    }

    pub(crate) fn lines(&self, title: &str, hint: &str, metric: Metric) -> Lines {
        let names = words::distinct(self.records.iter().map(|record| record.framework.clone()));
        let colours = colours(&names);
        let point = |record: &Record| {
            let figure = record.metrics.get(metric.name())?;
            Some(Point { x: seconds(record)?, y: figure.median, interval: figure.interval })
        };
        let line = |name: &String| {
            let own = self.records.iter().filter(|record| record.framework == *name);
            let points = own.filter_map(|record| point(record)).collect();
            Line { label: name.clone(), colour: colours[name], points }
        };
        Lines {
            title: title.to_owned(),
            hint: hint.to_owned(),
            x: LineAxis { label: "UTC".into(), time: true, ..LineAxis::default() },
            y: LineAxis { from_zero: true, ..LineAxis::default() },
            series: names.iter().map(line).filter(|line| !line.points.is_empty()).collect(),
            shaded: None,
        }
    }
}

/// Throughput over time, for the cases with the most runs.
pub(crate) fn picture(groups: &[Group<'_>]) -> Figure {
    let metric = Metric::Throughput;
    let repeated = groups.iter().filter(|group| group.runs() > 1).count();
    let shown: Vec<&Group<'_>> = groups.iter().take(repeated.clamp(1, PANELS)).collect();
    let panel = |group: &&Group<'_>| {
        let hint = format!("{} · {} {}", metric.unit(), group.machine.host, group.machine.cpu);
        Panel::Lines(group.lines(&group.title(), &hint, metric))
    };
    let left = groups.len() - shown.len();
    let more = if left > 0 { format!(" {left} more cases are in history.html.") } else { String::new() };
    Figure {
        title: "Performance over time".into(),
        subtitle: format!("{}, {}", metric.title(), better(metric)),
        panels: shown.iter().map(panel).collect(),
        columns: if shown.len() > 1 { 2 } else { 1 },
        note: format!(
            "Point: median of a run's processes; whisker: its 95 % interval, where there are rounds enough.{more}"
        ),
        ..Figure::default()
    }
}
