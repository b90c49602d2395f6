//! The times of requests that go token by token, request by request.

use std::collections::BTreeMap;

use charts::{Panel, number};
use judge::Metric;
use judge::report::Report;
use judge::report::work::generate::Times;
use judge::report::work::generate::curve::ProcessCurve;
use maud::{Markup, html};

use crate::page::html::{self, Chart};
use crate::pictures::run::Pictures;
use crate::pictures::work::generate::{Curves, Pick};
use crate::table::{Column, Table};
use crate::words::{self, or_dash};

/// The times of iterations, and the slowest gaps.
pub(in super::super) fn over_time(
    report: &Report,
    pictures: &Pictures<'_>,
    times: &Times,
) -> Result<Markup, String> {
    let curves: Vec<Chart> = curves_of(report, pictures, &times.curves);
    let tail = tail(pictures, &times.gaps_ms);
    let (shown, folded): (Vec<Chart>, Vec<Chart>) =
        curves.into_iter().partition(|chart| tail.is_none() || chart.id != FIRST_TOKENS);
    let shown: Vec<Chart> = shown.into_iter().chain(tail).collect();
    Ok(html! {
        (html::charts(&shown)?)
        (html::details("Time to first token by iteration", &html::charts(&folded)?))
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
            panel: Panel::Strands(pictures.curve(curves, title, pick)),
            table: Some(by_iteration(report, metric)),
            title: title.to_owned(),
        }
    };
    known.map(chart).collect()
}

/// Medians over processes.
fn by_iteration(report: &Report, metric: Metric) -> Table {
    let longest = report.rows.iter().map(|row| row.steadiness.curve.len()).max().unwrap_or(0);
    let iterations = (1..=longest).map(|iteration| Column::right(iteration.to_string()));
    let mut table = Table::new([Column::left("Framework")].into_iter().chain(iterations));
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
        table.add([words::title(row)].into_iter().chain(values));
    }
    table.captioned(format!("{} by iteration, median over processes", metric.short_title()))
}

fn tail(pictures: &Pictures<'_>, gaps: &BTreeMap<String, Vec<f64>>) -> Option<Chart> {
    let survival = pictures.tail(gaps);
    if survival.samples.is_empty() {
        return None;
    }
    let titles = ["Gaps", "Least", "p50", "p90", "p99", "Most"].map(Column::right);
    let mut table = Table::new([Column::left("Framework")].into_iter().chain(titles));
    for sample in &survival.samples {
        let shares = [0.0, 0.5, 0.9, 0.99, 1.0]
            .map(|share| or_dash(statistics::quantile(&sample.values, share), number));
        table.add([sample.label.clone(), sample.values.len().to_string()].into_iter().chain(shares));
    }
    let title = survival.title.clone();
    Some(Chart {
        id: "tail".into(),
        title,
        description: "For each framework, the share of gaps between tokens that take longer than a time, on a logarithmic \
                      axis: the line crosses p99 at the time that one gap in a hundred exceeds",
        panel: Panel::Survival(survival),
        table: Some(table.captioned("Gaps between tokens of the measured requests of all processes (ms)")),
    })
}
