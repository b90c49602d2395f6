//! A comparison: its main table, and every figure as CSV.

mod changes;
mod figures;
pub mod precisions;
#[cfg(test)]
mod tests;
mod texts;

pub use changes::changes;
use comparison::judge::metrics::Metric;
use comparison::judge::report::verdicts::Comparison;
use comparison::judge::report::{Figure, Report, Row, number};
pub use figures::csv;
use protocol::untrusted::markdown as plain;
pub use texts::texts;

use crate::table::{Cell, Column, Table};
use crate::table::{Screen, Tone};
use crate::words::answer;
use crate::words::verdicts::warnings;
use crate::words::{self, Json, Summary, summary, verdicts, wrapped_at};

/// Warnings that are shown without `-v`.
const WARNINGS: usize = 3;

/// The comparison as text for a terminal: the answer, what limits it, and the most important warnings.
pub fn table(report: &Report, screen: &Screen) -> String {
    let summary = summary(report);
    let width = screen.width.min(crate::table::WIDTH);
    let mut text: String =
        summary.answer.iter().map(|sentence| screen.paragraph(Tone::Strong, sentence)).collect::<String>();
    text += &format!("\n{}\n\n", answer::grid(report, width).terminal(screen));
    text += &answer::notes(report, width).iter().map(|note| screen.indented(note)).collect::<String>();
    if let Some(table) = from_text(report) {
        text += &format!("\n{}{}\n", screen.paragraph(Tone::Plain, &table.caption), table.terminal(screen));
    }
    let warnings = warnings(report);
    if !summary.notes.is_empty() || !warnings.is_empty() || !screen.verbose {
        text += "\n";
    }
    text += &summary.notes.iter().map(|line| screen.lines(line.tone, &line.text)).collect::<String>();
    let shown = if screen.verbose { warnings.len() } else { WARNINGS };
    for warning in warnings.iter().take(shown) {
        text += &screen.lines(Tone::Warning, &format!("warning: {warning}"));
    }
    if screen.verbose {
        text += &rest(report, &summary, screen);
    } else {
        text += &screen.lines(Tone::Faint, &more(report, warnings.len().saturating_sub(WARNINGS)));
    }
    text + &screen.lines(Tone::Plain, &format!("Every sample, and report.html: {}", report.results))
}

/// The comparison with its sentences, for files.
pub(crate) fn told(report: &Report) -> Json {
    let mut json = Json::new(report);
    let tell = |json: &mut Json, found: &Comparison| verdicts::tell(json, found, verdict(report, found));
    json.each("comparisons", &report.comparisons, tell);
    json.each("hybrids", &report.hybrids, |json, hybrid| {
        let tell = |found| json.field("verdict", |json| tell(json, found));
        hybrid.verdict.as_ref().map(tell);
    });
    json.set("warnings", Json::new(&warnings(report)));
    json.set("summary", Json::new(&summary(report)));
    json
}

/// The comparison as JSON, indented.
pub fn json(report: &Report) -> String {
    told(report).pretty()
}

/// The verdict on one metric of a pair, in one sentence.
pub fn verdict(report: &Report, found: &Comparison) -> String {
    verdicts::of_report(report, found)
}

/// The sections that `-v` would add.
fn more(report: &Report, warnings: usize) -> String {
    let warnings = match warnings {
        0 => String::new(),
        1 => "1 more warning, ".into(),
        count => format!("{count} more warnings, "),
    };
    let noun = report.plan.work.case_noun();
    format!(
        "{warnings}every verdict, figures by {noun}, memory by part, versions and time: -v, or report.html"
    )
}

/// The sections that are shown on request.
fn rest(report: &Report, summary: &Summary, screen: &Screen) -> String {
    let mut text = String::from("\n") + &screen.paragraph(Tone::Plain, &format!("{}:", verdicts::HEADING));
    text += &summary.verdicts.iter().map(|line| screen.lines(line.tone, &line.text)).collect::<String>();
    for table in by_prompt(report).into_iter().chain([spread(report)]) {
        text += &format!("\n{}{}\n", screen.paragraph(Tone::Plain, &table.caption), table.terminal(screen));
    }
    text += "\n";
    for line in &summary.details {
        text += &screen.lines(Tone::Plain, &line.text);
    }
    // The analysis of the default suite need not be repeated each time.
    let is_usual = report.plan.suite.as_deref() == Some(configs::DEFAULT_SUITE);
    match analysis(report).filter(|_| !is_usual) {
        Some(analysis) => text + "\n" + &screen.paragraph(Tone::Plain, &analysis),
        None => text,
    }
}

/// The comparison as Markdown, for README files and pull requests.
pub fn markdown(report: &Report) -> String {
    let summary = summary(report);
    let mut text = short(report, &summary) + "\n";
    if let Some(table) = from_text(report) {
        text += &format!("{}:\n\n{}\n\n", plain(&table.caption), table.markdown());
    }
    let item = |text: &str| format!("- {}\n", plain(text));
    let warnings: Vec<String> =
        warnings(report).iter().map(|warning| format!("warning: {warning}")).collect();
    let (first, others) = warnings.split_at(warnings.len().min(WARNINGS));
    text += &summary.notes.iter().map(|line| item(&line.text)).collect::<String>();
    text += &first.iter().map(|warning| item(warning)).collect::<String>();
    // GitHub renders Markdown inside, after a blank line.
    text += "\n<details>\n<summary>Every verdict, and what else was measured</summary>\n\n";
    text += &format!("{}:\n\n", verdicts::HEADING);
    text += &summary.verdicts.iter().map(|line| item(&line.text)).collect::<String>();
    for table in by_prompt(report).into_iter().chain([spread(report)]) {
        text += &format!("\n{}:\n\n{}\n", plain(&table.caption), table.markdown());
    }
    text += "\n";
    text += &summary.details.iter().map(|line| item(&line.text)).collect::<String>();
    text += &others.iter().map(|warning| item(warning)).collect::<String>();
    text += "\n</details>\n";
    if let Some(analysis) = analysis(report) {
        text += &format!("\n{}\n", words::wrapped(&plain(&analysis)));
    }
    text
}

