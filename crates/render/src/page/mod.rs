//! Self-contained pages of a run, of a study and of the history, with the charts as separate files.

mod history;
mod run;
mod study;
#[cfg(test)]
mod tests;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use comparison::history::Record;
use comparison::judge::report::Row;
use comparison::judge::report::fairness::{Breach, RuleState};
use comparison::judge::report::generate::Times;
use comparison::judge::study::StudyReport;
use comparison::judge::{self, Metric, Report};
use comparison::plan::Prompt;
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};
use protocol::untrusted;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::charts::{self, Figure, Panel, Theme};
use crate::pictures::{self, over_time};
use crate::result;
use crate::table::{Align, Cell, Column, Table, Tone};
use crate::words;

/// Names of files with their content.
type Files = Vec<(String, Vec<u8>)>;

/// The page `report.html` of a run, and its pictures for sharing.
pub fn run(report: &Report, times: &Times) -> Result<Files, String> {
    let mut files = vec![("report.html".to_owned(), run::html(report, times)?.into_bytes())];
    let pictures = pictures::Pictures::new(report);
    files.extend(pictures::files("comparison", &pictures.comparison())?);
    files.push(("preview.png".to_owned(), pictures::preview(&pictures.preview())?));
    Ok(files)
}

/// The picture of one metric of a run, as `<metric>.png` and `<metric>.svg`, with a title of the user's if there is one.
pub fn picture(report: &Report, metric: Metric, title: Option<&str>) -> Result<Files, String> {
    pictures::files(metric.name(), &pictures::Pictures::new(report).one_metric(metric, title))
}

/// The page `report.html` of a study, and its picture if it has figures. `has_page` is whether the directory of a cell,
/// by its name, has a page to link to.
pub fn study(report: &StudyReport, has_page: &dyn Fn(&str) -> bool) -> Result<Files, String> {
    let figure = pictures::sweep::comparison(report);
    let page = study::html(report, figure.is_some(), has_page)?;
    let mut files = vec![("report.html".to_owned(), page.into_bytes())];
    if let Some(figure) = figure {
        files.extend(pictures::files("comparison", &figure)?);
    }
    Ok(files)
}

/// The page `history.html` and its picture. `skipped` is the number of history lines that could not be read.
pub fn history(records: &[Record], skipped: usize) -> Result<Files, String> {
    let (apart, records): (Vec<&Record>, Vec<&Record>) =
        records.iter().partition(|record| !over_time::has_place(record));
    let groups = over_time::groups(&records);
    let mut files = vec![("history.html".to_owned(), history::html(&groups, &apart, skipped)?.into_bytes())];
    files.extend(pictures::files("performance_over_time", &over_time::picture(&groups))?);
    if let Some(figure) = over_time::by_version_picture(&groups) {
        files.extend(pictures::files("performance_by_version", &figure)?);
    }
    Ok(files)
}

// The parts of a page other than figures: prompts, fairness rules, versions, environment.

fn prompts(report: &Report) -> Markup {
    let noun = report.plan.work.case_noun();
    let prompts = report.plan.work.prompted().map(|work| &work.prompts);
    let mut texts = Table::new([Column::left("Prompt"), Column::right("Tokens"), Column::left("Text")]);
    for Prompt { name, text, chat, tokens, .. } in prompts.into_iter().flatten() {
        let text = chat.as_deref().or(text.as_deref()).unwrap_or_default();
        let short: String = text.chars().take(300).collect();
        let more = if short.len() < text.len() { "…" } else { "" };
        texts.add([name.clone(), tokens.len().to_string(), format!("{short}{more}")]);
    }
    html! {
        @if let Some(table) = result::by_prompt(report) {
            (details(&format!("Figures of each {noun}"), &html! { (table) }))
        }
        @if let Some(table) = result::from_text(report) {
            (details("From text to vector", &html! { (table) }))
        }
        @if prompts.is_some_and(|prompts| !prompts.is_empty()) {
            (details("The prompts", &html! { (texts.captioned("What was asked")) }))
        }
    }
}

