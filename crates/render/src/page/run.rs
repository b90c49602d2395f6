//! The page of a run.

use std::collections::BTreeMap;

use charts::{Figure as Drawing, Panel, number};
use judge::Metric;
use judge::curve::Point;
use judge::report::{Report, Row, State};
use judge::verdicts::Verdict;
use maud::{Markup, html};

use super::facts;
use super::html::{self, Chart};
use crate::comparison;
use crate::pictures::run::{FOUR, Pictures, absent, subtitle, title};
use crate::table::{Column, Table};
use crate::words::{self, or_dash};

/// The page; `gaps` has every time between two tokens by framework, in milliseconds.
pub(super) fn html(report: &Report, gaps: &BTreeMap<String, Vec<f64>>) -> Result<String, String> {
    let pictures = Pictures::new(report);
    let Report { environment, summary, .. } = report;
    let json = serde_json::to_string(report).expect("a report has string keys and no failing serialiser");
    let body = html! {
        (html::header(&title(report), &subtitle(report), &environment.started, &answers(report)))
        (html::section("Result", &result(report)))
        (html::section("Verdicts", &html::list(&summary.verdicts)))
        (warnings(report))
        (html::section("Side by side", &html::charts(&side_by_side(report, &pictures))?))
        (html::section("From the first iteration on", &html::charts(&curves(report, &pictures))?))
        (html::section("Latency of every token", &html::charts(&latencies(report, &pictures, gaps))?))
        (html::section("Memory by part", &memory(report, &pictures)?))
        (html::section("By prompt", &facts::prompts(report)))
        (html::section("Fairness rules", &facts::rules(report)))
        (html::section("More", &html::list(&summary.details)))
        (html::section("Environment", &html! { (facts::environment(report)) }))
        (html::section("To repeat it", &html::command(&environment.command)))
        (html::section("Raw data", &html::data(&json)))
    };
    Ok(html::document(&title(report), &body))
}

/// The findings, one sentence each: the significant differences in throughput, or that there is none.
fn answers(report: &Report) -> Vec<String> {
    let mut answers = Vec::new();
    if report.interrupted {
        answers.push("Interrupted: the figures are those of the rounds that were done.".to_owned());
    }
    let compared: Vec<_> =
        report.comparisons.iter().filter(|found| found.metric == Metric::Throughput).collect();
    let is_clear = |verdict: Verdict| matches!(verdict, Verdict::Faster | Verdict::Equivalent);
    let clear = compared.iter().filter(|found| is_clear(found.verdict));
    answers.extend(clear.map(|found| found.sentence.clone()));
    if compared.iter().all(|found| found.verdict == Verdict::Inconclusive) && !compared.is_empty() {
        answers.push("Inconclusive: these figures do not support a claim that one is faster.".to_owned());
    } else if compared.iter().any(|found| found.verdict == Verdict::NotMeasurable) {
        answers.push("Not measurable: the machine was too noisy for a verdict.".to_owned());
    } else if compared.is_empty() {
        let measured = report.rows.iter().filter(|row| row.state.has_figures()).count();
        answers.push(match measured {
            0 => "Nothing could be measured.".to_owned(),
            1 => "One framework was measured: there is nothing to compare it with.".to_owned(),
            _ => "No two frameworks could be compared.".to_owned(),
        });
    }
    answers
}

/// The table of the comparison, and the hardware.
fn result(report: &Report) -> Markup {
    let caption = "Median over processes; below it the 95 % interval of that median, where there are rounds enough \
                   for one";
    let library = |row: &Row| {
        let hello = row.hello.as_ref()?;
        let binding =
            if hello.binding == hello.library { String::new() } else { format!(" ({})", hello.binding) };
        Some(format!("{}: {}{binding}", row.framework, hello.library))
    };
    let libraries: Vec<String> = report.rows.iter().filter_map(library).collect();
    html! {
        (comparison::grid(report, true).captioned(caption))
        @if !libraries.is_empty() { p class="muted" { (libraries.join("; ")) } }
        (html::details("Further metrics", &html! { (comparison::further_metrics(report).captioned(caption)) }))
    }
}

/// Frameworks without figures or outside the ranking, and warnings that qualify the rest.
fn warnings(report: &Report) -> Markup {
    let mut lines = Vec::new();
    for row in report.rows.iter().filter(|row| row.state != State::Measured) {
        let words = row.state.words();
        lines.extend(row.reasons.iter().map(|reason| format!("{} {words}: {reason}", row.framework)));
    }
    lines
        .extend(report.sanity.iter().map(|flag| format!("impossible: {}: {}", flag.framework, flag.finding)));
    lines.extend(report.warnings.iter().cloned());
    let list = html::list(&lines);
    html! {
        @if !lines.is_empty() {
            section class="warnings" {
                h2 { "Warnings" }
                @if lines.len() > 6 { (html::details(&format!("{} warnings", lines.len()), &list)) }
                @else { (list) }
            }
        }
    }
}

fn side_by_side(report: &Report, pictures: &Pictures<'_>) -> Vec<Chart> {
    let chart = |metric: Metric| Chart {
        id: metric.name().into(),
        title: metric.title().into(),
        description: "A bar for the median of each framework, a whisker for its 95 % interval, a dot for each process",
        figure: Drawing::single(Panel::Bars(pictures.bars(metric))),
        height: html::bars_height(report.rows.len()),
        table: Some(by_round(report, metric)),
    };
    if report.rows.is_empty() { Vec::new() } else { FOUR.map(chart).into() }
}

