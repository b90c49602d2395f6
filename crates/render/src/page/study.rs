//! The page of a study.

use std::collections::BTreeSet;

use charts::{Bar, Bars, Colour, Figure, Group, Panel, number};
use serde_json::Value;

use super::facts::data;
use super::markup::{self, Cell as Shown, Chart, Table};
use super::run::bars_height;
use super::view::{Cell, CellRow, Outcome, Settings, Study};
use super::{pictures, sweep};
use crate::failure::Result;

pub(super) fn html(study: &Study, report: &str) -> Result<String> {
    let title = title(study);
    let started = study.started.split('.').next().unwrap_or_default().replace('T', " ");
    let heading =
        if study.summary.heading.is_empty() { title.clone() } else { study.summary.heading.clone() };
    let mut body = format!(
        "<header>\n<h1>{}</h1>\n<p class=\"muted\">{}<br />{} UTC</p>\n",
        markup::text(&title),
        markup::text(&heading),
        markup::text(started.trim_end_matches('Z'))
    );
    for answer in answers(study) {
        body += &format!("<p class=\"answer\">{}</p>\n", markup::text(&answer));
    }
    body += "</header>\n";
    if study.outcomes.is_empty() {
        body += &markup::section("Figures", &sweep::table(study).html());
        body += &markup::section("Charts", &markup::charts(&sweep::charts(study))?);
    } else {
        body += &markup::section("With and without", &outcomes(study).html());
        body += &markup::section("Charts", &markup::charts(&ab_charts(study))?);
    }
    let analysis = if study.analysis.is_empty() { String::new() } else { markup::paragraph(&study.analysis) };
    body += &markup::section("Findings", &(markup::list(&findings(study)) + &analysis));
    body += &markup::section("Cells", &cells(study));
    body += &markup::section("To repeat it", &markup::command(&study.command));
    body += &markup::section("Raw data", &data(report));
    Ok(markup::document(&title, &body))
}

fn title(study: &Study) -> String {
    let names = study.planned.iter().filter_map(|settings| settings.get("model")).map(setting);
    let mut models: Vec<String> = names.collect();
    models.dedup();
    let on = if models.is_empty() { String::new() } else { format!(" on {}", models.join(", ")) };
    format!("{}{on}", study.study)
}

