//! A comparison: its answer, its tables, and every figure as CSV.

pub mod precisions;
#[cfg(test)]
pub(crate) mod tests;
mod texts;

use comparison::judge::metrics::Metric;
use comparison::judge::report::limit::Share;
use comparison::judge::report::verdicts::Comparison;
use comparison::judge::report::{self, Change, Figure, Report, Row, number};
use comparison::judge::work::encode::FromTextRow;
use serde_json::{Value, json};
pub use texts::texts;

use crate::cite;
use crate::export::{Block, Body, Document};
use crate::flat;
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
        let repeated = cite::repeated(self).map(Block::Paragraph);
        // On a terminal the analysis of the default suite need not be repeated each time.
        let is_usual = self.plan.suite.as_deref() == Some(configs::DEFAULT_SUITE);
        let analysis = analysis(self).map(Block::Paragraph);
        if terminal.is_some() {
            folded.extend(analysis.filter(|_| !is_usual).into_iter().chain(repeated));
            rest.push(Block::Folded("", folded));
        } else {
            rest.push(Block::Folded("Every verdict, and what else was measured", folded));
            rest.extend(analysis.into_iter().chain(repeated));
        }
        rest.push(Block::More(self::more(self, others.len())));
        rest.push(Block::Elsewhere(format!("Every sample, and report.html: {}", self.results)));
        Body { answer, rest }
    }

    fn json(&self) -> Json {
        told(self)
    }

    fn figures(&self) -> Table {
        figures(std::slice::from_ref(self))
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

/// How much each figure varies between processes: arithmetic mean ± standard deviation; below them the coefficient of
/// variation, the least and the most.
pub(crate) fn spread(report: &Report) -> Table {
    let mut table = Table::of_contenders(report);
    for metric in Metric::all(report.plan.work.kind()) {
        let cells =
            report.rows.iter().map(|row| row.figure(metric).map_or_else(|| words::DASH.into(), moments));
        table.push([Cell::of_metric(metric)], cells);
    }
    let caption = "Between processes: mean ± standard deviation; coefficient of variation, least–most";
    table.captioned(match report.rounds {
        1 => format!("{caption}. A deviation needs two processes, and there was one"),
        _ => caption.to_owned(),
    })
}

fn moments(figure: &Figure) -> Cell {
    let Some(mean) = figure.mean else { return words::DASH.into() };
    let Some(deviation) = figure.standard_deviation else { return number(mean).into() };
    let variation = figure.coefficient_of_variation.map(|share| format!("{:.1} %", 100.0 * share));
    let ends = figure.min.zip(figure.max).map(|(least, most)| format!("{}–{}", number(least), number(most)));
    let below: Vec<String> = variation.into_iter().chain(ends).collect();
    Cell::with_small(format!("{} ± {}", number(mean), number(deviation)), below.join(", "))
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
    let mut table = Table::of(["Batch", "Framework"], FromTextRow::TITLES);
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

// The changes of a run that is judged again, in words.

/// The decisions that differ between two reports of one run, one sentence each.
pub fn changes(before: &Report, now: &Report) -> Vec<String> {
    let was = |found: &Comparison| verdict(before, found);
    let is = |found: &Comparison| verdict(now, found);
    let sentence = |change: Change<'_>| match change {
        Change::State { was, now: row } => {
            let why = row.reasons.first().map_or(String::new(), |reason| format!(": {reason}"));
            format!("{} was {} and is {}{why}", row.framework, was.name(), row.state.name())
        }
        Change::New(found) => format!("{}: new: {}", found.metric.title(), is(found)),
        Change::Verdict { was: earlier, now: found } => format!(
            "{}: {} and {} were {}: {}; now {}: {}",
            found.metric.title(),
            found.a,
            found.b,
            verdicts::word(earlier.verdict),
            was(earlier),
            verdicts::word(found.verdict),
            is(found)
        ),
        Change::Gone(earlier) => {
            format!("{}: no longer compared: {}", earlier.metric.title(), was(earlier))
        }
    };
    report::changes(before, now).into_iter().map(sentence).collect()
}

// A line for each figure of each contender: first over all prompts, then for each prompt.

const TITLES: [&str; 14] = [
    "framework",
    "state",
    "precision",
    "metric",
    "unit",
    "median",
    "min",
    "max",
    "rounds",
    "prompt",
    "typical",
    "mean",
    "standard_deviation",
    "coefficient_of_variation",
];

/// The figures of all reports under one header. Each line names its precision.
fn figures(reports: &[Report]) -> Table {
    flat::table(&TITLES, &reports.iter().flat_map(lines).collect::<Vec<_>>())
}

fn lines(report: &Report) -> Vec<flat::Line> {
    let mut lines = Vec::new();
    for row in &report.rows {
        lines.extend(row.metrics.iter().map(|figure| of_figure(row, figure, "")));
        let Some(limit) = &row.limit else { continue };
        let shares = [
            ("encoding_share", &limit.encoding),
            ("decode_share", &limit.decode),
            ("prefill_share", &limit.prefill),
        ];
        for (name, share) in shares {
            lines.extend(share.iter().map(|share| of_share(row, name, share)));
        }
    }
    // The figures of a single prompt are those above.
    for prompt in report.prompts.iter().filter(|_| report.prompts.len() > 1) {
        for (row, by_prompt) in report.rows.iter().zip(&prompt.rows) {
            lines.extend(by_prompt.metrics.iter().map(|figure| of_figure(row, figure, &prompt.name)));
        }
    }
    lines
}

/// The line of one figure; `prompt` is empty for all prompts together.
fn of_figure(row: &Row, figure: &Figure, prompt: &str) -> flat::Line {
    let spread = [figure.median, figure.min, figure.max];
    let mut line = start(row, figure.metric.name(), &figure.unit, spread, prompt);
    line.extend(flat::line([
        ("typical", json!(figure.typical)),
        ("mean", json!(figure.mean)),
        ("standard_deviation", json!(figure.standard_deviation)),
        ("coefficient_of_variation", json!(figure.coefficient_of_variation)),
    ]));
    line
}

/// Median, least and largest share of the machine's limit.
fn of_share(row: &Row, name: &str, share: &Share) -> flat::Line {
    let known = || share.values.iter().copied().flatten();
    let (least, most) = (known().reduce(f64::min), known().reduce(f64::max));
    start(row, name, "of limit", [Some(share.median), least, most], "")
}

fn start(
    row: &Row,
    metric: &str,
    unit: &str,
    [median, min, max]: [Option<f64>; 3],
    prompt: &str,
) -> flat::Line {
    // The requested precision is shown only without figures: with figures it might not be the one in effect.
    let unseen = if row.state.has_figures() { "" } else { row.precision.requested.name() };
    flat::line([
        ("framework", json!(row.framework)),
        ("state", json!(row.state.name())),
        ("precision", Value::from(row.precision.observed.as_deref().unwrap_or(unseen))),
        ("metric", json!(metric)),
        ("unit", json!(unit)),
        ("median", json!(median)),
        ("min", json!(min)),
        ("max", json!(max)),
        ("rounds", json!(row.rounds)),
        ("prompt", json!(prompt)),
    ])
}