/// The answer alone.
pub fn short_markdown(report: &Report) -> String {
    short(report, &summary(report))
}

fn short(report: &Report, summary: &Summary) -> String {
    let sentences = format!("**{}**", plain(&summary.answer.join(" ")));
    let notes: Vec<String> =
        answer::notes(report, crate::table::WIDTH).iter().map(|note| plain(note)).collect();
    let (about, others) =
        notes.split_last().map_or((String::new(), &notes[..0]), |(last, rest)| (last.clone(), rest));
    let signs = if others.is_empty() {
        String::new()
    } else {
        wrapped_at(&others.join(" "), crate::table::WIDTH) + "\n\n"
    };
    let table = answer::grid(report, crate::table::WIDTH).in_one_line().markdown();
    format!(
        "{}\n\n{table}\n\n{signs}{}\n",
        wrapped_at(&sentences, crate::table::WIDTH),
        wrapped_at(&about, crate::table::WIDTH)
    )
}

/// The analysis by the suite, or by the file of prompts.
fn analysis(report: &Report) -> Option<String> {
    let plan = &report.plan;
    let name = plan.suite.as_ref().map_or("These prompts".to_owned(), |suite| format!("Suite {suite}"));
    (!plan.analysis.is_empty()).then(|| format!("{name}: {}", plan.analysis))
}

/// A table with a column for each framework, still without rows.
fn by_row(report: &Report) -> Table {
    let labels = report.rows.iter().map(|row| Column::right(words::title(row)));
    Table::new([Column::left("")].into_iter().chain(labels))
}

/// The metrics that the main table has no room for, one row each.
pub(crate) fn further_metrics(report: &Report) -> Table {
    let mut table = by_row(report);
    let shown = report.table_metrics();
    for metric in Metric::all(report.plan.work.kind()).into_iter().filter(|metric| !shown.contains(metric)) {
        let figures = report.rows.iter().map(|row| figure(row, metric).into());
        table.add([Cell::from(metric.title())].into_iter().chain(figures));
    }
    table
}

/// How much each figure varies between processes: arithmetic mean ± standard deviation, and the coefficient of
/// variation below.
pub(crate) fn spread(report: &Report) -> Table {
    let mut table = by_row(report);
    for metric in Metric::all(report.plan.work.kind()) {
        let title = Cell::from(metric.title()).short(metric.short_title());
        let cells =
            report.rows.iter().map(|row| row.figure(metric).map_or_else(|| words::DASH.into(), moments));
        table.add([title].into_iter().chain(cells));
    }
    table.captioned("Between processes: mean ± standard deviation, coefficient of variation")
}

fn moments(figure: &Figure) -> Cell {
    let (Some(mean), Some(deviation)) = (figure.mean, figure.standard_deviation) else {
        return words::DASH.into();
    };
    let variation = figure.coefficient_of_variation.map(|share| format!("{:.1} %", 100.0 * share));
    Cell::with_small(format!("{} ± {}", number(mean), number(deviation)), variation.unwrap_or_default())
}

/// A dash replaces a missing figure; the reason is below the table.
fn figure(row: &Row, metric: Metric) -> String {
    match row.typical(metric) {
        None if row.rounds == 0 => words::DASH.into(),
        None => "not available".into(),
        Some(value) => number(value),
    }
}

/// A line for each batch of texts and each framework: the tokenizer's time, the framework's, and both. `None` where the
/// tokenizer was not timed.
pub(crate) fn from_text(report: &Report) -> Option<Table> {
    let titles = ["Tokenizer (ms)", "Encoder (ms)", "Text to vector (ms)", "texts/s"].map(Column::right);
    let mut table = Table::new([Column::left("Batch"), Column::left("Framework")].into_iter().chain(titles));
    for batch in &report.from_text {
        for row in &batch.rows {
            let figures =
                [batch.tokenising_ms, row.request_ms, row.total_ms, row.texts_per_second].map(number);
            table.add([batch.batch.clone(), row.framework.clone()].into_iter().chain(figures));
        }
    }
    (!table.rows.is_empty())
        .then(|| table.captioned("From text to vector: the tokenizer is the same for all"))
}

/// One line for each prompt and each measured framework. `None` if a single prompt would repeat the main table.
pub(crate) fn by_prompt(report: &Report) -> Option<Table> {
    if report.prompts.len() < 2 {
        return None;
    }
    let figures = Metric::of_a_prompt(report.plan.work.kind())
        .into_iter()
        .map(|metric| Column::right(Cell::from(metric.title()).short(metric.short_title())));
    let noun = report.plan.work.case_noun();
    let title = noun[..1].to_uppercase() + &noun[1..];
    let start = [Column::left(title), Column::left("Framework")];
    let mut table = Table::new(start.into_iter().chain(figures));
    for prompt in &report.prompts {
        for row in prompt.rows.iter().filter(|row| row.metrics.iter().any(|f| f.typical.is_some())) {
            let start = [format!("{} ({} tokens)", prompt.name, prompt.tokens), row.framework.clone()];
            let figures = row.metrics.iter().map(|figure| words::or_dash(figure.typical, number));
            table.add(start.into_iter().chain(figures));
        }
    }
    (!table.rows.is_empty()).then(|| table.captioned(format!("By {noun}, from its samples alone")))
}
