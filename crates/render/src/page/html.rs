//! The pieces of a page. `maud` writes every piece and escapes all external text.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use charts::{Figure, Panel, Theme};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::table::Table;
use crate::words;

const STYLE: &str = include_str!("page.css");

/// A complete document.
pub(super) fn document(title: &str, body: &Markup) -> String {
    document_with(title, &Markup::default(), body)
}

/// A complete document with more in its head.
pub(super) fn document_with(title: &str, head: &Markup, body: &Markup) -> String {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                link rel="icon" href="data:,";
                title { (title) }
                (head)
                style { (PreEscaped(style())) }
            }
            body { main { (body) } }
        }
    };
    without_controls(&document.into_string())
}

/// The style sheet, with the colours of charts for either theme.
fn style() -> String {
    let variables = |theme: Theme| format!(":root {{ {} }}", charts::variables(theme));
    format!(
        "{STYLE}\n{}\n@media (prefers-color-scheme: dark) {{ {} }}\n",
        variables(Theme::Light),
        variables(Theme::Dark)
    )
}

/// Replaces control characters, which a document may not contain.
fn without_controls(text: &str) -> String {
    let is_allowed = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().map(|c| if is_allowed(c) { c } else { '\u{FFFD}' }).collect()
}

/// The title, the description and time of the measurement, and its answers.
pub(super) fn header(title: &str, subtitle: &str, started: &str, answers: &[String]) -> Markup {
    html! {
        header {
            h1 { (title) }
            p class="muted" { (subtitle) br; (words::second(started)) " UTC" }
            @for answer in answers { p class="answer" { (answer) } }
        }
    }
}

/// A section; nothing if it has no content.
pub(super) fn section(title: &str, body: &Markup) -> Markup {
    html! { @if !body.0.is_empty() { section { h2 { (title) } (body) } } }
}

pub(super) fn paragraph(text: &str) -> Markup {
    html! { @if !text.is_empty() { p { (text) } } }
}

pub(super) fn list<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> Markup {
    let mut items = items.into_iter().peekable();
    html! {
        @if items.peek().is_some() {
            ul { @for item in items { li { (item.as_ref()) } } }
        }
    }
}

pub(super) fn details(summary: &str, body: &Markup) -> Markup {
    html! { @if !body.0.is_empty() { details { summary { (summary) } (body) } } }
}

/// A chart with its figures below it, for readers unable to see it, or in need of the numbers.
pub(super) struct Chart {
    /// Identifier that is unique in the page.
    pub(super) id: String,
    pub(super) title: String,
    /// Description of the chart for readers unable to see it.
    pub(super) description: &'static str,
    pub(super) panel: Panel,
    pub(super) table: Option<Table>,
}

/// Width of a chart in pixels: narrow, so that its text has 12 pixels on a phone.
const CHART_WIDTH: u32 = 400;

/// Charts side by side if there is room.
pub(super) fn charts(charts: &[Chart]) -> Result<Markup, String> {
    let draw = |chart: &Chart| {
        let figure = Figure::single(chart.panel.clone());
        let svg = figure.inline_svg(CHART_WIDTH, &chart.id, &chart.title, chart.description);
        svg.map(PreEscaped).map_err(|error| error.to_string())
    };
    let drawn: Vec<_> = charts.iter().map(draw).collect::<Result<_, _>>()?;
    Ok(html! {
        @if !charts.is_empty() {
            div class="charts" {
                @for (svg, chart) in drawn.iter().zip(charts) {
                    figure {
                        (svg)
                        @if let Some(table) = &chart.table { (details("Figures", &html! { (table) })) }
                    }
                }
            }
        }
    })
}

/// Commands, one a line, quoted for a shell.
pub(super) fn commands(lines: &[Vec<String>]) -> Markup {
    let lines: Vec<String> = lines.iter().map(|words| words::command::quoted(words)).collect();
    html! { pre tabindex="0" { code { (lines.join("\n")) } } }
}

/// Warnings and other qualifications of the figures: the first three, the rest folded.
pub(super) fn warnings(lines: &[String]) -> Markup {
    let (first, more) = lines.split_at(lines.len().min(3));
    html! {
        @if !lines.is_empty() {
            section class="warnings" {
                h2 { "Warnings" }
                (list(first))
                (details(&format!("{} more", more.len()), &list(more)))
            }
        }
    }
}

/// Largest report in bytes that is embedded; a larger one is only linked to.
const EMBEDDED: usize = 2_000_000;

/// A link that saves `report`, which is part of the page, and links to the files next to the page.
pub(super) fn data(report: &str, pictures: &[&str]) -> Markup {
    let beside = ["report.json", "report.csv", "report.md"].iter().chain(pictures);
    html! {
        @if report.len() <= EMBEDDED {
            p {
                a download="report.json" href={ "data:application/json;base64," (BASE64_STANDARD.encode(report)) } {
                    "report.json"
                }
                " (" (report.len().div_ceil(1000)) " kB, part of this page)"
            }
        }
        p {
            "Files in the directory of this page, if it was not moved: "
            @for (index, name) in beside.enumerate() {
                @if index > 0 { ", " }
                a href=(name) { (name) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_outside_stays_text() {
        assert_eq!(paragraph("<script>'\"&").0, "<p>&lt;script&gt;'&quot;&amp;</p>");
        assert_eq!(without_controls("a\u{0}\u{1b}\n"), "a\u{FFFD}\u{FFFD}\n");
        let words = ["photofinish", "--frameworks", "one,two", "--prompt", "it's <b>"].map(str::to_owned);
        let line = commands(&[words.into()]).0;
        assert!(
            line.contains("photofinish --frameworks one,two --prompt &quot;it's &lt;b&gt;&quot;"),
            "{line}"
        );
    }

    #[test]
    fn nothing_has_no_section() {
        assert_eq!(section("Title", &paragraph("")).0, "");
        assert_eq!(details("More", &list([""; 0])).0, "");
    }
}