pub(super) fn setting(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Axes on which cells differ.
pub(super) fn varied(study: &Study) -> Vec<String> {
    let Some(first) = study.planned.first() else { return Vec::new() };
    let varies =
        |axis: &&String| study.planned.iter().any(|settings| settings.get(*axis) != first.get(*axis));
    first.keys().filter(varies).cloned().collect()
}

/// "batch 4, prompt tokens 128".
pub(super) fn place(settings: &Settings, axes: &[String]) -> String {
    let of = |axis: &String| {
        let value = settings.get(axis)?;
        Some(if value.is_string() {
            setting(value)
        } else {
            format!("{} {}", axis.replace('_', " "), setting(value))
        })
    };
    axes.iter().filter_map(of).collect::<Vec<_>>().join(", ")
}

fn answers(study: &Study) -> Vec<String> {
    if study.cells.len() < study.planned.len() {
        return vec![format!("{} of {} cells are done.", study.cells.len(), study.planned.len())];
    }
    if study.outcomes.is_empty() {
        return Vec::new();
    }
    let axes = varied(study);
    let clear = study.outcomes.iter().filter_map(|outcome| {
        let verdict = outcome
            .verdict
            .as_deref()
            .filter(|verdict| ["faster", "slower", "equivalent"].contains(verdict))?;
        let (a, b) = (outcome.a.as_ref()?, outcome.b.as_ref()?);
        let place = place(&outcome.settings, &axes);
        let place = if place.is_empty() { place } else { format!("{place}: ") };
        Some(match (verdict, outcome.speedup) {
            ("equivalent", _) => format!("{place}{} and {} are equivalent", a.contender, b.contender),
            (_, Some(speedup)) => {
                format!("{place}{} decodes {speedup:.2} times as fast as {}", a.contender, b.contender)
            }
            _ => format!("{place}{} is {verdict} than {}", a.contender, b.contender),
        })
    });
    let clear: Vec<String> = clear.collect();
    if clear.is_empty() {
        return vec!["Inconclusive: too little evidence for a verdict in any cell.".into()];
    }
    clear
}

fn findings(study: &Study) -> Vec<String> {
    let all = study.summary.verdicts.iter().chain(&study.summary.details).cloned();
    if study.summary.verdicts.is_empty() && study.summary.details.is_empty() {
        let axes = varied(study);
        return study.cells.iter().flat_map(|cell| reasons(cell, &axes)).collect();
    }
    all.collect()
}

/// Why a cell, or a framework in it, has no figures.
fn reasons(cell: &Cell, axes: &[String]) -> Vec<String> {
    let name = place(&cell.settings, axes);
    let refused = cell.refused.iter().map(|reason| format!("{name}: not run: {reason}"));
    let rows = cell.rows.iter().filter(|row| row.state != "measured");
    let rows =
        rows.flat_map(|row| row.reasons.iter().map(|reason| format!("{name}: {}: {reason}", row.framework)));
    refused.chain(rows).collect()
}

fn outcomes(study: &Study) -> Table {
    let axes = varied(study);
    let row = |outcome: &Outcome| {
        let known = |value: Option<f64>| value.map_or("–".to_owned(), number);
        let side = |side: &Option<super::view::Side>| match side {
            Some(side) => Shown { main: known(side.throughput), small: side.contender.clone() },
            None => "–".into(),
        };
        let interval =
            outcome.interval.map_or(String::new(), |(low, high)| format!("{low:.2}× – {high:.2}×"));
        vec![
            place(&outcome.settings, &axes).into(),
            side(&outcome.a),
            side(&outcome.b),
            Shown {
                main: outcome.speedup.map_or("–".into(), |ratio| format!("{ratio:.2}×")),
                small: interval,
            },
            outcome.verdict.clone().unwrap_or_else(|| "–".into()).replace('_', " ").into(),
            outcome.memory_change.map_or("–".to_owned(), |change| format!("{:+.1} %", 100.0 * change)).into(),
            outcome.reason.clone().unwrap_or_default().into(),
        ]
    };
    Table {
        caption:
            "Decoded tokens per second with and without, and how many times as fast, with its 95 % interval"
                .into(),
        columns: ["Where", "With (tok/s)", "Without (tok/s)", "Speed-up", "Verdict", "Memory", "Note"]
            .map(str::to_owned)
            .to_vec(),
        rows: study.outcomes.iter().map(row).collect(),
        figures: true,
    }
}

fn framework(outcome: &Outcome) -> String {
    let named = outcome.settings.get("framework").map(setting);
    named.or_else(|| Some(outcome.a.as_ref()?.contender.clone())).unwrap_or_default()
}

/// Speed-ups of an A/B study.
fn speedups(study: &Study) -> Bars {
    let colours = pictures::colours(&frameworks(study.outcomes.iter().map(framework)));
    let axes: Vec<String> = varied(study).into_iter().filter(|axis| axis != "framework").collect();
    let mut groups: Vec<Group> = Vec::new();
    for outcome in &study.outcomes {
        let (label, name) = (place(&outcome.settings, &axes), framework(outcome));
        let bar = Bar {
            colour: colours.get(&name).copied().unwrap_or(Colour(0x8C, 0x8C, 0x8C)),
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
fn sides(study: &Study, title: &str, hint: &str, value: fn(&super::view::Side) -> Option<f64>) -> Bars {
    let colours = pictures::colours(&frameworks(study.outcomes.iter().map(framework)));
    let axes = varied(study);
    let group = |outcome: &Outcome| {
        let colour = colours.get(&framework(outcome)).copied().unwrap_or(Colour(0x8C, 0x8C, 0x8C));
        let without = Colour(0xA8, 0xAD, 0xB4);
        let bar = |(side, colour): (&super::view::Side, Colour)| Bar {
            label: side.contender.clone(),
            colour,
            value: value(side),
            interval: None,
            points: Vec::new(),
            note: "not available".into(),
        };
        let both =
            outcome.a.iter().map(|side| (side, colour)).chain(outcome.b.iter().map(|side| (side, without)));
        Group { label: place(&outcome.settings, &axes), bars: both.map(bar).collect() }
    };
    let groups = study.outcomes.iter().map(group).filter(|group| !group.bars.is_empty()).collect();
    Bars { title: title.into(), hint: hint.into(), groups, ..Bars::default() }
}

fn ab_panels(study: &Study) -> Vec<Bars> {
    let panels = vec![
        speedups(study),
        sides(study, "Tokens per second", "higher is better", |side| side.throughput),
        sides(study, "Total time", "ms per request, lower is better", |side| side.total_ms),
        sides(study, "Peak memory", "GB, lower is better", |side| side.peak_memory),
    ];
    panels.into_iter().filter(|bars| !bars.groups.is_empty()).collect()
}

fn ab_charts(study: &Study) -> Vec<Chart> {
    const NAMES: [(&str, &str); 4] = [
        ("speedup", "Speed-up"),
        ("throughput", "Tokens per second"),
        ("total", "Total time"),
        ("memory", "Peak memory"),
    ];
    let chart = |(bars, (id, title)): (Bars, (&'static str, &'static str))| {
        let count: usize = bars.groups.iter().map(|group| group.bars.len()).sum();
        let headings = bars.groups.iter().filter(|group| !group.label.is_empty()).count() as u32;
        Chart {
            id: id.into(),
            title: title.into(),
            description: "Bars for each framework with and without; the table above has the figures",
            height: bars_height(count) + 20 * headings,
            figure: Figure::single(Panel::Bars(bars)),
            table: None,
        }
    };
    ab_panels(study).into_iter().zip(NAMES).map(chart).collect()
}

/// As one picture to be pasted.
pub(super) fn comparison(study: &Study) -> Option<Figure> {
    let panels: Vec<Panel> = match study.outcomes.is_empty() {
        true => sweep::panels(study).into_iter().map(|(_, panel)| panel).take(4).collect(),
        false => ab_panels(study).into_iter().map(Panel::Bars).collect(),
    };
    (!panels.is_empty()).then(|| Figure {
        title: title(study),
        subtitle: study.summary.heading.clone(),
        columns: if panels.len() > 1 { 2 } else { 1 },
        panels,
        note: "Medians of the processes.".into(),
    })
}

fn cells(study: &Study) -> String {
    let axes = varied(study);
    let item = |cell: &Cell| {
        let state = match &cell.refused {
            Some(reason) => format!("not run: {}", markup::text(reason)),
            // A cell's directory lies in that of its study.
            None => match cell.results.as_deref().and_then(|path| path.rsplit(['/', '\\']).next()) {
                Some(name) => format!("<a href=\"{0}/report.html\">{0}</a>", markup::text(name)),
                None => String::new(),
            },
        };
        format!("<li>{}: {state}</li>\n", markup::text(&place(&cell.settings, &axes)))
    };
    let items: String = study.cells.iter().map(item).collect();
    if items.is_empty() { items } else { links(&items) }
}

fn links(items: &str) -> String {
    format!(
        "<details>\n<summary>Each is a whole comparison with a page of its own</summary>\n<ul>\n{items}</ul>\n</details>\n"
    )
}

/// Names, each once, in order.
pub(super) fn frameworks(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(name.clone())).collect()
}

pub(super) fn median(row: &CellRow, metric: &str) -> Option<f64> {
    row.metrics.get(metric).map(|figure| figure.median)
}
