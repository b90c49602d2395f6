//! The charts of a study. Those of an A/B study are here, those of a sweep in `sweep`.

use charts::{Colour, Dots, DotsGroup, DotsRow, Figure, Forest, ForestGroup, GREY, INK, Pair, Panel};
use judge::Metric;
use judge::report::State;
use judge::report::verdicts::Verdict;
use judge::study::report::varied;
use judge::study::{Cell, Outcome, Side, StudyReport, ab, cell};
use plan::{Axis, StudyView};

use super::{better, colours, crossed, sweep};
use crate::study::summary;
use crate::words;

/// The models by name, and as they were requested.
fn models(report: &StudyReport) -> Vec<(String, String)> {
    let asked = report.planned.iter().filter_map(|settings| settings.get(&Axis::Model));
    let asked = words::distinct(asked.map(ToString::to_string));
    asked.into_iter().map(|model| (words::without_directories(&model), model)).collect()
}

pub(crate) fn title(report: &StudyReport) -> String {
    let names: Vec<String> = models(report).into_iter().map(|(name, _)| name).collect();
    if names.is_empty() { report.study.clone() } else { format!("{} on {}", report.study, names.join(", ")) }
}

/// The heading of the summary, without local directories.
pub(crate) fn subtitle(report: &StudyReport) -> String {
    let heading = summary(report).heading;
    models(report).iter().fold(heading, |heading, (name, asked)| heading.replace(asked, name))
}

/// Every panel, with a unique id.
pub(crate) fn panels(report: &StudyReport) -> Vec<(String, Panel)> {
    match report.view {
        StudyView::Crossed => crossed::panels(report),
        _ if report.outcomes.is_empty() => sweep::panels(report),
        _ => ab(report),
    }
}

/// All panels in one picture for sharing.
pub(crate) fn comparison(report: &StudyReport) -> Option<Figure> {
    let panels: Vec<Panel> = panels(report).into_iter().map(|(_, panel)| panel).take(4).collect();
    (!panels.is_empty()).then(|| Figure {
        title: title(report),
        answer: summary(report).answer,
        subtitle: subtitle(report),
        columns: if panels.len() > 1 { 2 } else { 1 },
        panels,
        note: note(report),
    })
}

/// The versions of the program and its libraries, and the date.
fn note(report: &StudyReport) -> Vec<String> {
    let origins = || report.cells.iter().map(|cell| &cell.origin);
    let version = origins().map(|origin| origin.driver_version.as_str()).find(|version| !version.is_empty());
    let mut said = vec![format!("Photofinish {}", version.unwrap_or_default()).trim_end().to_owned()];
    said.push(report.started.chars().take(10).collect());
    said.extend(words::distinct(origins().flat_map(|origin| &origin.libraries).map(ToString::to_string)));
    vec![format!("Geometric means over rounds. {}.", said.join(" · "))]
}

fn ab(report: &StudyReport) -> Vec<(String, Panel)> {
    let sides = |metric: Metric, value: fn(&Side) -> Option<f64>| {
        (metric.name().to_owned(), sides(report, metric, value))
    };
    let panels = [
        sides(Metric::Throughput, |side| side.throughput),
        sides(Metric::Total, |side| side.total_ms),
        sides(Metric::PeakMemory, |side| side.peak_memory),
    ];
    let is_known =
        |dots: &Dots| dots.groups.iter().flat_map(|group| &group.rows).any(|row| row.median.is_some());
    let drawn = panels.into_iter().filter(|(_, dots)| is_known(dots));
    let drawn = drawn.map(|(id, dots)| (id, Panel::Dots(dots)));
    [("speedup".to_owned(), Panel::Forest(speedups(report)))].into_iter().chain(drawn).collect()
}

fn framework(outcome: &Outcome) -> String {
    let named = outcome.settings.get(&Axis::Framework).map(ToString::to_string);
    named.or_else(|| Some(outcome.a.as_ref()?.contender.clone())).unwrap_or_default()
}

fn frameworks(report: &StudyReport) -> Vec<String> {
    words::distinct(report.outcomes.iter().map(framework))
}

/// The struck row of a cell, if there is one: nothing in the cell is compared then.
fn struck(cell: &Cell) -> Option<String> {
    let row = cell.rows.iter().find(|row| row.state == State::Struck)?;
    Some(crate::words::titled(&row.framework, row.state, &row.reasons))
}

/// Every speed-up on a logarithmic axis around "no change".
fn speedups(report: &StudyReport) -> Forest {
    let colours = colours(&frameworks(report));
    let axes: Vec<Axis> =
        varied(&report.planned).into_iter().filter(|axis| *axis != Axis::Framework).collect();
    let mut groups: Vec<ForestGroup> = Vec::new();
    // Outcomes have the order of the cells.
    for (outcome, cell) in report.outcomes.iter().zip(&report.cells) {
        let (label, name) = (cell::name(&outcome.settings, &axes), framework(outcome));
        let struck = struck(cell);
        let is_decided = outcome.interval.is_some() && struck.is_none();
        let pair = Pair {
            colour: match outcome.verdict.filter(|_| is_decided) {
                Some(Verdict::Faster | Verdict::Slower) => colours.get(&name).copied(),
                Some(Verdict::Equivalent) => Some(INK),
                _ => None,
            },
            label: name,
            ratio: outcome.speedup.filter(|_| struck.is_none()),
            interval: outcome.interval,
            note: struck.map_or("not measured".into(), |who| format!("{who}: no verdict")),
        };
        match groups.iter_mut().find(|group| group.label == label) {
            Some(group) => group.pairs.push(pair),
            None => groups.push(ForestGroup { label, pairs: vec![pair] }),
        }
    }
    let (title, hint, sides) = match ab::has_mistakes(&report.planned) {
        true => ("Times as long", "time of a request with ÷ without the mistake", ["shorter", "longer"]),
        false => ("Speed-up", "throughput with ÷ without", ["slower", "faster"]),
    };
    Forest { title: title.into(), hint: hint.into(), sides, groups, band: None }
}

/// Both sides of each outcome.
fn sides(report: &StudyReport, metric: Metric, value: fn(&Side) -> Option<f64>) -> Dots {
    let colours = colours(&frameworks(report));
    let axes = varied(&report.planned);
    let group = |(outcome, cell): (&Outcome, &Cell)| {
        let colour = colours.get(&framework(outcome)).copied().unwrap_or(GREY);
        let row = |(side, colour): (&Side, Colour)| {
            let own = cell.rows.iter().find(|row| row.framework == side.contender);
            let is_struck = own.is_some_and(|row| row.state == State::Struck);
            DotsRow {
                label: own.map_or_else(
                    || side.contender.clone(),
                    |row| crate::words::titled(&row.framework, row.state, &row.reasons),
                ),
                colour,
                median: value(side).filter(|_| !is_struck),
                points: value(side).into_iter().collect(),
                note: if is_struck { "struck: not compared" } else { "not available" }.into(),
            }
        };
        let with = outcome.a.iter().map(|side| (side, colour));
        let both = with.chain(outcome.b.iter().map(|side| (side, GREY)));
        DotsGroup { label: cell::name(&outcome.settings, &axes), rows: both.map(row).collect() }
    };
    let groups = report.outcomes.iter().zip(&report.cells).map(group);
    let groups = groups.filter(|group| !group.rows.is_empty()).collect();
    Dots { title: metric.title().into(), hint: better(metric), groups }
}
