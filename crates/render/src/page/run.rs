//! The page of a run: the answer, the figures, the table, every pair; then what proves it.

use std::collections::BTreeMap;

use comparison::judge::Metric;
use comparison::judge::report::generate::{ProcessCurve, Times};
use comparison::judge::report::memory::Parts;
use comparison::judge::report::{Report, State};
use maud::{Markup, html};

use super::{Chart, Look, Shared, Source};
use crate::cite;
use crate::export::{Document, Exporter, Markdown};
use crate::pictures::{Curves, PERCENTILES, Pick, Pictures, absent, reading, title};
use crate::table::{Cell, Table, Tone};
use crate::words::{self, answer, findings, number, or_dash};
use crate::{page, result};

pub(super) fn html(report: &Report, times: &Times) -> Result<String, String> {
    let pictures = Pictures::new(report);
    let Report { environment, .. } = report;
    let json =
        serde_json::to_string(&report.json()).expect("a report has string keys and no failing serialiser");
    let source = Source {
        commit: environment.git_commit.as_deref(),
        modified: environment.git_modified == Some(true),
        seed: Some(report.plan.seed),
    };
    let title = title(report);
    let body = html! {
        (page::header(&title, "", &environment.started, &answer::sentences(report)))
        (page::section("Side by side", &page::charts(&side_by_side(report, &pictures))?))
        (page::section("Result", &result(report)))
        (page::warnings(&warnings(report)))
        (page::section("Every pair", &pairs(report, &pictures)?))
        (page::section("The evidence", &html! {
            (page::paragraph(&report.plan.analysis))
            (page::details("Request by request", &over_time(report, &pictures, times)?))
            (page::details("Memory by part", &memory(report)))
            (page::details("Every verdict", &page::list(sentences(report))))
            (page::rules(report))
            (page::prompts(report))
            (page::details("What else was measured", &html! {
                @if let Some(table) = findings::table(report, false) { (table) }
                (page::list(findings::facts(report)))
            }))
            (page::details("Versions and environment", &html! {
                (page::versions(report))
                (page::environment(report))
            }))
        }))
        (page::section("To repeat it", &html! {
            (page::to_repeat(&environment.command, source, page::REPOSITORY))
            @if let Some(digest) = cite::digest(report) { (page::paragraph(&digest)) }
        }))
        (page::section("Raw data", &page::data(&json, &FILES)))
    };
    let shared =
        Shared { title: &answer::brief(report), description: &answer::about(report), image: Some(FILES[2]) };
    Ok(page::document(&title, &shared, &body))
}

/// The files of a run beside its page and reports.
const FILES: [&str; 5] = ["comparison.png", "comparison.svg", "preview.png", "plan.json", "samples.jsonl"];

/// The verdict on every metric of every pair, after what belongs to several.
pub(super) fn sentences(report: &Report) -> Vec<String> {
    let summary = words::summary(report);
    let others = summary.notes.into_iter().filter(|line| !line.qualifies);
    others.chain(summary.verdicts).map(|line| line.text).collect()
}

fn pairs(report: &Report, pictures: &Pictures<'_>) -> Result<Markup, String> {
    let chart = |metric: Metric| Chart {
        id: format!("pairs-{}", metric.name()),
        title: format!("{}, pair by pair", metric.title()),
        description: "A row for each pair of contenders: how many times better the first is, with its interval, on a \
                          logarithmic axis. The grey band counts as equal; only decided pairs have a colour",
        panel: pictures.forest(metric, pictures.pairs(metric)),
        // The list of every verdict has them in words.
        table: None,
    };
    let asked = Metric::questions(report.plan.work.kind());
    let (shown, folded): (Vec<Metric>, Vec<Metric>) =
        pictures.compared().into_iter().partition(|metric| asked.contains(metric));
    let [shown, folded] = [shown, folded].map(|metrics| metrics.into_iter().map(chart).collect::<Vec<_>>());
    let caption = format!(
        "How many times better the first of two is, with its interval, on a logarithmic axis. {}",
        reading(report.plan.margin)
    );
    Ok(html! {
        @if !shown.is_empty() { p class="caption" { (caption) } }
        (page::charts(&shown)?)
        (page::details("Every pair in the other metrics", &page::charts(&folded)?))
    })
}

/// The table of the comparison, the same against each contender, and the lines that explain it.
pub(super) fn result(report: &Report) -> Markup {
    let rows = report.rows.iter().filter(|row| row.state.takes_part() && answer::has_verdicts(report));
    let baselines: Vec<&str> = rows.map(|row| row.framework.as_str()).collect();
    let columns: Vec<usize> = page::struck(&report.rows).into_iter().map(|place| place + 1).collect();
    let look = Look { struck_columns: columns, ..Look::default() };
    let further = page::looking(&result::further_metrics(report).captioned("Averages over rounds"), &look);
    html! {
        @if baselines.len() < 2 { (against(report, None)) } @else {
            fieldset class="views" {
                legend { "Compare with" }
                @for (place, baseline) in [None].into_iter().chain(baselines.into_iter().map(Some)).enumerate() {
                    @let id = format!("baseline-{place}");
                    input type="radio" name="baseline" id=(id) checked[place == 0];
                    label for=(id) { (baseline.unwrap_or("the best")) }
                    (against(report, baseline))
                }
            }
        }
        @for note in answer::notes(report, usize::MAX).iter().flatten() { p class="caption" { (page::prose(note)) } }
        (page::copied("Copy as Markdown", &Markdown::Short.export(report)))
        (page::details("Further metrics", &further))
    }
}

