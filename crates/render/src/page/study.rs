//! The page of a study: the answer, warnings, the table with its rows grouped by place, the pictures.

use comparison::judge::report::State;
use comparison::judge::study::{Cell, StudyReport};
use comparison::judge::study::{axes, varied};
use comparison::plan::StudyView;
use maud::{Markup, html};

use super::{Chart, Look, Shared, Source, looking};
use crate::charts::Panel;
use crate::export::{Document, Exporter, Markdown};
use crate::page;
use crate::pictures::sweep::{study_panels, subtitle, title};
use crate::study;
use crate::words::{Line, Summary};

/// The page; `has_picture` is whether there are pictures next to it, and `has_page` whether a cell's
/// directory of this name has a page.
pub(super) fn html(
    report: &StudyReport,
    has_picture: bool,
    has_page: &dyn Fn(&str) -> bool,
) -> Result<String, String> {
    let title = title(report);
    let json =
        serde_json::to_string(&report.json()).expect("a report has string keys and no failing serialiser");
    let table = match report.view {
        StudyView::Sweep(_) => "Figures",
        StudyView::Ab(_) => "With and without",
    };
    let summary = study::summary(report);
    let (warnings, findings) = split(&summary);
    let charts = page::charts(&charts(report))?;
    let is_ab = !matches!(report.view, StudyView::Sweep(_));
    let pictures = if has_picture { &["comparison.png", "comparison.svg"][..] } else { &[] };
    let body = html! {
        (page::header(&title, &subtitle(report), &report.started, &summary.answer))
        // The subject of an A/B study is its speed-ups: their picture precedes the table.
        @if is_ab { (page::section("The gain", &charts)) }
        (page::section(table, &html! {
            (figures(report))
            (page::copied("Copy as Markdown", &Markdown::Short.export(report)))
        }))
        (page::warnings(&warnings))
        @if let Some(table) = study::published(report) {
            (page::section(study::PUBLISHED, &html! { (table) }))
        }
        @if !is_ab { (page::section("Charts", &charts)) }
        (page::section("The evidence", &html! {
            (page::paragraph(&report.analysis))
            (page::details("Findings", &page::list(&findings)))
            @if let Some(curve) = study::curve(report) {
                (page::details("Iterations", &html! { (curve) }))
            }
            (cells(report, has_page))
        }))
        (page::section("To repeat it", &repetition(report)))
        (page::section("Raw data", &page::data(&json, pictures)))
    };
    let shared =
        Shared { title: &title, description: &summary.answer.join(" "), image: pictures.first().copied() };
    Ok(page::document(&title, &shared, &body))
}

/// The command, with the commit and the seed where all cells have one.
fn repetition(report: &StudyReport) -> Markup {
    let measured = || report.cells.iter().filter(|cell| cell.results.is_some()).map(|cell| &cell.origin);
    let first = measured().next();
    let commit = first.and_then(|origin| origin.git_commit.as_deref());
    let commit = commit.filter(|_| measured().all(|origin| origin.git_commit.as_deref() == commit));
    let seed = first.and_then(|origin| origin.seed);
    let seed = seed.filter(|_| measured().all(|origin| origin.seed == seed));
    let modified = measured().any(|origin| origin.git_modified == Some(true));
    html! {
        (page::to_repeat(&report.command, Source { commit, modified, seed }, page::REPOSITORY))
        @if seed.is_none() && !report.command.is_empty() {
            (page::paragraph("Each cell has a seed of its own: its page names it."))
        }
    }
}

/// Warnings and everything that qualifies the figures, and the other sentences.
fn split(summary: &Summary) -> (Vec<String>, Vec<String>) {
    let (warnings, findings): (Vec<&Line>, Vec<&Line>) =
        summary.details.iter().partition(|line| line.qualifies);
    let plain = |line: &&Line| line.unlabelled().to_owned();
    (warnings.iter().map(plain).collect(), findings.iter().map(|line| line.text.clone()).collect())
}

/// The main table; the rows of one place are grouped below its name.
fn figures(report: &StudyReport) -> Markup {
    let table = study::grid(report, true);
    if !matches!(report.view, StudyView::Sweep(_)) {
        return html! { (table) };
    }
    // Lines of the table: a row for each contender of each cell, and one for a cell that was refused.
    let lines = report.cells.iter().flat_map(|cell| {
        let refused = cell.refused.iter().map(|_| false);
        cell.rows.iter().map(|row| row.state == State::Struck).chain(refused)
    });
    let struck = lines.enumerate().filter(|(_, is_struck)| *is_struck).map(|(line, _)| line).collect();
    looking(&table, &Look { struck_rows: struck, grouped: axes(report).len(), ..Look::default() })
}

fn charts(report: &StudyReport) -> Vec<Chart> {
    let chart = |(id, panel): (String, Panel)| {
        let title = panel.title.clone();
        let description = "Geometric means over rounds, for each framework; the table has the figures";
        Chart { id, title, description, panel, table: None }
    };
    study_panels(report).into_iter().map(chart).collect()
}

fn cells(report: &StudyReport, has_page: &dyn Fn(&str) -> bool) -> Markup {
    let axes = varied(&report.planned);
    // The directory of a cell is in that of its study.
    let directory = |cell: &Cell| Some(cell.results.as_deref()?.rsplit(['/', '\\']).next()?.to_owned());
    let items = html! {
        @for cell in &report.cells {
            li {
                (comparison::judge::study::name(&cell.settings, &axes)) ": "
                @if let Some(reason) = &cell.refused { "not run: " (reason) }
                @else if let Some(name) = directory(cell) {
                    @if has_page(&name) { a href={ (name) "/report.html" } { (name) } } @else { (name) }
                }
            }
        }
    };
    html! {
        @if !report.cells.is_empty() {
            (page::details("Each cell is a whole comparison", &html! { ul { (items) } }))
        }
    }
}
