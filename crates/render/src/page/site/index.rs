//! The list of all results, with filters. Rows are in the order of their names: no order is a ranking.

use judge::Metric;
use maud::{Markup, PreEscaped, html};
use serde_json::{Value, json};

use super::{DATA, Page, Result, data, kinds, machine, memory, processor, system, versions};
use crate::comparison;
use crate::page::collection::STYLE as FILTERS;
use crate::page::html as pieces;
use crate::words;

const TITLE: &str = "Which inference framework is faster, and where";
const STYLE: &str = include_str!("style.css");
/// Hides filtered rows. The script also shows the form, so that a page without scripts has no idle controls.
const SCRIPT: &str = include_str!("filter.js");

/// A filter of rows: the name in the data, the label, and the values of a result.
type Filter = (&'static str, &'static str, fn(&Row<'_>) -> Vec<String>);

const OF: [Filter; 9] = [
    ("framework", "Framework", |row| row.page.pair.map(str::to_owned).to_vec()),
    ("model", "Model", |row| vec![row.result.report.model.name.clone()]),
    ("precision", "Precision", |row| vec![row.result.report.plan.precision.name().to_owned()]),
    ("processor", "Processor", |row| vec![processor(&row.result.report)]),
    ("memory", "Memory", |row| vec![memory(&row.result.report)]),
    ("system", "System", |row| vec![system(&row.result.report)]),
    ("version", "Version", |row| versions(&row.result.report)),
    ("code", "Tuned or stock", |row| kinds(&row.result.report)),
    ("rules", "Rules", |row| vec![rules(row.result).to_owned()]),
];

struct Row<'a> {
    page: &'a Page<'a>,
    result: &'a Result<'a>,
}

fn rules(result: &Result<'_>) -> &'static str {
    if result.published.retired.is_some() { "retired" } else { "today's" }
}

pub(super) fn html(pages: &[Page<'_>], base: Option<&str>) -> String {
    let rows: Vec<Row> =
        pages.iter().flat_map(|page| page.results.iter().map(move |result| Row { page, result })).collect();
    let machines = words::distinct(rows.iter().map(|row| machine(&row.result.report))).len();
    let summary = format!(
        "{} of pairs of frameworks on {}. Every figure is made from samples that are here, too.",
        counted(rows.len(), "result"),
        counted(machines, "machine")
    );
    let head = html! {
        meta name="description" content=(summary);
        meta property="og:type" content="website";
        meta property="og:title" content=(TITLE);
        meta property="og:description" content=(summary);
        @if let Some(base) = base { link rel="canonical" href={ (base) "/" }; }
    };
    let body = html! {
        style { (PreEscaped(FILTERS)) (PreEscaped(STYLE)) }
        header {
            h1 { (TITLE) }
            p { (summary) " Choose a machine like yours: an answer is of one machine, one model and one precision, and nothing is \
                 ranked across machines." }
            p {
                "Tuned is this project's own code on a framework, stock is the framework's own. For programs: "
                a href=(DATA) { (DATA) } ", " a rel="license" href=(data::LICENCE_TERMS) { "CC BY 4.0" } ", "
                a href="CITATION.cff" { "how to cite" } "."
            }
        }
        (filters(&rows))
        section {
            h2 { "Results" }
            p id="shown" class="muted" role="status" { (counted(rows.len(), "result")) }
            (table(&rows))
        }
        script { (PreEscaped(SCRIPT)) }
    };
    pieces::document_with(TITLE, &head, &body)
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn filters(rows: &[Row<'_>]) -> Markup {
    let options = |of: fn(&Row<'_>) -> Vec<String>| {
        let mut values: Vec<String> = rows.iter().flat_map(of).collect();
        values.sort();
        values.dedup();
        values
    };
    html! {
        form id="filters" class="filters" hidden {
            @for (name, title, of) in OF {
                label {
                    (title)
                    select name=(name) autocomplete="off" {
                        option value="" { "all" }
                        @for option in options(of) { option value=(option) { (option) } }
                    }
                }
            }
        }
    }
}

fn table(rows: &[Row<'_>]) -> Markup {
    html! {
        div class="scroll" tabindex="0" role="region" aria-label="Results by pair, model, precision and machine" {
            table class="results" {
                thead {
                    tr {
                        @for title in ["Pair", "Answer", "Model", "Machine", "Versions", "Measured"] { th scope="col" { (title) } }
                    }
                }
                tbody { @for row in rows { (line(row)) } }
            }
        }
    }
}

fn line(row: &Row<'_>) -> Markup {
    let Row { page, result } = row;
    let report = &result.report;
    let fields: serde_json::Map<String, Value> =
        OF.iter().map(|(name, _, of)| ((*name).to_owned(), json!(of(row)))).collect();
    let link = format!("{}/index.html#{}", page.address, result.published.name);
    let cell = |title: &str, main: Markup, small: String| {
        html! { td data-label=(title) { span { (main) @if !small.is_empty() { small { (small) } } } } }
    };
    let code = kinds(report).join(" and ");
    let origin = format!("{}, {} rules", result.published.tier.name(), rules(result));
    html! {
        tr data-fields=(Value::Object(fields).to_string()) {
            th scope="row" { a href=(link) { (page.pair[0]) " or " (page.pair[1]) } small { (code) } }
            (cell("Answer", html! { (answer(result)) }, String::new()))
            (cell("Model", html! { (report.model.name) }, report.plan.precision.name().to_owned()))
            (cell("Machine", html! { (machine(report)) }, String::new()))
            (cell("Versions", html! { (versions(report).join(", ")) }, String::new()))
            (cell("Measured", html! { (words::day(&report.environment.started)) }, origin))
        }
    }
}

/// The verdict on the deciding metric, according to the run.
fn answer(result: &Result<'_>) -> String {
    let report = &result.report;
    let metric = Metric::deciding(report.plan.work.kind());
    let found = report.comparisons.iter().find(|found| found.metric == metric);
    found
        .map(|found| comparison::verdict(report, found))
        .unwrap_or_else(|| "no verdict: the page says why".to_owned())
}
