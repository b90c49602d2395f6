//! Table and charts of a sweep: lines over one number, heatmaps over two, bars over names.

use charts::{
    Bar, Bars, Colour, Figure, Group, Heatmap, Line, LineAxis, Lines, Panel, Point, Stack, StackRow, number,
};
use serde_json::Value;

use super::markup::{Cell as Shown, Chart, Table};
use super::study::{frameworks, median, place, varied};
use super::view::{self, Cell, CellRow, Study};
use super::{pictures, run};

/// What a sweep is about comes first; the others follow where there is room.
const METRICS: [(&str, &str, &str); 4] = [
    ("throughput", "Tokens per second", "higher is better"),
    ("prefill_throughput", "Prompt tokens per second", "higher is better"),
    ("first_token", "Time to first token", "ms, lower is better"),
    ("peak_memory", "Peak memory", "GB, lower is better"),
];

fn metrics(study: &Study) -> Vec<(&'static str, &'static str, &'static str)> {
    let first = match study.study.rsplit(' ').next() {
        Some("forward") => "prefill_throughput",
        Some("memory") => "peak_memory",
        _ => "throughput",
    };
    let mut metrics: Vec<_> = METRICS.into();
    metrics.sort_by_key(|(name, _, _)| *name != first);
    let known =
        |name: &str| study.cells.iter().flat_map(|cell| &cell.rows).any(|row| row.metrics.contains_key(name));
    metrics.into_iter().filter(|(name, _, _)| known(name)).collect()
}

fn names(study: &Study) -> Vec<String> {
    frameworks(study.cells.iter().flat_map(|cell| &cell.rows).map(|row| row.framework.clone()))
}

pub(super) fn table(study: &Study) -> Table {
    let (axes, metrics) = (varied(study), metrics(study));
    let mut rows = Vec::new();
    for cell in &study.cells {
        let where_ = place(&cell.settings, &axes);
        if let Some(reason) = &cell.refused {
            let figures = metrics.iter().map(|_| Shown::from("–"));
            let last = [Shown { main: "not run".into(), small: reason.clone() }];
            rows.push(
                [where_.clone(), "all".into()]
                    .map(Shown::from)
                    .into_iter()
                    .chain(figures)
                    .chain(last)
                    .collect(),
            );
        }
        for row in &cell.rows {
            let figure = |(name, _, _): &(&str, &str, &str)| match row.metrics.get(*name) {
                Some(figure) => {
                    let same = figure.min == figure.max;
                    let small = if same {
                        String::new()
                    } else {
                        format!("{} – {}", number(figure.min), number(figure.max))
                    };
                    Shown { main: number(figure.median), small }
                }
                None => "–".into(),
            };
            let parity = if row.parity.is_empty() { row.state.replace('_', " ") } else { row.parity.clone() };
            let place = [where_.clone(), row.framework.clone()].map(Shown::from);
            rows.push(place.into_iter().chain(metrics.iter().map(figure)).chain([parity.into()]).collect());
        }
    }
    let titles = metrics.iter().map(|(name, title, hint)| {
        let unit = hint.split(',').next().filter(|unit| unit.len() <= 3 && *name != "throughput");
        unit.map_or((*title).to_owned(), |unit| format!("{title} ({unit})"))
    });
    Table {
        caption: "Median over processes; below it the least and the most".into(),
        columns: ["Where".to_owned(), "Framework".to_owned()]
            .into_iter()
            .chain(titles)
            .chain(["Parity".to_owned()])
            .collect(),
        rows,
        figures: true,
    }
}

fn value_of(cell: &Cell, framework: &str, metric: &str) -> Option<f64> {
    median(cell.rows.iter().find(|row| row.framework == framework)?, metric)
}

fn numeric(study: &Study, axis: &str) -> bool {
    study.planned.iter().all(|settings| settings.get(axis).is_some_and(Value::is_number))
}

