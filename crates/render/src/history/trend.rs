//! A figure from run to run: a table for each machine, framework and case, a row for each run.

use comparison::history::{Case, Record, Skipped};
use comparison::judge::metrics::Metric;
use comparison::judge::report::number;
use protocol::untrusted;
use serde::Serialize;
use serde_json::{Value, json};

use crate::Format;
use crate::history;
use crate::table::Screen;
use crate::table::{Column, Table};
use crate::trends::{Change, FEWEST_RUNS, Point, Trend, trends};
use crate::words::{self, or_dash};

/// The trends of the given metrics, or of the speeds that records have if there are none. `apart` are the
/// records that match too, but are excluded.
pub fn trend(
    records: &[Record],
    (apart, skipped): (&[Record], &[Skipped]),
    metrics: &[Metric],
    format: Format,
    screen: &Screen,
) -> String {
    let metrics = if metrics.is_empty() { &crate::history::SPEEDS } else { metrics };
    let records: Vec<&Record> = records.iter().collect();
    let trends = trends(&records, metrics);
    match format {
        Format::Table | Format::Markdown => text(&trends, (format, screen)),
        Format::Json => {
            let documents: Vec<Document> = trends.iter().map(Document::new).collect();
            crate::history::document("trends", &documents, apart, skipped)
        }
        Format::Csv => history::table(&trends.iter().flat_map(lines).collect::<Vec<_>>()).csv(),
    }
}

const CAUTION: &str =
    "Runs of different times: intervals that do not meet are a reason to look, not yet a verdict.";
const MEET: &str = "~: the intervals of the two runs meet, so that the change may be chance.";

fn text(trends: &[Trend], (format, screen): (Format, &Screen)) -> String {
    if trends.is_empty() {
        return String::new();
    }
    let several = crate::history::several_machines(trends.iter().map(|trend| trend.last()));
    let mut parts: Vec<String> = trends
        .iter()
        .filter(|trend| trend.is_drawn())
        .map(|trend| section(trend, several, (format, screen)))
        .collect();
    let drawn = || trends.iter().filter(|trend| trend.is_drawn()).flat_map(|trend| &trend.points);
    let legend = if drawn().any(meets) { format!("{MEET} {CAUTION}") } else { CAUTION.into() };
    if !parts.is_empty() {
        parts.push(format!("{}\n", words::wrapped_at(&legend, screen.width)));
    }
    parts.extend(too_few(trends, several, (format, screen)));
    parts.join("\n")
}

/// A heading and a table: a row for each run.
fn section(trend: &Trend, several: bool, (format, screen): (Format, &Screen)) -> String {
    let metric = trend.metric;
    let title =
        format!("{}: {}, {}", trend.last().framework, metric.title(), crate::pictures::better(metric));
    let place = crate::history::place(trend.last(), several);
    let (table, notes) = table(trend, format);
    let numbered = |(index, note): (usize, &String)| {
        let line = format!("[{}] {}", index + 1, untrusted::line(note));
        let width = if format == Format::Markdown { usize::MAX } else { screen.width };
        format!("{}\n", words::wrapped_at(&line, width))
    };
    let notes: String = notes.iter().enumerate().map(numbered).collect();
    let whole = trend.whole().map_or_else(String::new, |change| format!("{}\n", whole(change, metric)));
    match format {
        Format::Markdown => {
            let below: String = format!("{whole}{notes}")
                .lines()
                .map(|line| format!("- {}\n", untrusted::markdown(line)))
                .collect();
            let (title, place) = (untrusted::markdown(&title), untrusted::markdown(&place));
            format!("**{title}**\n\n{place}\n\n{}\n\n{below}", table.markdown())
        }
        _ => {
            let (title, place) =
                (untrusted::line(&title), words::wrapped_at(&untrusted::line(&place), screen.width));
            format!("{title}\n{place}\n{}\n{whole}{notes}", table.terminal(screen))
        }
    }
}

/// The change over all comparable runs, in a line.
fn whole(change: Change, metric: Metric) -> String {
    let start = format!("{} to the last: {}", words::commit(change.since), words::change(change.share));
    let way = if (change.share > 0.0) == metric.higher_is_better() { "better" } else { "worse" };
    match change.intervals_apart {
        Some(true) => format!("{start} ({way}), the intervals do not meet"),
        Some(false) => format!("{start}, the intervals meet"),
        None => format!("{start} ({way})"),
    }
}

/// The table, and its notes.
fn table(trend: &Trend, format: Format) -> (Table, Vec<String>) {
    let mut notes: Vec<String> = Vec::new();
    let mut marks: Vec<String> = Vec::new();
    for point in &trend.points {
        marks.push(match point.changed.as_slice() {
            [] => String::new(),
            changed => {
                notes.push(changed.join("; "));
                format!("[{}]", notes.len())
            }
        });
    }
    let is_drawn = format == Format::Table;
    let start = ["Commit", "Date"].map(Column::left);
    let figures = [trend.metric.unit(), "95 %", "Change"].map(Column::right);
    let end = [(!notes.is_empty()).then_some("Note"), is_drawn.then_some("")];
    let mut table =
        Table::new(start.into_iter().chain(figures).chain(end.into_iter().flatten().map(Column::left)));
    let strips = history::strips(&trend.points.iter().map(|point| point.figure).collect::<Vec<_>>());
    for ((point, mark), strip) in trend.points.iter().zip(marks).zip(strips) {
        let end = [(!notes.is_empty()).then_some(mark), is_drawn.then_some(strip)];
        table.add(cells(point).into_iter().chain(end.into_iter().flatten()));
    }
    (table, notes)
}

