//! Figures by the version of a framework, separately for each machine and case.

use charts::{Figure, Line, LineAxis, Lines, Panel, Point};
use history::Record;
use judge::Metric;
use untrusted::Foreign;

use super::over_time::Group;
use super::{better, colours};
use crate::words;

/// The picture shows the first of these that the records have.
const SPEEDS: [Metric; 3] = [Metric::Throughput, Metric::DenoisingThroughput, Metric::EncodingThroughput];
/// Most panels in the picture.
const PANELS: usize = 4;

/// One column at several versions, the oldest version first.
struct Versions<'a> {
    /// Its name without a version.
    base: String,
    /// The newest record of each version, with the version.
    records: Vec<(String, &'a Record)>,
}

/// A picture with a panel for each column that has several versions in a case; `None` if there is none.
pub(crate) fn picture(groups: &[Group<'_>]) -> Option<Figure> {
    let panels: Vec<Panel> = groups
        .iter()
        .flat_map(|group| versions(group).into_iter().map(move |versions| (group, versions)))
        .filter_map(|(group, versions)| panel(group, &versions))
        .take(PANELS)
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
    let colours = colours(std::slice::from_ref(&versions.base));
    let line = Line { label: versions.base.clone(), colour: colours[&versions.base], points };
    Some(Panel::Lines(Lines {
        title: format!("{}: {}", versions.base, group.title()),
        hint: format!("{}, {}", metric.title(), better(metric)),
        x: LineAxis {
            label: "version".into(),
            names: versions.records.iter().map(|(version, _)| version.clone()).collect(),
            ..LineAxis::default()
        },
        y: LineAxis { shown, ..LineAxis::default() },
        series: vec![line],
        shaded: None,
    }))
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
    use judge::regression::testing::record;

    use super::*;
    use crate::pictures::over_time::groups;

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
        let [Panel::Lines(lines)] = panels.as_slice() else { panic!("{}", panels.len()) };
        assert_eq!(lines.x.names, ["0.9.1", "0.9.1 (mine)", "0.10.2", "0.11.0+ab12.modified"]);
        let speeds: Vec<f64> = lines.series[0].points.iter().map(|point| point.y).collect();
        assert_eq!(speeds, [70.0, 60.0, 90.0, 100.0]);
    }
}
