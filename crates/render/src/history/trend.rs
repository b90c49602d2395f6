//! A figure from run to run: a table for each machine, framework and case, a row for each run.

use comparison::judge::metrics::Metric;
use comparison::judge::report::number;
use serde_json::{Value, json};

use super::Found;
use crate::export::{Block, Body, Document};
use crate::flat;
use crate::history;
use crate::table::{Column, Screen, Table};
use crate::trends::{Change, FEWEST_RUNS, Point, Step, Trend, trends};
use crate::words::{self, Json, Line, or_dash};

/// The trends of the metrics that were asked for, or of the speeds that records have.
pub struct Trends<'a>(pub Found<'a>);

impl Trends<'_> {
    fn all(&self) -> Vec<Trend<'_>> {
        let metrics = if self.0.metrics.is_empty() { &history::SPEEDS } else { self.0.metrics };
        trends(&self.0.records.iter().collect::<Vec<_>>(), metrics)
    }
}

impl Document for Trends<'_> {
    fn body(&self, terminal: Option<&Screen>) -> Body {
        let trends = self.all();
        let several = history::several_machines(trends.iter().map(|trend| trend.last()));
        let (drawn, few): (Vec<&Trend>, Vec<&Trend>) = trends.iter().partition(|trend| trend.is_drawn());
        let mut blocks = Vec::new();
        for trend in &drawn {
            blocks.extend(section(trend, several, terminal.is_some()));
        }
        if drawn.iter().flat_map(|trend| &trend.points).any(meets) {
            blocks.push(Block::Paragraph(format!("{MEET} {CAUTION}")));
        } else if !drawn.is_empty() {
            blocks.push(Block::Paragraph(CAUTION.to_owned()));
        }
        blocks.extend(too_few(&few, several));
        Body { answer: blocks, rest: Vec::new() }
    }

    fn json(&self) -> Json {
        let trends = self.all();
        self.0.document("trends", &trends.iter().map(described).collect::<Vec<_>>())
    }

    fn figures(&self) -> Table {
        flat::table(&[], &self.all().iter().flat_map(lines).collect::<Vec<_>>())
    }
}

const CAUTION: &str =
    "Runs of different times: intervals that do not meet are a reason to look, not yet a verdict.";
const MEET: &str = "~: the intervals of the two runs meet, so that the change may be chance.";

/// A heading, a table with a row for each run, and its notes. `is_drawn`: with a strip for each row.
fn section(trend: &Trend, several: bool, is_drawn: bool) -> [Block; 3] {
    let metric = trend.metric;
    let title =
        format!("{}: {}, {}", trend.last().framework, metric.title(), crate::pictures::better(metric));
    let (table, notes) = table(trend, is_drawn);
    let whole = trend.whole().map(|change| whole(change, metric));
    [
        Block::Heading(vec![title, history::place(trend.last(), several)]),
        Block::Table(table),
        Block::Lines(
            whole.into_iter().chain(trend.steps.iter().map(step)).chain(notes).map(Line::plain).collect(),
        ),
    ]
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

/// A change that many runs agree on, in a line.
fn step(step: &Step) -> String {
    let (before, after) = step.runs;
    let (commit, day) = (words::commit(step.first), words::day(&step.first.time));
    format!(
        "a change at {commit}, {day}: {}, {before} runs before and {after} after",
        words::change(step.share)
    )
}

fn table(trend: &Trend, is_drawn: bool) -> (Table, Vec<String>) {
    let has_notes = trend.points.iter().any(|point| !point.changed.is_empty());
    let mut table = Table::of(["Commit", "Date"], [trend.metric.unit(), "95 %", "Change"]);
    let end = [has_notes.then_some("Note"), is_drawn.then_some("")];
    table.columns.extend(end.into_iter().flatten().map(Column::left));
    let strips = history::strips(&trend.points.iter().map(|point| point.figure).collect::<Vec<_>>());
    let mut notes: Vec<String> = Vec::new();
    for (point, strip) in trend.points.iter().zip(strips) {
        let mut mark = String::new();
        if !point.changed.is_empty() {
            mark = format!("[{}]", notes.len() + 1);
            notes.push(format!("{mark} {}", point.changed.join("; ")));
        }
        let end = [has_notes.then_some(mark), is_drawn.then_some(strip)];
        table.push(cells(point), end.into_iter().flatten());
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
fn too_few(trends: &[&Trend], several: bool) -> Vec<Block> {
    if trends.is_empty() {
        return Vec::new();
    }
    let line = |trend: &&Trend| {
        let (last, metric) = (trend.points.last().expect("a trend has a point"), trend.metric);
        let runs = match trend.points.len() {
            1 => "1 run".to_owned(),
            runs => format!("{runs} runs, the last"),
        };
        Line::plain(format!(
            "{}, {}: {} {} {}, {runs}",
            trend.last().framework,
            history::place(trend.last(), several),
            metric.words(),
            number(last.figure.typical),
            metric.unit()
        ))
    };
    let heading = format!("Fewer than {FEWEST_RUNS} runs, so that no trend is shown:");
    vec![Block::Paragraph(heading), Block::Lines(trends.iter().map(line).collect())]
}

/// A trend for programs, its points oldest first. Its change is from the first point that is comparable with the last,
/// as a share of the first.
fn described(trend: &Trend) -> Value {
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
    let step = |step: &Step| {
        let (before, after) = step.runs;
        json!({ "run": step.first.run, "change": step.share, "runs_before": before, "runs_after": after })
    };
    json!({
        "framework": last.framework,
        "machine": last.machine.fingerprint,
        "case": last.case,
        "metric": trend.metric.name(),
        "unit": trend.metric.unit(),
        "higher_is_better": trend.metric.higher_is_better(),
        "points": trend.points.iter().map(point).collect::<Vec<_>>(),
        "steps": trend.steps.iter().map(step).collect::<Vec<_>>(),
        "change": trend.whole().map(|change| change.share),
        "intervals_apart": trend.whole().and_then(|change| change.intervals_apart),
    })
}

fn lines(trend: &Trend) -> Vec<flat::Line> {
    let line = |point: &Point| -> flat::Line {
        let mut line = history::flat_line(point.record);
        line.retain(|(name, _)| history::is_identifying(name));
        let interval = point.figure.interval;
        line.extend(flat::line([
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
        ]));
        line
    };
    trend.points.iter().map(line).collect()
}
