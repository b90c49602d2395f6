//! The page of a run.

use std::collections::BTreeMap;

use charts::{Figure as Drawing, Panel, number};
use serde_json::Value;

use super::facts;
use super::markup::{self, Cell, Chart, Table};
use super::pictures::{FOUR, Measure, Pictures, absent};
use super::view::{self, Figure, Row, Run};
use crate::failure::Result;

/// Rows of the table, as in the terminal.
const TABLE: [(&str, &str); 5] = [
    ("load", "Model Load (s)"),
    ("cold_start", "Cold Start (ms)"),
    ("latency", "Steady-State Latency (ms)"),
    ("throughput", "Average Throughput (tok/s)"),
    ("peak_memory", "Peak Memory (GB)"),
];

/// `report` is the text of `report.json`; `gaps` every latency by framework.
pub(super) fn html(run: &Run, report: &str, gaps: &BTreeMap<String, Vec<f64>>) -> Result<String> {
    let pictures = Pictures::of(run);
    let mut body = header(run);
    body += &markup::section("Result", &(result(run).html() + &legend(run)));
    body += &markup::section("Verdicts", &markup::list(&verdicts(run)));
    body += &states(run);
    body += &markup::section("Side by side", &markup::charts(&side_by_side(run, &pictures))?);
    body += &markup::section("From the first iteration on", &markup::charts(&curves(run, &pictures))?);
    body += &markup::section("Latency of every token", &markup::charts(&latencies(run, &pictures, gaps))?);
    body += &markup::section("Memory by part", &memory(run, &pictures)?);
    body += &markup::section("By prompt", &facts::prompts(run));
    body += &markup::section("Fairness rules", &facts::rules(run));
    body += &markup::section("More", &markup::list(&run.summary.details));
    body += &markup::section("Environment", &facts::environment(run));
    body += &markup::section("To repeat it", &markup::command(&run.environment.command));
    body += &markup::section("Raw data", &facts::data(report));
    Ok(markup::document(&title(run), &body))
}

pub(super) fn title(run: &Run) -> String {
    let names: Vec<&str> = run.rows.iter().map(|row| row.framework.as_str()).collect();
    let names = match names.as_slice() {
        [] => "No framework".to_owned(),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    };
    let model = if run.model.name.is_empty() { &run.plan.model } else { &run.model.name };
    format!("{names} on {model}")
}

pub(super) fn subtitle(run: &Run) -> String {
    if !run.summary.heading.is_empty() {
        return format!("{}, {}", run.summary.heading, run.plan.precision);
    }
    let (plan, cpu) = (&run.plan, run.environment.rest.get("cpu").and_then(Value::as_str));
    let threads = if plan.threads == 1 { "thread" } else { "threads" };
    let rounds = if run.rounds == 1 { "round" } else { "rounds" };
    format!(
        "{} on {} with {} {threads}: {} new tokens, {} {rounds}",
        plan.precision,
        cpu.unwrap_or(&plan.device),
        plan.threads,
        plan.new_tokens,
        run.rounds
    )
}

fn header(run: &Run) -> String {
    let started = run.environment.started.split('.').next().unwrap_or_default().replace('T', " ");
    let answers: String = answers(run)
        .iter()
        .map(|answer| format!("<p class=\"answer\">{}</p>\n", markup::text(answer)))
        .collect();
    format!(
        "<header>\n<h1>{}</h1>\n<p class=\"muted\">{}<br />{} UTC</p>\n{answers}</header>\n",
        markup::text(&title(run)),
        markup::text(&subtitle(run)),
        markup::text(started.trim_end_matches('Z'))
    )
}

/// What was found, a sentence each: the significant differences in throughput, or that there is none to claim.
fn answers(run: &Run) -> Vec<String> {
    let mut answers = Vec::new();
    if run.interrupted {
        answers.push("Interrupted: the figures are those of the rounds that were done.".to_owned());
    }
    let compared: Vec<_> = run.comparisons.iter().filter(|found| found.metric == "throughput").collect();
    let clear = compared.iter().filter(|found| ["faster", "equivalent"].contains(&found.verdict.as_str()));
    answers.extend(clear.map(|found| found.sentence.clone()));
    if compared.iter().all(|found| found.verdict == "inconclusive") && !compared.is_empty() {
        answers.push("Inconclusive: these figures do not support a claim that one is faster.".to_owned());
    } else if compared.iter().any(|found| found.verdict == "not_measurable") {
        answers.push("Not measurable: the machine was too noisy for a verdict.".to_owned());
    } else if compared.is_empty() {
        let measured = run.rows.iter().filter(|row| row.is_measured()).count();
        answers.push(match measured {
            0 => "Nothing could be measured.".to_owned(),
            1 => "One framework was measured: there is nothing to compare it with.".to_owned(),
            _ => "No two frameworks could be compared.".to_owned(),
        });
    }
    answers
}

