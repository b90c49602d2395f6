//! The change of a figure from the first run to the last, separately for each machine, framework and case.

use history::{Case, Record, Skipped};
use judge::case;
use judge::metrics::Metric;
use judge::report::number;
use serde::Serialize;
use serde_json::json;

use super::{flat, list};
use crate::Format;
use crate::screen::{Screen, Tone};
use crate::table::{Column, Table};
use crate::words::{self, DASH, or_dash};

/// One figure over the runs in which the framework was measured and not struck.
#[derive(Debug, Serialize)]
struct Trend<'a> {
    framework: &'a str,
    /// Fingerprint of the machine.
    machine: &'a str,
    case: &'a Case,
    metric: &'static str,
    unit: &'a str,
    higher_is_better: bool,
    /// Points, oldest first.
    points: Vec<Point<'a>>,
    /// Change from the first point to the last, as a share of the first. `null` with a single point, or if the first is
    /// zero.
    change: Option<f64>,
    /// Whether the 95 % intervals of the two do not overlap; `null` if one has none.
    intervals_apart: Option<bool>,
    #[serde(skip)]
    last: &'a Record,
}

#[derive(Debug, Serialize)]
struct Point<'a> {
    time: &'a str,
    run: &'a str,
    git_commit: Option<&'a str>,
    value: f64,
    interval: Option<(f64, f64)>,
}

/// The trends of the given metrics, or of throughput if there are none.
pub fn trend(
    records: &[Record],
    skipped: &[Skipped],
    metrics: &[Metric],
    format: Format,
    screen: &Screen,
) -> String {
    let metrics = if metrics.is_empty() { &[Metric::Throughput] } else { metrics };
    let trends = trends(records, metrics);
    match format {
        Format::Table if trends.is_empty() => String::new(),
        Format::Table => {
            format!("{}\n{}", table(&trends).terminal(screen), screen.paragraph(Tone::Plain, CAUTION))
        }
        Format::Markdown => format!("{}\n\n{CAUTION}\n", table(&trends).markdown()),
        Format::Json => list::document("trends", &trends, skipped),
        Format::Csv => flat::table(&trends.iter().flat_map(lines).collect::<Vec<_>>()).csv(),
    }
}

const CAUTION: &str =
    "Runs of different times: intervals that do not meet are a reason to look, not yet a verdict.";

fn trends<'a>(records: &'a [Record], metrics: &[Metric]) -> Vec<Trend<'a>> {
    let mut trends: Vec<Trend> = Vec::new();
    let stands = |record: &&Record| judge::records::takes_part(record);
    for metric in metrics {
        for record in records.iter().filter(stands) {
            add(&mut trends, *metric, record);
        }
    }
    for trend in &mut trends {
        let [first, .., last] = trend.points.as_slice() else { continue };
        trend.change = Some(last.value / first.value - 1.0).filter(|change| change.is_finite());
        let apart = |a: (f64, f64), b: (f64, f64)| a.1 < b.0 || b.1 < a.0;
        trend.intervals_apart = first.interval.zip(last.interval).map(|(first, last)| apart(first, last));
    }
    trends
}

/// Adds a record's figure, if it has one, to its trend.
fn add<'a>(trends: &mut Vec<Trend<'a>>, metric: Metric, record: &'a Record) {
    let Some(figure) = record.metrics.get(metric.name()) else { return };
    let Record { framework, machine, case, .. } = record;
    let point = Point {
        time: &record.time,
        run: &record.run,
        git_commit: record.git_commit.as_deref(),
        value: figure.median,
        interval: figure.interval,
    };
    let is_same = |trend: &Trend| {
        (trend.metric, trend.framework, trend.machine, trend.case)
            == (metric.name(), framework.as_str(), machine.fingerprint.as_str(), case)
    };
    match trends.iter().position(is_same) {
        Some(at) => {
            trends[at].points.push(point);
            trends[at].last = record;
        }
        None => trends.push(Trend {
            framework,
            machine: &machine.fingerprint,
            case,
            metric: metric.name(),
            unit: &figure.unit,
            higher_is_better: figure.higher_is_better,
            points: vec![point],
            change: None,
            intervals_apart: None,
            last: record,
        }),
    }
}