fn rules(report: &Report) -> Markup {
    let findings = |breaches: &[Breach]| {
        let each = breaches.iter().map(|breach| format!("{}: {}", breach.framework, breach.finding));
        each.collect::<Vec<_>>().join("; ")
    };
    let mut table = Table::plain(["Rule", "State", "Why"]);
    for rule in &report.rules {
        let RuleState { id, sentence, broken_by, notes, unverified } = rule;
        let (state, why) = match (broken_by.is_empty(), unverified, notes.is_empty()) {
            (false, _, _) => ("✗ broken", findings(broken_by)),
            (true, Some(reason), _) => ("? not verified", reason.clone()),
            (true, None, false) => ("• noted", findings(notes)),
            (true, None, true) => ("✓ holds", String::new()),
        };
        table.add([format!("{id} {sentence}"), state.to_owned(), why]);
    }
    let lane = if report.plan.fair_comparison {
        "Matched: a framework that breaks a rule is struck"
    } else {
        "Best effort: broken rules are only labelled"
    };
    let summary = rules_summary(&report.rules);
    html! { @if !table.rows.is_empty() { (details(&summary, &html! { (table.captioned(lane)) })) } }
}

/// "14 of 16 rules hold; broken: R5; not verified: R6".
fn rules_summary(rules: &[RuleState]) -> String {
    let ids = |is: fn(&RuleState) -> bool| -> Vec<&str> {
        rules.iter().filter(|rule| is(rule)).map(|rule| rule.id.as_str()).collect()
    };
    let broken = ids(|rule| !rule.broken_by.is_empty());
    let open = ids(|rule| rule.broken_by.is_empty() && rule.unverified.is_some());
    let hold = rules.len() - broken.len() - open.len();
    let mut summary = format!("{hold} of {} rules hold", rules.len());
    for (words, ids) in [("broken", broken), ("not verified", open)] {
        if !ids.is_empty() {
            summary += &format!("; {words}: {}", ids.join(", "));
        }
    }
    summary
}

/// The versions and kernels of each contender; the page shows versions only here.
fn versions(report: &Report) -> Markup {
    let titles = ["Contender", "Library", "Binding", "Built by", "Kernels"];
    let mut table = Table::plain(titles);
    for row in &report.rows {
        let Some(hello) = &row.hello else { continue };
        let build = &hello.build;
        let built = [build.rustc.as_deref(), build.toolchain.as_deref(), build.rustflags.as_deref()];
        let built: Vec<&str> = built.into_iter().flatten().collect();
        let built = built.join(" ").trim().to_owned();
        let kernels = row.in_effect.as_ref().map(|in_effect| in_effect.kernels.join("; "));
        let [built, kernels] = [built, kernels.unwrap_or_default()]
            .map(|text| words::or_dash(Some(text).filter(|text| !text.is_empty()), |text| text));
        table.add([words::title(row), hello.library.to_string(), hello.binding.to_string(), built, kernels]);
    }
    html! { @if !table.rows.is_empty() { (table.captioned("Versions, as the workers report them")) } }
}

/// Places of the rows that are struck.
fn struck(rows: &[Row]) -> Vec<usize> {
    let places = rows.iter().enumerate().filter(|(_, row)| row.state == judge::report::State::Struck);
    places.map(|(place, _)| place).collect()
}