fn result(run: &Run) -> Table {
    let mut table = Table {
        caption: "Median over processes; below it the 95 % interval of that median, where there are rounds enough for one".into(),
        columns: [String::new()].into_iter().chain(run.rows.iter().map(|row| row.framework.clone())).collect(),
        rows: Vec::new(),
        figures: true,
    };
    for (metric, title) in TABLE {
        let cells = run.rows.iter().map(|row| cell(row, row.figure(metric)));
        table.rows.push([Cell::from(title)].into_iter().chain(cells).collect());
    }
    let precision = |row: &Row| match &row.precision.observed {
        Some(observed) if *observed != row.precision.requested => {
            Cell { main: observed.clone(), small: format!("asked: {}", row.precision.requested) }
        }
        _ => row.precision.requested.clone().into(),
    };
    let parity = |row: &Row| match (&row.agreement, row.state.as_str()) {
        (Some(agreement), _) if agreement.broken.is_some() => Cell::from("BROKEN"),
        (Some(agreement), _) => match agreement.max_abs {
            Some(0.0) => "ok, Δ = 0".into(),
            Some(largest) => format!("ok, Δ ≤ {largest:.0e}").into(),
            None => "ok".into(),
        },
        (None, "measured" | "labelled" | "struck") => "not checked".into(),
        (None, state) => state.replace('_', " ").into(),
    };
    table.rows.push([Cell::from("Precision")].into_iter().chain(run.rows.iter().map(precision)).collect());
    table.rows.push([Cell::from("Parity")].into_iter().chain(run.rows.iter().map(parity)).collect());
    table
}

fn cell(row: &Row, figure: Option<&Figure>) -> Cell {
    match figure.and_then(|figure| Some((figure, figure.median?))) {
        Some((figure, median)) => Cell {
            main: number(median),
            small: figure
                .interval()
                .map_or(String::new(), |(low, high)| format!("{} – {}", number(low), number(high))),
        },
        None if row.rounds == 0 => "–".into(),
        None => "not available".into(),
    }
}

fn legend(run: &Run) -> String {
    let of_row = |row: &Row| {
        let hello = row.hello.as_ref()?;
        let binding =
            if hello.binding == hello.library { String::new() } else { format!(" ({})", hello.binding) };
        Some(format!("{}: {}{binding}", row.framework, hello.library))
    };
    let libraries: Vec<String> = run.rows.iter().filter_map(of_row).collect();
    if libraries.is_empty() {
        String::new()
    } else {
        format!("<p class=\"muted\">{}</p>\n", markup::text(&libraries.join("; ")))
    }
}

fn verdicts(run: &Run) -> Vec<String> {
    if !run.summary.verdicts.is_empty() {
        return run.summary.verdicts.clone();
    }
    let told = run
        .comparisons
        .iter()
        .filter(|found| found.metric == "throughput" || found.verdict != "inconclusive");
    told.map(|found| found.sentence.clone()).collect()
}

/// Who has no figures or is out of the ranking, and what is to be known before believing the rest.
fn states(run: &Run) -> String {
    let mut lines = Vec::new();
    for row in run.rows.iter().filter(|row| row.state != "measured") {
        let word =
            if row.state == "labelled" { "not matched".to_owned() } else { row.state.replace('_', " ") };
        lines.extend(row.reasons.iter().map(|reason| format!("{} {word}: {reason}", row.framework)));
    }
    lines.extend(run.sanity.iter().map(|flag| format!("impossible: {}: {}", flag.framework, flag.finding)));
    lines.extend(run.warnings.iter().cloned());
    if lines.is_empty() {
        return String::new();
    }
    let list = markup::list(&lines);
    let body =
        if lines.len() > 6 { markup::details(&format!("{} warnings", lines.len()), &list) } else { list };
    format!("<section class=\"warnings\">\n<h2>Warnings</h2>\n{body}</section>\n")
}

fn side_by_side(run: &Run, pictures: &Pictures<'_>) -> Vec<Chart> {
    let chart = |measure: &'static Measure| Chart {
        id: measure.metric.into(),
        title: measure.title.into(),
        description: "A bar for the median of each framework, a whisker for its 95 % interval, a dot for each process",
        figure: Drawing::single(Panel::Bars(pictures.bars(measure))),
        height: bars_height(run.rows.len()),
        table: Some(by_process(run, measure)),
    };
    if run.rows.is_empty() { Vec::new() } else { FOUR.iter().map(chart).collect() }
}

pub(super) fn bars_height(bars: usize) -> u32 {
    70 + 42 * bars.clamp(1, 40) as u32
}

fn by_process(run: &Run, measure: &Measure) -> Table {
    let rounds =
        run.rows.iter().filter_map(|row| Some(row.figure(measure.metric)?.values.len())).max().unwrap_or(0);
    let columns = ["Framework", "Median", "95 % interval"].map(str::to_owned).into_iter();
    let row = |row: &Row| {
        let figure = row.figure(measure.metric);
        let median = figure.and_then(|figure| figure.median).map_or_else(|| absent(row), number);
        let interval = figure.and_then(Figure::interval);
        let interval =
            interval.map_or("–".into(), |(low, high)| format!("{} – {}", number(low), number(high)));
        let values = (0..rounds).map(|round| {
            let value = figure.and_then(|figure| figure.values.get(round).copied().flatten());
            Cell::from(value.map_or("–".into(), number))
        });
        [row.framework.clone(), median, interval].map(Cell::from).into_iter().chain(values).collect()
    };
    Table {
        caption: format!("{}, by round", measure.row),
        columns: columns.chain((1..=rounds).map(|round| round.to_string())).collect(),
        rows: run.rows.iter().map(row).collect(),
        figures: true,
    }
}

