//! A comparison: its answer, its tables, and every figure as CSV.

mod changes;
mod figures;
pub mod precisions;
#[cfg(test)]
pub(crate) mod tests;
mod texts;

pub use changes::changes;
use comparison::judge::metrics::Metric;
use comparison::judge::report::verdicts::Comparison;
use comparison::judge::report::{Figure, Report, Row, number};
pub use texts::texts;

use crate::export::{Block, Body, Document};
use crate::table::{Cell, Screen, Table, WIDTH};
use crate::words::verdicts::warnings;
use crate::words::{self, Json, Line, answer, findings, summary, verdicts};

const WARNINGS: usize = 3;

impl Document for Report {
    fn body(&self, terminal: Option<&Screen>) -> Body {
        let summary = summary(self);
        let warnings: Vec<Line> = warnings(self).iter().map(|text| Line::warning(text)).collect();
        let (first, others) = warnings.split_at(warnings.len().min(WARNINGS));
        let width = terminal.map_or(WIDTH, |screen| screen.width.min(WIDTH));
        let answer = vec![
            Block::Answer(summary.answer),
            Block::Table(answer::grid(self, width)),
            Block::Notes(answer::notes(self, width)),
        ];
        let mut rest: Vec<Block> = from_text(self).into_iter().map(Block::Captioned).collect();
        rest.push(Block::Lines([summary.notes, first.to_vec()].concat()));
        let mut folded =
            vec![Block::Paragraph(format!("{}:", verdicts::HEADING)), Block::Lines(summary.verdicts)];
        let tables = [by_prompt(self), Some(spread(self)), findings::table(self, true)];
        folded.extend(tables.into_iter().flatten().map(Block::Captioned));
        let facts = findings::facts(self).into_iter().map(Line::plain);
        folded.push(Block::Lines(facts.chain(others.iter().cloned()).collect()));
        // On a terminal the analysis of the default suite need not be repeated each time.
        let is_usual = self.plan.suite.as_deref() == Some(configs::DEFAULT_SUITE);
        let analysis = analysis(self).map(Block::Paragraph);
        if terminal.is_some() {
            folded.extend(analysis.filter(|_| !is_usual));
            rest.push(Block::Folded("", folded));
        } else {
            rest.push(Block::Folded("Every verdict, and what else was measured", folded));
            rest.extend(analysis);
        }
        rest.push(Block::More(self::more(self, others.len())));
        rest.push(Block::Elsewhere(format!("Every sample, and report.html: {}", self.results)));
        Body { answer, rest }
    }

    fn json(&self) -> Json {
        told(self)
    }

    fn figures(&self) -> Table {
        figures::table(std::slice::from_ref(self))
    }
}

fn told(report: &Report) -> Json {
    let mut json = Json::new(report);
    let tell = |json: &mut Json, found: &Comparison| verdicts::tell(json, found, verdict(report, found));
    json.each("comparisons", &report.comparisons, tell);
    json.each("hybrids", &report.hybrids, |json, hybrid| {
        if let (Some(json), Some(found)) = (json.field("verdict"), &hybrid.verdict) {
            tell(json, found);
        }
    });
    json.set("warnings", Json::new(&warnings(report)));
    json.set("summary", Json::new(&summary(report)));
    json
}

/// The verdict on one metric of a pair, in one sentence.
pub fn verdict(report: &Report, found: &Comparison) -> String {
    verdicts::of_report(report, found)
}

fn more(report: &Report, warnings: usize) -> String {
    let warnings = match warnings {
        0 => String::new(),
        more => format!("{}, ", words::count(more, "more warning")),
    };
    let noun = report.plan.work.case_noun();
    format!(
        "{warnings}every verdict, figures by {noun}, memory by part, versions and time: -v, or report.html"
    )
}

/// The analysis by the suite, or by the file of prompts.
fn analysis(report: &Report) -> Option<String> {
    let plan = &report.plan;
    let name = plan.suite.as_ref().map_or("These prompts".to_owned(), |suite| format!("Suite {suite}"));
    (!plan.analysis.is_empty()).then(|| format!("{name}: {}", plan.analysis))
}

impl Table {
    /// A table with a column for each contender, still without rows.
    pub(crate) fn of_contenders(report: &Report) -> Table {
        Table::of([""], report.rows.iter().map(words::title))
    }
}

impl Cell {
    pub(crate) fn of_metric(metric: Metric) -> Cell {
        Cell::from(metric.title()).short(metric.short_title())
    }
}

/// The metrics that the main table has no room for, one row each.
pub(crate) fn further_metrics(report: &Report) -> Table {
    let mut table = Table::of_contenders(report);
    let shown = report.table_metrics();
    for metric in Metric::all(report.plan.work.kind()).into_iter().filter(|metric| !shown.contains(metric)) {
        table.push([metric.title()], report.rows.iter().map(|row| figure(row, metric)));
    }
    table
}

/// How much each figure varies between processes: arithmetic mean ± standard deviation, and the coefficient of
/// variation below.
pub(crate) fn spread(report: &Report) -> Table {
    let mut table = Table::of_contenders(report);
    for metric in Metric::all(report.plan.work.kind()) {
        let cells =
            report.rows.iter().map(|row| row.figure(metric).map_or_else(|| words::DASH.into(), moments));
        table.push([Cell::of_metric(metric)], cells);
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
    let titles = ["Tokenizer (ms)", "Encoder (ms)", "Text to vector (ms)", "texts/s"];
    let mut table = Table::of(["Batch", "Framework"], titles);
    for batch in &report.from_text {
        for row in &batch.rows {
            let figures =
                [batch.tokenising_ms, row.request_ms, row.total_ms, row.texts_per_second].map(number);
            table.push([&batch.batch, &row.framework], figures);
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
    let figures = Metric::of_a_prompt(report.plan.work.kind()).into_iter().map(Cell::of_metric);
    let noun = report.plan.work.case_noun();
    let title = noun[..1].to_uppercase() + &noun[1..];
    let mut table = Table::of([title.as_str(), "Framework"], figures);
    for prompt in &report.prompts {
        for row in prompt.rows.iter().filter(|row| row.metrics.iter().any(|f| f.typical.is_some())) {
            let start = [format!("{} ({} tokens)", prompt.name, prompt.tokens), row.framework.clone()];
            let figures = row.metrics.iter().map(|figure| words::or_dash(figure.typical, number));
            table.push(start, figures);
        }
    }
    (!table.rows.is_empty()).then(|| table.captioned(format!("By {noun}, from its samples alone")))
}