fn environment(report: &Report) -> Table {
    let mut table = Table::plain(["What", "Value"]);
    let known = serde_json::to_value(&report.environment).expect("an environment has string keys");
    for (name, value) in known.as_object().into_iter().flatten() {
        match (name.as_str(), value.as_f64()) {
            // These are shown elsewhere on the page.
            ("command" | "started", _) => {}
            ("memory_bytes", Some(bytes)) => {
                table.add([Cell::from("memory"), format!("{:.1} GB", bytes / 1e9).into()]);
            }
            _ => table.add([name.replace('_', " "), plain(value)]),
        }
    }
    let plan = &report.plan;
    table.add(["parameters", &words::or_dash(report.model.parameters, |count| count.to_string())]);
    if let Some(experts) = words::findings::experts(&report.model) {
        table.add(["experts", &experts]);
    }
    table.add(["device", &plan.device]);
    table.add(["threads", &plan.threads.to_string()]);
    table.add(["precision", plan.precision.name()]);
    table.add(["batch", &plan.work.batch().to_string()]);
    for (name, value) in plan.work.settings() {
        table.add([name, value.as_str()]);
    }
    table.captioned("The machine, the checkout and the settings")
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "not available".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

// How to repeat a measurement elsewhere: a command without the paths of the machine that it ran on, with the commit
// and the seed.

/// The address of this program's repository, once the manifest has one.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// The circumstances of a command besides its words.
#[derive(Debug, Clone, Copy, Default)]
struct Source<'a> {
    commit: Option<&'a str>,
    modified: bool,
    /// The seed that was drawn, or given.
    seed: Option<u64>,
}

/// The command of a run, and the reasons why it cannot be repeated exactly; nothing where none is known.
fn to_repeat(words: &[String], source: Source<'_>, repository: &str) -> Markup {
    if words.is_empty() {
        return Markup::default();
    }
    let (line, local) = words::elsewhere(words, source.seed);
    let git = |verb: &str, of: &str| vec!["git".to_owned(), verb.to_owned(), of.to_owned()];
    let clone = (!repository.is_empty()).then(|| git("clone", repository));
    let checkout = source.commit.map(|commit| git("checkout", commit));
    let lines: Vec<Vec<String>> = clone.into_iter().chain(checkout).chain([line]).collect();
    let linked = |text: &str, path: &str| {
        html! {
            @if repository.is_empty() { (text) } @else { a href={ (repository) (path) } { (text) } }
        }
    };
    html! {
        p {
            "With " (linked("Photofinish", ""))
            @if let Some(commit) = source.commit {
                " at commit " (linked(&words::short_commit(Some(commit), None), &format!("/commit/{commit}")))
            }
            ", installed as its README says:"
        }
        (commands(&lines))
        @if !local.is_empty() {
            (paragraph(&format!(
                "{} was a path on the machine that measured: name your own copy.",
                local.join(", ")
            )))
        }
        @if source.modified {
            (paragraph("Files differed from that commit: the changes are not part of this page."))
        }
        @if source.commit.is_none() {
            (paragraph("No commit is known that all of it ran at: take the version named above."))
        }
    }
}

// Tables in a page. On a narrow screen each row is a card: every cell has its column's title, and the style
// sheet shows it in front. A table of metrics is then read metric by metric, with the contenders below each other.

/// The look of a table on a page, beyond its cells.
#[derive(Debug, Default)]
struct Look {
    /// Places of the columns and rows of struck contenders.
    struck_columns: Vec<usize>,
    struck_rows: Vec<usize>,
    /// So many columns at the left become a heading above the rows that share them.
    grouped: usize,
}

impl Render for Cell {
    fn render(&self) -> Markup {
        html! { (untrusted::line(&self.main)) @if !self.small.is_empty() { small { (untrusted::line(&self.small)) } } }
    }
}

impl Render for Table {
    fn render(&self) -> Markup {
        looking(self, &Look::default())
    }
}

fn looking(table: &Table, look: &Look) -> Markup {
    let has_figures = table.columns.iter().any(|column| column.align == Align::Right);
    // With one column besides its heading, a cell needs no title.
    let pairs = table.columns.len() == look.grouped + 2;
    let classes = classes([(has_figures, "figures"), (pairs, "pairs"), (table.signs, "signs")]);
    let shown = table.columns.iter().enumerate().skip(look.grouped);
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(table.caption) {
            table class=[classes] {
                caption { (table.caption) }
                thead {
                    tr {
                        @for (index, column) in shown {
                            @let class = class(column, look.struck_columns.contains(&index));
                            // A header must have a text for screen readers.
                            @if column.title.main.is_empty() { td class=[class] {} }
                            @else { th class=[class] scope="col" { (column.title) } }
                        }
                    }
                }
                tbody { (rows(table, look)) }
            }
        }
    }
}