fn by_round(report: &Report, metric: Metric) -> Table {
    let figure = |row: &Row| row.metrics.iter().find(|figure| figure.metric == metric).cloned();
    let rounds = report.rows.iter().filter_map(|row| Some(figure(row)?.values.len())).max().unwrap_or(0);
    let titles = ["Median", "95 % interval"].map(str::to_owned).into_iter();
    let titles = titles.chain((1..=rounds).map(|round| round.to_string())).map(Column::right);
    let mut table = Table::new([Column::left("Framework")].into_iter().chain(titles));
    for row in &report.rows {
        let figure = figure(row);
        let median = figure.as_ref().and_then(|figure| figure.median);
        let interval = figure.as_ref().and_then(words::interval);
        let start = [
            row.framework.clone(),
            median.map_or_else(|| absent(row.state).to_owned(), number),
            or_dash(interval, |interval| words::range(Some(interval))),
        ];
        let values = (0..rounds).map(|round| {
            or_dash(figure.as_ref().and_then(|figure| figure.values.get(round).copied().flatten()), number)
        });
        table.add(start.into_iter().chain(values));
    }
    table.captioned(format!("{}, by round", metric.title()))
}

/// A figure of an iteration, if it has one.
type Pick = fn(&Point) -> Option<f64>;

fn curves(report: &Report, pictures: &Pictures<'_>) -> Vec<Chart> {
    let longest = report.rows.iter().map(|row| row.steadiness.curve.len()).max().unwrap_or(0);
    if longest < 2 {
        return Vec::new();
    }
    let curves: [(&str, Metric, Pick); 2] = [
        ("curve-gap", Metric::Latency, |point| point.gap_ms),
        ("curve-first", Metric::FirstToken, |point| Some(point.first_token_ms)),
    ];
    let is_known = |pick: Pick| {
        report.rows.iter().flat_map(|row| &row.steadiness.curve).any(|point| pick(point).is_some())
    };
    let known = curves.into_iter().filter(|(_, _, pick)| is_known(*pick));
    known.map(|(id, metric, pick)| curve(report, pictures, (id, metric, pick), longest)).collect()
}

fn curve(
    report: &Report,
    pictures: &Pictures<'_>,
    (id, metric, pick): (&str, Metric, Pick),
    longest: usize,
) -> Chart {
    // The metric itself covers only the measured iterations, so its short title is used here.
    let title = metric.short_title();
    let iterations = (1..=longest).map(|iteration| Column::right(iteration.to_string()));
    let mut table = Table::new([Column::left("Framework")].into_iter().chain(iterations));
    for row in report.rows.iter().filter(|row| !row.steadiness.curve.is_empty()) {
        let curve = &row.steadiness.curve;
        let values = (0..longest).map(|at| or_dash(curve.get(at).and_then(pick), number));
        table.add([row.framework.clone()].into_iter().chain(values));
    }
    Chart {
        id: id.into(),
        description: "A line for each framework over the iterations of a process, medians over processes; warm-up is shaded",
        figure: Drawing::single(Panel::Lines(pictures.curve(title, pick))),
        height: 290,
        table: Some(table.captioned(format!("{title} by iteration, median over processes"))),
        title: title.to_owned(),
    }
}

fn latencies(report: &Report, pictures: &Pictures<'_>, gaps: &BTreeMap<String, Vec<f64>>) -> Vec<Chart> {
    let (spread, ecdf) = pictures.latencies(gaps);
    if spread.samples.is_empty() {
        return Vec::new();
    }
    let titles = ["Gaps", "Least", "Median", "p90", "p99", "Most"].map(Column::right);
    let mut table = Table::new([Column::left("Framework")].into_iter().chain(titles));
    for sample in &spread.samples {
        let shares = [0.0, 0.5, 0.9, 0.99, 1.0]
            .map(|share| or_dash(statistics::quantile(&sample.values, share), number));
        table.add([sample.label.clone(), sample.values.len().to_string()].into_iter().chain(shares));
    }
    let table = table.captioned("Gaps between tokens of the measured iterations of all processes (ms)");
    let chart = |id: &str, title: &str, panel: Panel, height: u32, table: Option<Table>| Chart {
        id: id.into(),
        title: title.into(),
        description: "The distribution of the time between successive tokens, every one of them, for each framework",
        figure: Drawing::single(panel),
        height,
        table,
    };
    let high = 90 + 56 * spread.samples.len().min(report.rows.len()) as u32;
    let (every, share) = (spread.title.clone(), ecdf.title.clone());
    vec![
        chart("spread", &every, Panel::Spread(spread), high, Some(table)),
        chart("ecdf", &share, Panel::Ecdf(ecdf), 290, None),
    ]
}

fn memory(report: &Report, pictures: &Pictures<'_>) -> Result<Markup, String> {
    let Some(stack) = pictures.memory() else { return Ok(Markup::default()) };
    let parts = stack.parts.iter().map(String::as_str).chain(["peak"]).map(Column::right);
    let mut table = Table::new([Column::left("Framework")].into_iter().chain(parts));
    for row in &stack.rows {
        let values = row.values.iter().chain([&row.total]).map(|&value| number(value));
        table.add([row.label.clone()].into_iter().chain(values));
    }
    let chart = Chart {
        id: "parts".into(),
        title: stack.title.clone(),
        description: "For each framework, the parts of its peak memory laid end to end up to the peak",
        figure: Drawing::single(Panel::Stack(stack)),
        height: 120 + 46 * report.rows.len().clamp(1, 40) as u32,
        table: None,
    };
    let table = table.captioned("Peak memory by part (MB); the parts add up to the peak");
    Ok(html! { (html::charts(&[chart])?) (table) })
}
