//! The page of a study.

use charts::{Figure, Panel};
use judge::study::report::varied;
use judge::study::{Cell, StudyReport, cell};
use judge::verdicts::Verdict;
use maud::{Markup, html};

use super::html::{self, Chart};
use crate::pictures::study::{panels, title};
use crate::study;

pub(super) fn html(report: &StudyReport) -> Result<String, String> {
    let title = title(report);
    let json = serde_json::to_string(report).expect("a report has string keys and no failing serialiser");
    let table = if report.outcomes.is_empty() { "Figures" } else { "With and without" };
    let body = html! {
        (html::header(&title, &report.summary.heading, &report.started, &answers(report)))
        (html::section(table, &html! { (study::grid(report, true)) }))
        (html::section("Charts", &html::charts(&charts(report))?))
        @if let Some(curve) = study::curve(report) { (html::section("Iterations", &html! { (curve) })) }
        (html::section("Findings", &html! {
            (html::list(study::findings(report)))
            (html::paragraph(&report.analysis))
        }))
        (html::section("Cells", &cells(report)))
        (html::section("To repeat it", &html::command(&report.command)))
        (html::section("Raw data", &html::data(&json)))
    };
    Ok(html::document(&title, &body))
}

fn answers(report: &StudyReport) -> Vec<String> {
    if report.cells.len() < report.planned.len() {
        return vec![format!("{} of {} cells are done.", report.cells.len(), report.planned.len())];
    }
    if report.outcomes.is_empty() {
        return Vec::new();
    }
    let axes = varied(&report.planned);
    let clear = report.outcomes.iter().filter_map(|outcome| {
        let is_clear =
            |verdict: &Verdict| matches!(verdict, Verdict::Faster | Verdict::Slower | Verdict::Equivalent);
        let verdict = outcome.verdict.filter(is_clear)?;
        let (a, b) = (&outcome.a.as_ref()?.contender, &outcome.b.as_ref()?.contender);
        let place = cell::name(&outcome.settings, &axes);
        let place = if place.is_empty() { place } else { format!("{place}: ") };
        Some(match (verdict, outcome.speedup) {
            (Verdict::Equivalent, _) => format!("{place}{a} and {b} are equivalent"),
            (_, Some(speedup)) => format!("{place}{a} decodes {speedup:.2} times as fast as {b}"),
            (verdict, None) => format!("{place}{a} is {} than {b}", verdict.words()),
        })
    });
    let clear: Vec<String> = clear.collect();
    if clear.is_empty() {
        return vec!["Inconclusive: too little evidence for a verdict in any cell.".into()];
    }
    clear
}

fn charts(report: &StudyReport) -> Vec<Chart> {
    let chart = |(id, panel): (String, Panel)| Chart {
        id,
        title: panel_title(&panel).to_owned(),
        description: "Medians over processes, for each framework; the table above has the figures",
        height: height(&panel),
        figure: Figure::single(panel),
        table: None,
    };
    panels(report).into_iter().map(chart).collect()
}

fn height(panel: &Panel) -> u32 {
    match panel {
        Panel::Bars(bars) => {
            let count: usize = bars.groups.iter().map(|group| group.bars.len()).sum();
            let headings = bars.groups.iter().filter(|group| !group.label.is_empty()).count() as u32;
            html::bars_height(count) + 20 * headings
        }
        Panel::Stack(stack) => 120 + 42 * stack.rows.len() as u32,
        Panel::Heatmap(heatmap) => 100 + 40 * heatmap.values.len() as u32,
        _ => 300,
    }
}

fn panel_title(panel: &Panel) -> &str {
    match panel {
        Panel::Bars(bars) => &bars.title,
        Panel::Lines(lines) => &lines.title,
        Panel::Spread(spread) => &spread.title,
        Panel::Ecdf(ecdf) => &ecdf.title,
        Panel::Stack(stack) => &stack.title,
        Panel::Heatmap(heatmap) => &heatmap.title,
    }
}

fn cells(report: &StudyReport) -> Markup {
    let axes = varied(&report.planned);
    // The directory of a cell is in that of its study.
    let directory = |cell: &Cell| Some(cell.results.as_deref()?.rsplit(['/', '\\']).next()?.to_owned());
    let items = html! {
        @for cell in &report.cells {
            li {
                (cell::name(&cell.settings, &axes)) ": "
                @if let Some(reason) = &cell.refused { "not run: " (reason) }
                @else if let Some(name) = directory(cell) { a href={ (name) "/report.html" } { (name) } }
            }
        }
    };
    html! {
        @if !report.cells.is_empty() {
            (html::details("Each is a whole comparison with a page of its own", &html! { ul { (items) } }))
        }
    }
}
