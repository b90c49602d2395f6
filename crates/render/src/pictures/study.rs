//! The charts of a study. Those of an A/B study are here, those of a sweep in `sweep`.

use charts::{Bar, Bars, Colour, Figure, Group, Panel};
use judge::Metric;
use judge::study::report::varied;
use judge::study::{Outcome, Side, StudyReport, cell};
use plan::Axis;

use super::{GREY, better, colours, sweep};
use crate::words;

/// The colour of the side with the optimisation off.
const WITHOUT: Colour = Colour(0xA8, 0xAD, 0xB4);

pub(crate) fn title(report: &StudyReport) -> String {
    let names = report.planned.iter().filter_map(|settings| settings.get(&Axis::Model));
    let mut models: Vec<String> = names.map(ToString::to_string).collect();
    models.dedup();
    let on = if models.is_empty() { String::new() } else { format!(" on {}", models.join(", ")) };
    format!("{}{on}", report.study)
}

/// Every panel, with an id of its own.
pub(crate) fn panels(report: &StudyReport) -> Vec<(String, Panel)> {
    if report.outcomes.is_empty() { sweep::panels(report) } else { ab(report) }
}

/// All panels in one picture for sharing.
pub(crate) fn comparison(report: &StudyReport) -> Option<Figure> {
    let panels: Vec<Panel> = panels(report).into_iter().map(|(_, panel)| panel).take(4).collect();
    (!panels.is_empty()).then(|| Figure {
        title: title(report),
        subtitle: report.summary.heading.clone(),
        columns: if panels.len() > 1 { 2 } else { 1 },
        panels,
        note: "Medians of the processes.".into(),
    })
}

fn ab(report: &StudyReport) -> Vec<(String, Panel)> {
    let sides = |metric: Metric, value: fn(&Side) -> Option<f64>| {
        (metric.name().to_owned(), sides(report, metric, value))
    };
    let panels = [
        ("speedup".to_owned(), speedups(report)),
        sides(Metric::Throughput, |side| side.throughput),
        sides(Metric::Total, |side| side.total_ms),
        sides(Metric::PeakMemory, |side| side.peak_memory),
    ];
    let drawn = panels.into_iter().filter(|(_, bars)| !bars.groups.is_empty());
    drawn.map(|(id, bars)| (id, Panel::Bars(bars))).collect()
}

fn framework(outcome: &Outcome) -> String {
    let named = outcome.settings.get(&Axis::Framework).map(ToString::to_string);
    named.or_else(|| Some(outcome.a.as_ref()?.contender.clone())).unwrap_or_default()
}

fn frameworks(report: &StudyReport) -> Vec<String> {
    words::distinct(report.outcomes.iter().map(framework))
}

fn speedups(report: &StudyReport) -> Bars {
    let colours = colours(&frameworks(report));
    let axes: Vec<Axis> =
        varied(&report.planned).into_iter().filter(|axis| *axis != Axis::Framework).collect();
    let mut groups: Vec<Group> = Vec::new();
    for outcome in &report.outcomes {
        let (label, name) = (cell::name(&outcome.settings, &axes), framework(outcome));
        let bar = Bar {
            colour: colours.get(&name).copied().unwrap_or(GREY),
            label: name,
            value: outcome.speedup,
            interval: outcome.interval,
            points: Vec::new(),
            note: "not measured".into(),
        };
        match groups.iter_mut().find(|group| group.label == label) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { label, bars: vec![bar] }),
        }
    }
    Bars {
        title: "Speed-up".into(),
        hint: "throughput with ÷ without; the line is no change".into(),
        groups,
        baseline: Some(1.0),
        suffix: "×".into(),
    }
}

/// Both sides of each outcome.
fn sides(report: &StudyReport, metric: Metric, value: fn(&Side) -> Option<f64>) -> Bars {
    let colours = colours(&frameworks(report));
    let axes = varied(&report.planned);
    let group = |outcome: &Outcome| {
        let colour = colours.get(&framework(outcome)).copied().unwrap_or(GREY);
        let bar = |(side, colour): (&Side, Colour)| Bar {
            label: side.contender.clone(),
            colour,
            value: value(side),
            interval: None,
            points: Vec::new(),
            note: "not available".into(),
        };
        let with = outcome.a.iter().map(|side| (side, colour));
        let both = with.chain(outcome.b.iter().map(|side| (side, WITHOUT)));
        Group { label: cell::name(&outcome.settings, &axes), bars: both.map(bar).collect() }
    };
    let groups = report.outcomes.iter().map(group).filter(|group| !group.bars.is_empty()).collect();
    Bars { title: metric.title().into(), hint: better(metric), groups, ..Bars::default() }
}