/// Every panel with an id of its own.
pub(super) fn panels(study: &Study) -> Vec<(String, Panel)> {
    let axes = varied(study);
    let numbers: Vec<String> = axes.iter().filter(|axis| numeric(study, axis)).cloned().collect();
    let mut panels = Vec::new();
    if study.study.ends_with("warmup") {
        panels.extend(curve(study));
    }
    match (axes.len(), numbers.as_slice()) {
        (1, [axis]) => {
            let lines =
                metrics(study).into_iter().map(|metric| (metric.0.to_owned(), lines(study, axis, metric)));
            panels.extend(lines);
        }
        (2, [x, y]) => {
            for metric in metrics(study).into_iter().take(2) {
                panels.extend(heatmaps(study, (y, x), metric));
            }
        }
        _ => panels.extend(
            metrics(study).into_iter().map(|metric| (metric.0.to_owned(), bars(study, &axes, metric))),
        ),
    }
    if study.study.ends_with("memory") {
        panels.extend(stack(study, &axes));
    }
    panels
}

pub(super) fn charts(study: &Study) -> Vec<Chart> {
    let chart = |(id, panel): (String, Panel)| {
        let height = match &panel {
            Panel::Bars(bars) => {
                let count: usize = bars.groups.iter().map(|group| group.bars.len()).sum();
                run::bars_height(count) + 20 * bars.groups.len() as u32
            }
            Panel::Stack(stack) => 120 + 42 * stack.rows.len() as u32,
            Panel::Heatmap(heatmap) => 100 + 40 * heatmap.values.len() as u32,
            _ => 300,
        };
        let title = title(&panel);
        Chart {
            id,
            title,
            description: "Medians over processes, for each framework; the table above has the figures",
            figure: Figure::single(panel),
            height,
            table: None,
        }
    };
    panels(study).into_iter().map(chart).collect()
}

fn lines(study: &Study, axis: &str, (metric, title, hint): (&str, &str, &str)) -> Panel {
    let colours = pictures::colours(&names(study));
    let x_of = |cell: &Cell| cell.settings.get(axis).and_then(Value::as_f64);
    let series = names(study).into_iter().map(|name| {
        let point = |cell: &Cell| {
            let row = cell.rows.iter().find(|row| row.framework == name)?;
            let figure = row.metrics.get(metric)?;
            let interval = (figure.min < figure.max).then_some((figure.min, figure.max));
            Some(Point { x: x_of(cell)?, y: figure.median, interval })
        };
        let mut points: Vec<Point> = study.cells.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Line { colour: colours.get(&name).copied().unwrap_or(Colour(0x8C, 0x8C, 0x8C)), label: name, points }
    });
    let mut ticks: Vec<f64> = study.cells.iter().filter_map(x_of).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let wide =
        ticks.first().zip(ticks.last()).is_some_and(|(first, last)| *first > 0.0 && last / first >= 4.0);
    Panel::Lines(Lines {
        title: title.into(),
        hint: hint.into(),
        x: LineAxis { label: axis.replace('_', " "), log: wide, ticks, ..LineAxis::default() },
        y: LineAxis { from_zero: true, ..LineAxis::default() },
        series: series.collect(),
        shaded: None,
    })
}

/// One for each framework, with colours that mean the same in all.
fn heatmaps(
    study: &Study,
    (x, y): (&str, &str),
    (metric, title, hint): (&str, &str, &str),
) -> Vec<(String, Panel)> {
    let values = |axis: &str| {
        let mut values: Vec<f64> =
            study.planned.iter().filter_map(|settings| settings.get(axis).and_then(Value::as_f64)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    };
    let (columns, rows) = (values(x), values(y));
    let all = || {
        names(study)
            .into_iter()
            .flat_map(|name| study.cells.iter().filter_map(move |cell| value_of(cell, &name, metric)))
    };
    let range = Some((all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max)));
    let texts = |values: &[f64]| values.iter().map(f64::to_string).collect();
    let of = |(index, name): (usize, String)| {
        let at = |row: f64, column: f64| {
            let is_here = |cell: &&Cell| {
                cell.settings.get(x).and_then(Value::as_f64) == Some(column)
                    && cell.settings.get(y).and_then(Value::as_f64) == Some(row)
            };
            value_of(study.cells.iter().find(is_here)?, &name, metric)
        };
        let values =
            rows.iter().map(|&row| columns.iter().map(|&column| at(row, column)).collect()).collect();
        let heatmap = Heatmap {
            title: format!("{name}: {}", title.to_lowercase()),
            hint: hint.into(),
            x: (x.replace('_', " "), texts(&columns)),
            y: (y.replace('_', " "), texts(&rows)),
            values,
            range,
        };
        (format!("{metric}-{index}"), Panel::Heatmap(heatmap))
    };
    names(study).into_iter().enumerate().map(of).collect()
}