/// A figure of an iteration, where it has one.
type OfPoint = fn(&view::CurvePoint) -> Option<f64>;

fn curves(run: &Run, pictures: &Pictures<'_>) -> Vec<Chart> {
    let longest = run.rows.iter().map(|row| row.steadiness.curve.len()).max().unwrap_or(0);
    if longest < 2 {
        return Vec::new();
    }
    let curves: [(&'static str, &'static str, OfPoint); 2] = [
        ("curve-gap", "Time per token", |point| point.gap_ms),
        ("curve-first", "Time to first token", |point| point.first_token_ms),
    ];
    let with = |(id, title, value): (&'static str, &'static str, OfPoint)| Chart {
        id: id.into(),
        title: title.into(),
        description: "A line for each framework over the iterations of a process, medians over processes; warm-up is shaded",
        figure: Drawing::single(Panel::Lines(pictures.curve(title, value))),
        height: 290,
        table: Some(Table {
            caption: format!("{title} (ms) by iteration, median over processes"),
            columns: [String::new()]
                .into_iter()
                .chain((1..=longest).map(|iteration| iteration.to_string()))
                .collect(),
            rows: run
                .rows
                .iter()
                .filter(|row| !row.steadiness.curve.is_empty())
                .map(|row| {
                    let values = row
                        .steadiness
                        .curve
                        .iter()
                        .map(|point| Cell::from(value(point).map_or("–".into(), number)));
                    [Cell::from(row.framework.clone())].into_iter().chain(values).collect()
                })
                .collect(),
            figures: true,
        }),
    };
    let all_known = |value: OfPoint| {
        run.rows.iter().flat_map(|row| &row.steadiness.curve).any(|point| value(point).is_some())
    };
    curves.into_iter().filter(|(_, _, value)| all_known(*value)).map(with).collect()
}

fn latencies(run: &Run, pictures: &Pictures<'_>, gaps: &BTreeMap<String, Vec<f64>>) -> Vec<Chart> {
    let (spread, ecdf) = pictures.latencies(gaps);
    if spread.samples.is_empty() {
        return Vec::new();
    }
    let rows = spread.samples.iter().map(|sample| {
        let of = |share: f64| statistics::quantile(&sample.values, share).map_or("–".to_owned(), number);
        let shares = [0.0, 0.5, 0.9, 0.99, 1.0].map(of);
        [sample.label.clone(), sample.values.len().to_string()]
            .into_iter()
            .chain(shares)
            .map(Cell::from)
            .collect()
    });
    let table = Table {
        caption: "Gaps between tokens of the measured iterations of all processes (ms)".into(),
        columns: ["Framework", "Gaps", "Least", "Median", "p90", "p99", "Most"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
        figures: true,
    };
    let count = spread.samples.len().min(run.rows.len()) as u32;
    let drawn = [
        (Panel::Spread(spread), "spread", "Every gap between tokens", 90 + 56 * count),
        (Panel::Ecdf(ecdf), "ecdf", "Share of tokens within a time", 290),
    ];
    let mut tables = [Some(table), None].into_iter();
    drawn.map(|(panel, id, title, height)| Chart {
        id: id.into(),
        title: title.into(),
        description: "The distribution of the time between successive tokens, every one of them, for each framework",
        figure: Drawing::single(panel),
        height,
        table: tables.next().flatten(),
    }).into()
}

fn memory(run: &Run, pictures: &Pictures<'_>) -> Result<String> {
    let Some(stack) = pictures.memory() else { return Ok(String::new()) };
    let row = |row: &charts::StackRow| {
        let values = row.values.iter().chain([&row.total]).map(|&value| Cell::from(number(value)));
        [Cell::from(row.label.clone())].into_iter().chain(values).collect()
    };
    let table = Table {
        caption: "Peak memory by part (MB); the parts add up to the peak".into(),
        columns: ["Framework".to_owned()]
            .into_iter()
            .chain(stack.parts.clone())
            .chain(["peak".to_owned()])
            .collect(),
        rows: stack.rows.iter().map(row).collect(),
        figures: true,
    };
    let height = 120 + 46 * run.rows.len().clamp(1, 40) as u32;
    let figure = Drawing::single(Panel::Stack(stack));
    let description = "For each framework, the parts of its peak memory laid end to end up to the peak";
    let chart = Chart {
        id: "parts".into(),
        title: "Peak memory by part".into(),
        description,
        figure,
        height,
        table: None,
    };
    Ok(markup::charts(&[chart])? + &table.html())
}