/// The table; its marks compare with the best, or with a baseline.
fn against(report: &Report, baseline: Option<&str>) -> Markup {
    let mut table = answer::in_full(report, baseline);
    let is_struck = |cell: &Cell| cell.tone == Tone::Struck;
    let rows = table.rows.iter().enumerate().filter(|(_, row)| is_struck(&row[0])).map(|(place, _)| place);
    let head = table.rows.first().into_iter().flatten().enumerate().skip(1);
    let struck_columns = head.filter(|(_, cell)| is_struck(cell)).map(|(place, _)| place).collect();
    let look = match rows.collect::<Vec<_>>() {
        _ if table.columns[0].title.main.is_empty() => Look { struck_columns, ..Look::default() },
        struck_rows => Look { struck_rows, ..Look::default() },
    };
    table.caption = match baseline {
        None => "Averages over rounds, and how many times worse than the best".into(),
        Some(baseline) => {
            let margin = 100.0 * report.plan.margin;
            format!(
                "Averages over rounds, compared with {baseline}; =: equal within {margin} %; ~: not decided"
            )
        }
    };
    page::looking(&table, &look)
}

/// Frameworks without figures or outside the ranking, and warnings that qualify the rest.
pub(super) fn warnings(report: &Report) -> Vec<String> {
    let notes = words::summary(report).notes.into_iter().filter(|line| line.qualifies).map(|line| line.text);
    notes.chain(words::verdicts::warnings(report)).collect()
}

fn side_by_side(report: &Report, pictures: &Pictures<'_>) -> Vec<Chart> {
    let chart = |metric: Metric| Chart {
        id: metric.name().into(),
        title: metric.title().into(),
        description: "For each framework, the best first: a mark for each process, a bar for their geometric mean, and how \
                      many times worse than the best it is, where that is decided",
        panel: pictures.dots(metric),
        table: Some(by_round(report, metric)),
    };
    if report.rows.is_empty() { Vec::new() } else { pictures.drawn().into_iter().map(chart).collect() }
}

fn by_round(report: &Report, metric: Metric) -> Table {
    let rounds =
        report.rows.iter().filter_map(|row| Some(row.figure(metric)?.values.len())).max().unwrap_or(0);
    let titles = (1..=rounds).map(|round| round.to_string());
    let mut table = Table::of(["Framework"], ["Geometric mean".to_owned()].into_iter().chain(titles));
    for row in &report.rows {
        let mean = row.typical(metric).map_or_else(|| absent(row.state).to_owned(), number);
        let value = |round: usize| row.figure(metric)?.values.get(round).copied().flatten();
        let values = (0..rounds).map(|round| or_dash(value(round), number));
        table.push([words::title(row), mean], values);
    }
    table.captioned(format!("{}, by round", metric.title()))
}

fn memory(report: &Report) -> Markup {
    let columns = Parts::NAMES.into_iter().chain(["peak", "of weights + KV cache"]);
    let mut table = Table::of(["Framework"], columns.map(|name| name.replace('_', " ")));
    let mut struck = Vec::new();
    for row in &report.rows {
        let Some(parts) = &row.memory else { continue };
        if row.state == State::Struck {
            struck.push(table.rows.len());
        }
        let bytes = parts.summands().map(|(_, bytes)| bytes).into_iter().chain([parts.peak]);
        let times = or_dash(parts.times_needed, |times| format!("{times:.2}x"));
        table.push([words::title(row)], bytes.map(|bytes| number(bytes / 1e6)).chain([times]));
    }
    let (title, whose) = match report.plan.is_on_gpu() {
        true => ("Memory of the host by part", "of the host, in addition to the GPU’s"),
        false => ("Peak memory by part", "the parts add up to the peak"),
    };
    let table = table.captioned(format!("{title} (MB); {whose}"));
    let look = Look { struck_rows: struck, ..Look::default() };
    html! { @if !table.rows.is_empty() { (page::looking(&table, &look)) (on_gpu(report)) } }
}