/// Whether a run's interval overlaps with that of the run before.
fn meets(point: &Point) -> bool {
    point.change.is_some_and(|change| change.intervals_apart == Some(false))
}

fn cells(point: &Point) -> [String; 5] {
    let interval = point.figure.interval;
    [
        words::commit(point.record),
        words::day(&point.record.time),
        number(point.figure.typical),
        or_dash(interval, |(low, high)| format!("{}–{}", number(low), number(high))),
        or_dash(point.change, |change| {
            let meet = if meets(point) { "~ " } else { "" };
            format!("{meet}{}", words::change(change.share))
        }),
    ]
}

/// The trends that have too few runs to be drawn, as a list.
fn too_few(trends: &[Trend], several: bool, (format, screen): (Format, &Screen)) -> Option<String> {
    let few: Vec<&Trend> = trends.iter().filter(|trend| !trend.is_drawn()).collect();
    let mut text = format!("Fewer than {FEWEST_RUNS} runs, so that no trend is shown:\n");
    let mut places: Vec<String> = Vec::new();
    for trend in &few {
        let place = crate::history::place(trend.last(), several);
        if places.contains(&place) {
            continue;
        }
        let (item, inner) = if format == Format::Markdown { ("- ", "  - ") } else { ("", "  ") };
        if format == Format::Markdown && places.is_empty() {
            text.push('\n');
        }
        text += &format!("{item}{}\n", words::wrapped_at(&place, screen.width));
        for own in few.iter().filter(|own| crate::history::place(own.last(), several) == place) {
            let last = own.points.last().expect("a trend has a point");
            let (runs, figure) = (own.points.len(), number(last.figure.typical));
            let runs = if runs == 1 { "1 run".to_owned() } else { format!("{runs} runs, the last") };
            let metric = own.metric;
            let framework = &own.last().framework;
            text += &format!("{inner}{framework}: {} {figure} {}, {runs}\n", metric.words(), metric.unit());
        }
        places.push(place);
    }
    (!few.is_empty()).then_some(text)
}

/// A trend for programs.
#[derive(Serialize)]
struct Document<'a> {
    framework: &'a str,
    /// Fingerprint of the machine.
    machine: &'a str,
    case: &'a Case,
    metric: &'static str,
    unit: &'a str,
    higher_is_better: bool,
    /// Points, oldest first.
    points: Vec<Value>,
    /// Change from the first point that is comparable with the last to the last, as a share of the first. `null` if there
    /// is none.
    change: Option<f64>,
    /// Whether the 95 % intervals of the two do not overlap; `null` if one has none.
    intervals_apart: Option<bool>,
}

impl<'a> Document<'a> {
    fn new(trend: &'a Trend<'a>) -> Document<'a> {
        let last = trend.last();
        let point = |point: &Point| {
            json!({
                "time": point.record.time,
                "run": point.record.run,
                "git_commit": point.record.git_commit,
                "library": point.record.library,
                "value": point.figure.typical,
                "interval": point.figure.interval,
                "previous": point.change.map(|change| &change.since.run),
                "change": point.change.map(|change| change.share),
                "intervals_apart": point.change.and_then(|change| change.intervals_apart),
                "changed": point.changed,
                "apart": point.record.apart(),
            })
        };
        Document {
            framework: &last.framework,
            machine: &last.machine.fingerprint,
            case: &last.case,
            metric: trend.metric.name(),
            unit: trend.metric.unit(),
            higher_is_better: trend.metric.higher_is_better(),
            points: trend.points.iter().map(point).collect(),
            change: trend.whole().map(|change| change.share),
            intervals_apart: trend.whole().and_then(|change| change.intervals_apart),
        }
    }
}

/// A line for each point.
fn lines(trend: &Trend) -> Vec<history::Line> {
    let line = |point: &Point| -> history::Line {
        let mut line = history::flat_line(point.record);
        let kept = history::identifying(point.record);
        line.retain(|(name, _)| kept.contains(&name.as_str()));
        let interval = point.figure.interval;
        let of_point = [
            ("metric", json!(trend.metric.name())),
            ("unit", json!(trend.metric.unit())),
            ("time", json!(point.record.time)),
            ("run", json!(point.record.run)),
            ("git_commit", json!(point.record.git_commit)),
            ("value", json!(point.figure.typical)),
            ("low", json!(interval.map(|(low, _)| low))),
            ("high", json!(interval.map(|(_, high)| high))),
            ("change", json!(point.change.map(|change| change.share))),
            ("previous", json!(point.change.map(|change| &change.since.run))),
            ("changed", json!(point.changed.join("; "))),
        ];
        line.extend(of_point.map(|(name, value)| (name.to_owned(), value)));
        line
    };
    trend.points.iter().map(line).collect()
}