fn bars(study: &Study, axes: &[String], (metric, title, hint): (&str, &str, &str)) -> Panel {
    let colours = pictures::colours(&names(study));
    let bar = |row: &CellRow| Bar {
        label: row.framework.clone(),
        colour: colours.get(&row.framework).copied().unwrap_or(Colour(0x8C, 0x8C, 0x8C)),
        value: median(row, metric),
        interval: None,
        points: Vec::new(),
        note: match row.state.as_str() {
            "measured" | "labelled" | "struck" => "not available".into(),
            state => state.replace('_', " "),
        },
    };
    let group =
        |cell: &Cell| Group { label: place(&cell.settings, axes), bars: cell.rows.iter().map(bar).collect() };
    Panel::Bars(Bars {
        title: title.into(),
        hint: hint.into(),
        groups: study.cells.iter().map(group).collect(),
        ..Bars::default()
    })
}

fn stack(study: &Study, axes: &[String]) -> Option<(String, Panel)> {
    let of = |cell: &Cell, row: &CellRow| {
        let (parts, peak) = view::parts(row.memory.as_ref()?)?;
        let label = [row.framework.clone(), place(&cell.settings, axes)];
        let label: Vec<String> = label.into_iter().filter(|part| !part.is_empty()).collect();
        let values = parts.into_iter().map(|bytes| bytes / 1e6).collect();
        Some(StackRow { label: label.join(", "), values, total: peak / 1e6 })
    };
    let rows: Vec<StackRow> =
        study.cells.iter().flat_map(|cell| cell.rows.iter().filter_map(move |row| of(cell, row))).collect();
    let stack = Stack {
        title: "Peak memory by part".into(),
        hint: "MB".into(),
        parts: view::PARTS.iter().map(|(_, name)| (*name).to_owned()).collect(),
        rows,
    };
    (!stack.rows.is_empty()).then(|| ("parts".into(), Panel::Stack(stack)))
}

fn curve(study: &Study) -> Option<(String, Panel)> {
    let axes = varied(study);
    let lines = study.cells.iter().flat_map(|cell| {
        let place = place(&cell.settings, &axes);
        cell.rows.iter().map(move |row| (format!("{} {place}", row.framework).trim().to_owned(), row))
    });
    let lines: Vec<_> = lines.filter(|(_, row)| row.steadiness.curve.len() > 1).collect();
    let colours = pictures::colours(&lines.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    let series = lines.iter().map(|(name, row)| Line {
        label: name.clone(),
        colour: colours.get(name).copied().unwrap_or(Colour(0x8C, 0x8C, 0x8C)),
        points: row
            .steadiness
            .curve
            .iter()
            .filter_map(|point| {
                Some(Point {
                    x: point.iteration as f64,
                    y: point.gap_ms.or(point.first_token_ms)?,
                    interval: None,
                })
            })
            .collect(),
    });
    let panel = Panel::Lines(Lines {
        title: "Time per token".into(),
        hint: "ms, by iteration".into(),
        x: LineAxis { label: "iteration of the process".into(), ..LineAxis::default() },
        y: LineAxis { from_zero: true, ..LineAxis::default() },
        series: series.collect(),
        shaded: None,
    });
    (!lines.is_empty()).then(|| ("curve".into(), panel))
}

fn title(panel: &Panel) -> String {
    match panel {
        Panel::Bars(bars) => bars.title.clone(),
        Panel::Lines(lines) => lines.title.clone(),
        Panel::Spread(spread) => spread.title.clone(),
        Panel::Ecdf(ecdf) => ecdf.title.clone(),
        Panel::Stack(stack) => stack.title.clone(),
        Panel::Heatmap(heatmap) => heatmap.title.clone(),
    }
}