/// Memory of the GPU by part, and by phase.
fn on_gpu(report: &Report) -> Markup {
    let rows = report.rows.iter();
    let known: Vec<_> =
        rows.filter_map(|row| Some((row, row.memory.as_ref()?.gpu_parts.as_ref()?))).collect();
    let Some((_, first)) = known.first() else { return Markup::default() };
    let mb = |bytes: Option<f64>| or_dash(bytes.map(|bytes| bytes / 1e6), number);
    let names = first.summands().map(|(name, _)| name);
    let mut parts = Table::of(["Framework"], names.into_iter().chain(["peak", "mean", "weights file"]));
    let phases = first.phases.iter().flat_map(|phase| {
        ["held", "allocated", "at most"].map(|what| format!("{}: {what}", phase.phase.as_str()))
    });
    let mut by_phase = Table::of(["Framework"], phases);
    for (row, told) in &known {
        let ends = [Some(told.peak), told.mean, Some(told.weights_file)];
        let bytes = told.summands().map(|(_, bytes)| bytes).into_iter().chain(ends);
        parts.push([words::title(row)], bytes.map(mb));
        let readings = told.phases.iter().flat_map(|phase| [phase.held, phase.in_use, phase.peak]);
        by_phase.push([words::title(row)], readings.map(mb));
    }
    let parts = parts.captioned("Memory of the GPU by part (MB); the first four add up to the peak");
    let by_phase = by_phase.captioned("Memory of the GPU after each phase (MB)");
    html! { (parts) (by_phase) }
}

// The parts of the page that one kind of work alone has.

// The times of requests that go token by token, request by request.

/// The times of iterations, and the slowest gaps.
pub(in crate::page) fn over_time(
    report: &Report,
    pictures: &Pictures<'_>,
    times: &Times,
) -> Result<Markup, String> {
    let curves: Vec<Chart> = curves_of(report, pictures, &times.curves);
    let tail = tail(report, pictures, &times.gaps_ms);
    let (shown, folded): (Vec<Chart>, Vec<Chart>) =
        curves.into_iter().partition(|chart| tail.is_none() || chart.id != FIRST_TOKENS);
    let shown: Vec<Chart> = shown.into_iter().chain(tail).collect();
    Ok(html! {
        (page::charts(&shown)?)
        (page::details("Time to first token by iteration", &page::charts(&folded)?))
    })
}

const FIRST_TOKENS: &str = "curve-first";

fn curves_of(report: &Report, pictures: &Pictures<'_>, curves: &Curves) -> Vec<Chart> {
    let longest = |process: &ProcessCurve| process.iterations.len();
    if curves.values().flatten().map(longest).max().unwrap_or(0) < 2 {
        return Vec::new();
    }
    let all: [(&str, Metric, Pick); 2] = [
        ("curve-gap", Metric::Latency, |times| times.gap_ms),
        (FIRST_TOKENS, Metric::FirstToken, |times| times.first_token_ms),
    ];
    let is_known =
        |pick: Pick| curves.values().flatten().flat_map(|curve| &curve.iterations).any(|t| pick(t).is_some());
    let known = all.into_iter().filter(|(_, _, pick)| is_known(*pick));
    let chart = |(id, metric, pick): (&str, Metric, Pick)| {
        // The metric itself covers only the measured iterations, so its short title is used here.
        let title = metric.short_title();
        Chart {
            id: id.into(),
            description: "A thin line for each process over its iterations, with a mark at both ends; warm-up \
                          is shaded",
            panel: pictures.curve(curves, title, pick),
            table: Some(by_iteration(report, metric)),
            title: title.to_owned(),
        }
    };
    known.map(chart).collect()
}

/// Medians over processes.
fn by_iteration(report: &Report, metric: Metric) -> Table {
    let longest = report.rows.iter().map(|row| row.steadiness.curve.len()).max().unwrap_or(0);
    let mut table = Table::of(["Framework"], (1..=longest).map(|iteration| iteration.to_string()));
    for row in report.rows.iter().filter(|row| !row.steadiness.curve.is_empty()) {
        let curve = &row.steadiness.curve;
        let values = (0..longest).map(|at| {
            let point = curve.get(at);
            let value = match metric {
                Metric::FirstToken => point.map(|point| point.first_token_ms),
                _ => point.and_then(|point| point.gap_ms),
            };
            or_dash(value, number)
        });
        table.push([words::title(row)], values);
    }
    table.captioned(format!("{} by iteration, median over processes", metric.short_title()))
}

fn tail(report: &Report, pictures: &Pictures<'_>, gaps: &BTreeMap<String, Vec<f64>>) -> Option<Chart> {
    let titles = ["Gaps"].into_iter().chain(PERCENTILES.map(|(_, name)| name));
    let mut table = Table::of(["Framework"], titles);
    for row in &report.rows {
        let Some(gaps) = gaps.get(&row.framework).filter(|gaps| !gaps.is_empty()) else { continue };
        let shares = PERCENTILES.map(|(share, _)| or_dash(statistics::quantile(gaps, share), number));
        table.push([words::title(row), gaps.len().to_string()], shares);
    }
    let panel = pictures.tail(gaps);
    (!table.rows.is_empty()).then(|| Chart {
        id: "tail".into(),
        title: panel.title.clone(),
        description: "For each framework, a mark for each percentile of its gaps between tokens, on a logarithmic axis of \
                      times: at p99, one gap in a hundred is longer",
        panel,
        table: Some(table.captioned("Gaps between tokens of the measured requests of all processes (ms)")),
    })
}