fn table(trends: &[Trend]) -> Table {
    let several = list::several_machines(trends.iter().map(|trend| trend.machine));
    let start = ["Framework", "Model", "Precision", "Prompts → new tokens", "Metric"].map(Column::left);
    let figures = ["Runs", "First → last", "Change"].map(Column::right);
    let end = ["95 % intervals", "Trend"].into_iter().chain(several.then_some("Machine")).map(Column::left);
    let mut table = Table::new(start.into_iter().chain(figures).chain(end));
    for trend in trends {
        table.add(cells(trend).into_iter().chain(several.then(|| words::machine(trend.last))));
    }
    table
}

/// The cells of a row, without that of the machine.
fn cells(trend: &Trend) -> [String; 10] {
    let values: Vec<f64> = trend.points.iter().map(|point| point.value).collect();
    let ends = match values.as_slice() {
        [first, .., last] => format!("{} → {}", number(*first), number(*last)),
        _ => values.first().copied().map_or_else(String::new, number),
    };
    [
        trend.framework.to_owned(),
        trend.case.model.clone(),
        trend.case.precision.clone(),
        case::in_short(trend.case),
        format!("{} ({})", trend.metric, trend.unit),
        values.len().to_string(),
        ends,
        or_dash(trend.change, |change| {
            let way = if (change > 0.0) == trend.higher_is_better { "better" } else { "worse" };
            format!("{:+.1} % ({way})", change * 100.0)
        }),
        match trend.intervals_apart {
            Some(true) => "apart".into(),
            Some(false) => "meet".into(),
            None => DASH.into(),
        },
        sparkline(&values),
    ]
}

/// A line for each point.
fn lines(trend: &Trend) -> Vec<flat::Line> {
    let line = |point: &Point| -> flat::Line {
        let mut line = flat::line(trend.last);
        // The fields that identify machine, framework and case.
        const KEPT: [&str; 14] = [
            "framework",
            "machine",
            "host",
            "model",
            "precision",
            "device",
            "threads",
            "batch",
            "context",
            "prompt_tokens",
            "new_tokens",
            "decode",
            "kv_cache",
            "jit",
        ];
        line.retain(|(name, _)| KEPT.contains(&name.as_str()));
        let (low, high) = point.interval.map_or((None, None), |(low, high)| (Some(low), Some(high)));
        let of_point = [
            ("metric", json!(trend.metric)),
            ("unit", json!(trend.unit)),
            ("time", json!(point.time)),
            ("run", json!(point.run)),
            ("git_commit", json!(point.git_commit)),
            ("value", json!(point.value)),
            ("low", json!(low)),
            ("high", json!(high)),
        ];
        line.extend(of_point.map(|(name, value)| (name.to_owned(), value)));
        line
    };
    trend.points.iter().map(line).collect()
}

/// The last values as a small chart, scaled from the least to the largest.
fn sparkline(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const WIDTH: usize = 24;
    let shown = &values[values.len().saturating_sub(WIDTH)..];
    let least = shown.iter().copied().fold(f64::INFINITY, f64::min);
    let range = shown.iter().copied().fold(f64::NEG_INFINITY, f64::max) - least;
    let bar = |value: &f64| match (value - least) / range {
        height if height.is_finite() => BARS[(height * 7.0).round() as usize],
        // All values are the same.
        _ => BARS[3],
    };
    shown.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_spans_its_own_values() {
        assert_eq!(sparkline(&[1.0, 8.0, 4.5]), "▁█▅");
        assert_eq!(sparkline(&[2.0, 2.0]), "▄▄");
        assert_eq!(sparkline(&[]), "");
        assert_eq!(sparkline(&[1.0; 100]).chars().count(), 24);
    }
}
