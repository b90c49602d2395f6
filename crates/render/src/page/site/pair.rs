//! The page of a pair: the answer, the picture, the table; then its origin and how to repeat it.

use judge::Report;
use judge::records::case;
use judge::records::collection::Tier;
use judge::records::records;
use maud::{Markup, html};

use super::{Page, RUNS, Result, data, machine};
use crate::comparison;
use crate::page::html as pieces;
use crate::page::repeat::{self, Source};
use crate::page::{Files, facts, run};
use crate::pictures;
use crate::pictures::PREVIEW;
use crate::pictures::run::Pictures;
use crate::words::{self, answer};

/// From a page to the root: its address has five parts.
const ROOT: &str = "../../../../../";

/// The page with its pictures and its data.
pub(super) fn files(page: &Page<'_>, base: Option<&str>) -> std::result::Result<Files, String> {
    let at = |name: &str| format!("{}/{name}", page.address);
    let mut files =
        vec![(at("index.html"), html(page, base).into_bytes()), (at("data.json"), data::page(page))];
    for result in &page.results {
        let (name, pictures) = (&result.published.name, Pictures::new(&result.report));
        let drawn = pictures::files(name, &pictures.comparison())?;
        files.extend(drawn.into_iter().map(|(name, contents)| (at(&name), contents)));
        files.push((at(&preview(name)), pictures::preview(&pictures.preview())?));
    }
    Ok(files)
}

fn html(page: &Page<'_>, base: Option<&str>) -> String {
    // An address without a result has no page.
    let [newest, ..] = page.results.as_slice() else { return String::new() };
    let report = &newest.report;
    let [a, b] = page.pair;
    let title = format!("{a} or {b}: {}, {}", report.model.name, report.plan.precision.name());
    let body = html! {
        nav aria-label="Site" { a href={ (ROOT) "index.html" } { "All results" } }
        header {
            h1 { (title) }
            p class="muted" { (machine(report)) }
            @for answer in answers(newest) { p class="answer" { (answer) } }
        }
        @for (place, result) in page.results.iter().enumerate() { (section(result, place > 0)) }
        footer {
            p {
                "Figures of this page: " a href="data.json" { "data.json" } ", "
                a rel="license" href=(data::LICENCE_TERMS) { "CC BY 4.0" } ", "
                a href={ (ROOT) "CITATION.cff" } { "how to cite" } ". They are of this machine: another may give another answer."
            }
        }
    };
    pieces::document_with(&title, &head(page, newest, &title, base), &body)
}

fn answers(result: &Result<'_>) -> Vec<String> {
    answer::sentences(&result.report)
}

/// The picture of a run in previews.
fn preview(name: &str) -> String {
    format!("{name}-preview.png")
}

/// Metadata for previews of the page.
fn head(page: &Page<'_>, newest: &Result<'_>, title: &str, base: Option<&str>) -> Markup {
    let answer = answers(newest).join(" ");
    let address = base.map(|base| format!("{base}/{}/", page.address));
    let picture = address.as_deref().unwrap_or_default().to_owned() + &preview(&newest.published.name);
    html! {
        meta name="description" content=(answer);
        meta property="og:type" content="article";
        meta property="og:title" content=(title);
        meta property="og:description" content=(answer);
        meta property="og:image" content=(picture);
        meta property="og:image:width" content=(PREVIEW.width);
        meta property="og:image:height" content=(PREVIEW.height);
        meta property="og:image:alt" content=(answer);
        meta name="twitter:card" content="summary_large_image";
        @if let Some(address) = address {
            meta property="og:url" content=(address);
            link rel="canonical" href=(address);
        }
    }
}

/// One run. The answer of the first is in the page's header.
fn section(result: &Result<'_>, with_answer: bool) -> Markup {
    let (report, published) = (&result.report, result.published);
    let environment = &report.environment;
    let case =
        records(report, None).first().map(|record| case::in_short(&case::shared_by_arms(&record.case)));
    let title = format!("{}, {}", case.unwrap_or_default(), words::day(&environment.started));
    let source = Source {
        commit: environment.git_commit.as_deref(),
        modified: environment.git_modified == Some(true),
        seed: Some(report.plan.seed),
    };
    let name = &published.name;
    let whole = format!("{ROOT}{RUNS}/{name}/");
    html! {
        section id=(name) {
            h2 { (title) }
            @if let Some(judged) = &published.retired { (retired(&published.report, judged)) }
            @if with_answer {
                @if environment.available_cores > 0 { p class="muted" { (machine(report)) } }
                @for answer in answers(result) { p class="answer" { (answer) } }
            }
            p class="picture" {
                a href={ (name) ".svg" } {
                    img src={ (name) ".png" } alt={ "Both frameworks in four measures: " (answers(result).join(" ")) } loading="lazy";
                }
            }
            (run::result(report))
            p { (origin(&published.tier)) }
            (pieces::details("Every verdict", &pieces::list(run::sentences(report))))
            (pieces::details("Warnings", &pieces::list(run::warnings(report))))
            (facts::rules(report))
            (pieces::details("Versions and environment", &html! { (facts::versions(report)) (facts::environment(report)) }))
            (pieces::details("To repeat it", &repeat::section(&environment.command, source)))
            p {
                "The whole run: " a href={ (whole) "report.html" } { "its page" } ", "
                a href={ (whole) "samples.jsonl" } { "every sample" } ", "
                a href={ (whole) "plan.json" } { "the plan" } ", "
                a href={ (whole) "report.json" } { "the report as it was submitted" } "."
            }
        }
    }
}

/// The verdicts that today's rules change.
fn retired(report: &Report, judged: &std::result::Result<Box<Report>, String>) -> Markup {
    let changed = match judged {
        Ok(judged) => comparison::changes(report, judged),
        Err(why) => vec![format!("this version cannot read the samples: {why}")],
    };
    html! {
        p class="retired" { strong { "Judged by rules that were replaced since." } " Figures and verdicts are those of that time." }
        (pieces::details("What today's rules judge otherwise", &pieces::list(&changed)))
    }
}

fn origin(tier: &Tier) -> Markup {
    html! {
        @match tier {
            Tier::Ours => { "Measured by this project." }
            Tier::Community => { "Measured by a contributor, and not repeated on another machine yet." }
            Tier::Reproduced { by } => {
                "Repeated on another machine, with intervals that overlap: "
                a href={ (ROOT) (RUNS) "/" (by) "/report.html" } { (by) } "."
            }
        }
    }
}