fn rows(table: &Table, look: &Look) -> Markup {
    let heading = |row: &[Cell]| row.iter().take(look.grouped).cloned().collect::<Vec<_>>();
    let is_new = |index: usize| index == 0 || heading(&table.rows[index]) != heading(&table.rows[index - 1]);
    let width = table.columns.len().saturating_sub(look.grouped);
    html! {
        @for (index, row) in table.rows.iter().enumerate() {
            @if look.grouped > 0 && is_new(index) {
                tr class="group" { th colspan=(width) scope="rowgroup" { (place(table, &heading(row))) } }
            }
            @let struck = look.struck_rows.contains(&index);
            tr class=[struck.then_some("struck")] {
                @for (place, (cell, column)) in row.iter().zip(&table.columns).enumerate().skip(look.grouped) {
                    @let class = class(column, look.struck_columns.contains(&place));
                    @if place == look.grouped { th class=[class] scope="row" { (cell) } }
                    @else if cell.tone == Tone::Clear {
                        td class={ (class.unwrap_or_default()) " best" } data-label=(label(column)) { span { (cell) } }
                    } @else { td class=[class] data-label=(label(column)) { span { (cell) } } }
                }
            }
        }
    }
}

fn class(column: &Column, struck: bool) -> Option<String> {
    classes([(column.align == Align::Right, "figure"), (struck, "struck")])
}

/// The classes that an element has, if any.
fn classes<const N: usize>(all: [(bool, &str); N]) -> Option<String> {
    let own: Vec<&str> = all.into_iter().filter(|(is, _)| *is).map(|(_, class)| class).collect();
    (!own.is_empty()).then(|| own.join(" "))
}

fn label(column: &Column) -> String {
    let Cell { main, small, .. } = &column.title;
    format!("{main} {small}").trim().to_owned()
}

/// "Batch 4, Threads 2".
fn place(table: &Table, cells: &[Cell]) -> String {
    let named =
        table.columns.iter().zip(cells).map(|(column, cell)| format!("{} {}", label(column), cell.main));
    named.collect::<Vec<_>>().join(", ")
}

// The pieces of a page. `maud` writes every piece and escapes all external text.

const STYLE: &str = include_str!("page.css");

/// The only script of a page: buttons copy the text that is folded below them.
const SCRIPT: &str = include_str!("page.js");

/// A page as services show it beside a link.
struct Shared<'a> {
    title: &'a str,
    description: &'a str,
    /// A file beside the page.
    image: Option<&'a str>,
}

fn document(title: &str, shared: &Shared<'_>, body: &Markup) -> String {
    // Nothing is fetched, and no other script runs.
    let policy = format!(
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'",
        BASE64_STANDARD.encode(Sha256::digest(SCRIPT))
    );
    let described = [
        ("og:title", Some(shared.title)),
        ("og:description", Some(shared.description)),
        ("og:image", shared.image),
    ];
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="description" content=(shared.description);
                meta property="og:type" content="article";
                @for (property, content) in described {
                    @if let Some(content) = content { meta property=(property) content=(content); }
                }
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(style())) }
            }
            body { main { (body) } script { (PreEscaped(SCRIPT)) } }
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

/// The first answer as the heading, below the title and the time of the measurement.
fn header(title: &str, subtitle: &str, started: &str, answers: &[String]) -> Markup {
    html! {
        header {
            p class="muted" { (title) " · " (words::minute(started)) " UTC" }
            h1 { (prose(answers.first().map_or(title, String::as_str))) }
            @for answer in answers.iter().skip(1) { p class="answer" { (prose(answer)) } }
            @if !subtitle.is_empty() { p class="muted" { (prose(subtitle)) } }
        }
    }
}

/// A sentence, with what is between backticks as code.
fn prose(text: &str) -> Markup {
    let parts = || text.split('`').enumerate();
    html! {
        @if parts().count() % 2 == 0 { (text) } @else {
            @for (place, part) in parts() { @if place % 2 == 1 { code { (part) } } @else { (part) } }
        }
    }
}

/// A text to copy: by its button, or without scripts by hand.
fn copied(button: &str, text: &str) -> Markup {
    html! {
        button type="button" hidden { (button) }
        (details("Markdown", &html! { pre tabindex="0" { code { (text) } } }))
    }
}

/// A section; nothing if it has no content.
fn section(title: &str, body: &Markup) -> Markup {
    html! { @if !body.0.is_empty() { section { h2 { (title) } (body) } } }
}

fn paragraph(text: &str) -> Markup {
    html! { @if !text.is_empty() { p { (prose(text)) } } }
}

fn list<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> Markup {
    let mut items = items.into_iter().peekable();
    html! {
        @if items.peek().is_some() {
            ul { @for item in items { li { (prose(item.as_ref())) } } }
        }
    }
}

fn details(summary: &str, body: &Markup) -> Markup {
    html! { @if !body.0.is_empty() { details { summary { (summary) } (body) } } }
}

/// A chart with its figures below it, for readers unable to see it, or in need of the numbers.
struct Chart {
    id: String,
    title: String,
    /// Description of the chart for readers unable to see it.
    description: &'static str,
    panel: Panel,
    table: Option<Table>,
}

/// Width of a chart in pixels: narrow, so that its text has 12 pixels on a phone.
const CHART_WIDTH: u32 = 405;

/// Charts side by side if there is room.
fn charts(charts: &[Chart]) -> Result<Markup, String> {
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
                        @if let Some(table) = &chart.table { (details("In numbers", &html! { (table) })) }
                    }
                }
            }
        }
    })
}

/// Commands, one a line, quoted for a shell.
fn commands(lines: &[Vec<String>]) -> Markup {
    let lines: Vec<String> = lines.iter().map(|words| words::quoted(words)).collect();
    html! { pre tabindex="0" { code { (lines.join("\n")) } } }
}

/// Warnings and other qualifications of the figures: the first three, the rest folded.
fn warnings(lines: &[String]) -> Markup {
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
fn data(report: &str, pictures: &[&str]) -> Markup {
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
mod unit {
    use super::*;

    #[test]
    fn what_cannot_be_repeated_exactly_says_so() {
        let command = ["photofinish".to_owned(), "--quick".to_owned()];
        let page = to_repeat(&command, Source { commit: Some("abc"), modified: true, seed: Some(1) }, "").0;
        assert!(page.contains("git checkout abc") && page.contains("Files differed"), "{page}");
        assert!(!page.contains("git clone") && !page.contains("<a "), "without an address: {page}");
        assert!(to_repeat(&command, Source::default(), "").0.contains("No commit is known"));
        assert_eq!(to_repeat(&[], Source::default(), "").0, "");
    }

    #[test]
    fn the_address_of_the_project_is_linked_and_cloned() {
        let source = Source { commit: Some("abcdef0123"), ..Source::default() };
        let page = to_repeat(&["photofinish".to_owned()], source, "https://example.org/p").0;
        let lines = "git clone https://example.org/p\ngit checkout abcdef0123\nphotofinish";
        assert!(page.contains(lines), "{page}");
        assert!(page.contains("<a href=\"https://example.org/p/commit/abcdef0123\">abcdef01</a>"), "{page}");
    }

    #[test]
    fn commands_in_sentences_are_code_and_one_backtick_is_itself() {
        assert_eq!(prose("a `--b` <c>").0, "a <code>--b</code> &lt;c&gt;");
        assert_eq!(prose("it`s").0, "it`s");
    }

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
        assert_eq!(section("Title", &paragraph("x")).0, "<section><h2>Title</h2><p>x</p></section>");
        assert_eq!(details("More", &list([""; 0])).0, "");
    }
}
