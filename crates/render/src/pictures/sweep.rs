//! The charts of a sweep: lines over one number, heatmaps over two, dots over names.

use comparison::judge::Metric;
use comparison::judge::report::State;
use comparison::judge::report::verdicts::Verdict;
use comparison::judge::study::{self, Cell, CellRow, Outcome, Side, StudyReport, crossings, varied};
use comparison::plan::sweep::SweepKind;
use comparison::plan::{Axis, Setting, StudyView};

use super::{Colours, ITERATION, absent, better};
use crate::charts::{
    Colour, Content, Figure, GREY, Group, Heatmap, INK, Line, LineAxis, Lines, Panel, Point, Row, RowAxis,
    Rows,
};
use crate::study::summary;
use crate::words;

/// The metrics of a sweep, the main one first; the others follow if there is room.
const METRICS: [Metric; 4] =
    [Metric::Throughput, Metric::PrefillThroughput, Metric::FirstToken, Metric::PeakMemory];

fn metrics(report: &StudyReport) -> Vec<Metric> {
    let first = match report.view {
        StudyView::Sweep(SweepKind::Forward) => Metric::PrefillThroughput,
        StudyView::Sweep(SweepKind::Memory) => Metric::PeakMemory,
        StudyView::Sweep(SweepKind::Denoise) => return vec![Metric::StepTime, Metric::PeakMemory],
        StudyView::Sweep(SweepKind::Callers) => {
            return vec![Metric::RequestThroughput, Metric::CallLatency, Metric::LatencyP99];
        }
        StudyView::Sweep(SweepKind::Embed) => return vec![Metric::EncodedTokens, Metric::PeakMemory],
        _ => Metric::Throughput,
    };
    let mut metrics = METRICS.to_vec();
    metrics.sort_by_key(|metric| *metric != first);
    let known = |metric: &Metric| {
        report.cells.iter().flat_map(|cell| &cell.rows).any(|row| row.metrics.contains_key(metric))
    };
    metrics.retain(known);
    metrics
}

fn frameworks(report: &StudyReport) -> Vec<String> {
    words::distinct(report.cells.iter().flat_map(|cell| &cell.rows).map(|row| row.framework.clone()))
}

/// The row of a contender that is not struck.
fn row<'a>(cell: &'a Cell, framework: &str) -> Option<&'a CellRow> {
    cell.rows.iter().find(|row| row.framework == framework && row.state != State::Struck)
}

fn number(cell: &Cell, axis: Axis) -> Option<f64> {
    match cell.settings.get(&axis)? {
        Setting::Number(number) => Some(f64::from(*number)),
        Setting::Name(_) => None,
    }
}

/// The distinct values of an axis, in order.
fn values(report: &StudyReport, axis: Axis) -> Vec<f64> {
    let mut values: Vec<f64> = report.cells.iter().filter_map(|cell| number(cell, axis)).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// Every panel, with a unique id.
pub(super) fn panels(report: &StudyReport) -> Vec<(String, Panel)> {
    let axes = varied(&report.planned);
    let is_number = |axis: &&Axis| {
        report.planned.iter().all(|settings| matches!(settings.get(*axis), Some(Setting::Number(_))))
    };
    let numbers: Vec<Axis> = axes.iter().filter(is_number).copied().collect();
    let metrics = metrics(report);
    let named = |metric: &Metric, panel: Panel| (metric.name().to_owned(), panel);
    let mut panels = Vec::new();
    if report.view == StudyView::Sweep(SweepKind::Warmup) {
        panels.extend(curve(report, &axes));
        panels.extend(elapsed(report, &axes));
    }
    if report.view == StudyView::Sweep(SweepKind::Denoise) {
        panels.extend(by_steps(report));
    }
    if report.view == StudyView::Sweep(SweepKind::Callers) {
        panels.push(("latency-throughput".to_owned(), latency_by_throughput(report)));
    }
    match (axes.len(), numbers.as_slice()) {
        (1, &[axis]) => panels.extend(metrics.iter().map(|m| named(m, lines(report, axis, *m)))),
        (2, &[x, y]) => {
            panels.extend(metrics.into_iter().take(2).flat_map(|metric| heatmaps(report, [y, x], metric)));
        }
        _ => panels.extend(metrics.iter().map(|m| named(m, dots(report, &axes, *m)))),
    }
    if report.view == StudyView::Sweep(SweepKind::Memory) {
        panels.extend(parts(report, &axes));
    }
    panels
}

/// A line for each framework, of a point for each of these cells that has one.
fn by_framework<'a>(
    report: &StudyReport,
    cells: impl Iterator<Item = &'a Cell> + Clone,
    x: LineAxis,
    point: impl Fn(&Cell, &CellRow) -> Option<Point>,
) -> Content {
    let points = |name: &str| cells.clone().filter_map(|cell| point(cell, row(cell, name)?)).collect();
    let named = frameworks(report).into_iter().map(|name| (name.clone(), vec![points(&name)]));
    strands(x, named.collect())
}

fn lines(report: &StudyReport, axis: Axis, metric: Metric) -> Panel {
    let ticks = values(report, axis);
    let wide =
        ticks.first().zip(ticks.last()).is_some_and(|(first, last)| *first > 0.0 && last / first >= 4.0);
    let x = LineAxis { label: axis.title().to_lowercase(), log: wide, ticks, ..LineAxis::default() };
    // They are in the order that was typed: `--threads 8,1,4`.
    let mut cells: Vec<(f64, &Cell)> =
        report.cells.iter().filter_map(|cell| Some((number(cell, axis)?, cell))).collect();
    cells.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let content = by_framework(report, cells.into_iter().map(|(_, cell)| cell), x, |cell, row| {
        let figure = row.metrics.get(&metric)?;
        let interval = (figure.min < figure.max).then_some((figure.min, figure.max));
        Some(Point { x: number(cell, axis)?, y: figure.typical.unwrap_or(figure.median), interval })
    });
    Panel::new(metric.title(), better(metric), content)
}

/// Latency against throughput: a curve for each contender, a point for each number of callers or rate.
fn latency_by_throughput(report: &StudyReport) -> Panel {
    let x = LineAxis { label: "requests a second".into(), ..LineAxis::default() };
    let content = by_framework(report, report.cells.iter(), x, |_, row| {
        Some(point(row.typical(Metric::RequestThroughput)?, row.typical(Metric::CallLatency)?))
    });
    Panel::new(Metric::CallLatency.title(), better(Metric::CallLatency), content)
}

/// One heatmap for each framework, with the same colours for the same figures.
fn heatmaps(report: &StudyReport, [x, y]: [Axis; 2], metric: Metric) -> Vec<(String, Panel)> {
    let (columns, rows) = (values(report, x), values(report, y));
    let names = frameworks(report);
    let median = |cell: &Cell, name: &str| row(cell, name)?.typical(metric);
    let all = || names.iter().flat_map(|name| report.cells.iter().filter_map(|cell| median(cell, name)));
    let range = Some((all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max)));
    let texts = |values: &[f64]| values.iter().map(f64::to_string).collect();
    let heatmap = |(index, name): (usize, &String)| {
        let at = |row: f64, column: f64| {
            let is_here = |cell: &&Cell| number(cell, x) == Some(column) && number(cell, y) == Some(row);
            median(report.cells.iter().find(is_here)?, name)
        };
        let heatmap = Heatmap {
            x: (x.title().to_lowercase(), texts(&columns)),
            y: (y.title().to_lowercase(), texts(&rows)),
            values: rows.iter().map(|&row| columns.iter().map(|&column| at(row, column)).collect()).collect(),
            range,
        };
        let title = format!("{name}: {}", metric.title());
        (format!("{}-{index}", metric.name()), Panel::new(title, better(metric), Content::Heatmap(heatmap)))
    };
    names.iter().enumerate().map(heatmap).collect()
}

/// The median of each contender, with the range of its processes, on one scale.
fn dots(report: &StudyReport, axes: &[Axis], metric: Metric) -> Panel {
    let colours = Colours::new(&frameworks(report));
    let mark = |row: &CellRow| {
        let figure = row.metrics.get(&metric).filter(|_| row.state != State::Struck);
        Row {
            label: words::titled(&row.framework, row.state, &row.reasons),
            colour: Some(colours.of(&row.framework)),
            value: row.typical(metric).filter(|_| row.state != State::Struck),
            points: figure.map_or_else(Vec::new, |figure| vec![figure.min, figure.median, figure.max]),
            note: absent(row.state).to_owned(),
            ..Row::default()
        }
    };
    let group = |cell: &Cell| Group {
        label: study::name(&cell.settings, axes),
        rows: cell.rows.iter().map(mark).collect(),
    };
    let groups = report.cells.iter().filter(|cell| !cell.rows.is_empty()).map(group).collect();
    Panel::new(metric.title(), better(metric), Content::Rows(Rows { axis: RowAxis::FromZero, groups }))
}

fn parts(report: &StudyReport, axes: &[Axis]) -> Option<(String, Panel)> {
    let colours = Colours::new(&frameworks(report));
    let groups = placed_rows(report, axes).filter_map(|(label, row)| {
        Some(super::parts(label, colours.of(&row.framework), row.memory.as_ref()?))
    });
    Some(("parts".into(), super::memory(groups.collect())?))
}

/// The rows of all cells that are not struck, each with its framework and place.
fn placed_rows<'a>(report: &'a StudyReport, axes: &'a [Axis]) -> impl Iterator<Item = (String, &'a CellRow)> {
    report.cells.iter().flat_map(|cell| {
        let place = study::name(&cell.settings, axes);
        let shown = cell.rows.iter().filter(|row| row.state != State::Struck);
        shown.map(move |row| (format!("{} {place}", row.framework).trim().to_owned(), row))
    })
}

fn point(x: f64, y: f64) -> Point {
    Point { x, y, interval: None }
}

/// Lines of a colour each, by their names.
fn strands(x: LineAxis, named: Vec<(String, Vec<Vec<Point>>)>) -> Content {
    let colours = Colours::new(&named.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    let line = |(label, strands): (String, _)| Line { colour: colours.of(&label), label, strands };
    let y = LineAxis { from_zero: true, ..LineAxis::default() };
    Content::Lines(Lines { x, y, series: named.into_iter().map(line).collect(), shaded: None })
}

/// The time of a request by its steps, and a line for the time of the same model decoding token by token.
/// Diffusion is slower from where the lines cross.
fn by_steps(report: &StudyReport) -> Option<(String, Panel)> {
    let ticks = values(report, Axis::Steps);
    let (least, most) = (*ticks.first()?, *ticks.last()?);
    let mut named = Vec::new();
    for crossing in &crossings(&report.cells) {
        let at = study::name(&crossing.at, &varied(&report.planned));
        let of_cell = |cell: &Cell| {
            let mut place = cell.settings.clone();
            place.remove(&Axis::Steps);
            let row = row(cell, &crossing.framework).filter(|_| place == crossing.at)?;
            Some(point(number(cell, Axis::Steps)?, row.typical(Metric::Total)? / 1e3))
        };
        let mut points: Vec<Point> = report.cells.iter().filter_map(of_cell).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let level = [least, most].map(|x| point(x, crossing.by_token_ms / 1e3)).into();
        named.push((format!("{} {at}", crossing.framework).trim().to_owned(), vec![points, level]));
    }
    if named.is_empty() {
        return None;
    }
    let content = strands(LineAxis { label: "steps".into(), ticks, ..LineAxis::default() }, named);
    let hint = "by steps; level: the same body token by token";
    Some(("steps".into(), Panel::new("Time of a request (s)", hint, content)))
}

/// The iterations of each contender in each cell: medians over its processes, since a study keeps no more.
fn curve(report: &StudyReport, axes: &[Axis]) -> Option<(String, Panel)> {
    let content = by_row(report, axes, ITERATION, |row| {
        let curve = row.steadiness.curve.iter();
        curve.map(|at| point(at.iteration as f64, at.gap_ms.unwrap_or(at.first_token_ms))).collect()
    })?;
    Some(("curve".into(), Panel::new(Metric::Latency.short_title(), "by iteration", content)))
}

/// The time since loading by the tokens computed, medians over processes. Compiling has paid off from where
/// the line of a contender crosses its line without the JIT.
fn elapsed(report: &StudyReport, axes: &[Axis]) -> Option<(String, Panel)> {
    let content = by_row(report, axes, "new tokens", |row| {
        let first_runs = row.steadiness.first_runs.iter().flat_map(|runs| &runs.elapsed);
        first_runs.map(|at| point(at.tokens as f64, at.ms / 1e3)).collect()
    })?;
    let hint = "by tokens computed; compiling has paid where lines cross";
    Some(("elapsed".into(), Panel::new("Time since loading (s)", hint, content)))
}

/// A line for each row of each cell that is not struck and has points enough; `None` without any.
fn by_row(
    report: &StudyReport,
    axes: &[Axis],
    x: &str,
    points: impl Fn(&CellRow) -> Vec<Point>,
) -> Option<Content> {
    let named: Vec<_> = placed_rows(report, axes)
        .map(|(name, row)| (name, vec![points(row)]))
        .filter(|(_, strands)| strands[0].len() > 1)
        .collect();
    let x = LineAxis { label: x.to_owned(), ..LineAxis::default() };
    (!named.is_empty()).then(|| strands(x, named))
}

// The charts of a study. Those of an A/B study are here, those of a sweep in `sweep`.

/// The models by name, and as they were requested.
fn models(report: &StudyReport) -> Vec<(String, String)> {
    let asked = report.planned.iter().filter_map(|settings| settings.get(&Axis::Model));
    let asked = words::distinct(asked.map(ToString::to_string));
    asked.into_iter().map(|model| (words::without_directories(&model), model)).collect()
}

pub(crate) fn title(report: &StudyReport) -> String {
    let names: Vec<String> = models(report).into_iter().map(|(name, _)| name).collect();
    if names.is_empty() { report.study.clone() } else { format!("{} on {}", report.study, names.join(", ")) }
}

/// The heading of the summary, without local directories.
pub(crate) fn subtitle(report: &StudyReport) -> String {
    let heading = summary(report).heading;
    models(report).iter().fold(heading, |heading, (name, asked)| heading.replace(asked, name))
}

/// Every panel, with a unique id.
pub(crate) fn study_panels(report: &StudyReport) -> Vec<(String, Panel)> {
    match report.view {
        _ if report.outcomes.is_empty() => panels(report),
        _ => ab(report),
    }
}

pub(crate) fn comparison(report: &StudyReport) -> Option<Figure> {
    let panels: Vec<Panel> = study_panels(report).into_iter().map(|(_, panel)| panel).take(4).collect();
    (!panels.is_empty()).then(|| Figure {
        title: title(report),
        answer: summary(report).answer,
        subtitle: subtitle(report),
        columns: if panels.len() > 1 { 2 } else { 1 },
        panels,
        note: note(report),
    })
}

/// The versions of the program and its libraries, and the date.
fn note(report: &StudyReport) -> Vec<String> {
    let origins = || report.cells.iter().map(|cell| &cell.origin);
    let version = origins().map(|origin| origin.driver_version.as_str()).find(|version| !version.is_empty());
    let mut said = vec![format!("Photofinish {}", version.unwrap_or_default()).trim_end().to_owned()];
    said.push(report.started.chars().take(10).collect());
    said.extend(words::distinct(origins().flat_map(|origin| &origin.libraries).map(ToString::to_string)));
    vec![format!("Geometric means over rounds. {}.", said.join(" · "))]
}

fn ab(report: &StudyReport) -> Vec<(String, Panel)> {
    let of = |metric: Metric, value: fn(&Side) -> Option<f64>| {
        let groups = sides(report, value);
        let is_known = groups.iter().flat_map(|group| &group.rows).any(|row| row.value.is_some());
        let rows = Rows { axis: RowAxis::FromZero, groups };
        let panel = Panel::new(metric.title(), better(metric), Content::Rows(rows));
        is_known.then(|| (metric.name().to_owned(), panel))
    };
    let panels = [
        Some(("speedup".to_owned(), speedups(report))),
        of(Metric::Throughput, |side| side.throughput),
        of(Metric::Total, |side| side.total_ms),
        of(Metric::PeakMemory, |side| side.peak_memory),
    ];
    panels.into_iter().flatten().collect()
}

fn framework(outcome: &Outcome) -> String {
    let named = outcome.settings.get(&Axis::Framework).map(ToString::to_string);
    named.or_else(|| Some(outcome.a.as_ref()?.contender.clone())).unwrap_or_default()
}

fn study_frameworks(report: &StudyReport) -> Vec<String> {
    words::distinct(report.outcomes.iter().map(framework))
}

/// The struck row of a cell, if there is one: nothing in the cell is compared then.
fn struck(cell: &Cell) -> Option<String> {
    let row = cell.rows.iter().find(|row| row.state == State::Struck)?;
    Some(words::titled(&row.framework, row.state, &row.reasons))
}

/// Every speed-up on a logarithmic axis around "no change". One has the colour of the framework if it differs, that of
/// text if it is equal, and none if that is open.
fn speedups(report: &StudyReport) -> Panel {
    let colours = Colours::new(&study_frameworks(report));
    let axes: Vec<Axis> =
        varied(&report.planned).into_iter().filter(|axis| *axis != Axis::Framework).collect();
    // Outcomes have the order of the cells.
    let pairs = report.outcomes.iter().zip(&report.cells).map(|(outcome, cell)| {
        let (label, struck) = (framework(outcome), struck(cell));
        let verdict = outcome.verdict.filter(|_| outcome.interval.is_some() && struck.is_none());
        let pair = Row {
            colour: match verdict {
                Some(Verdict::Faster | Verdict::Slower) => Some(colours.of(&label)),
                Some(Verdict::Equivalent) => Some(INK),
                _ => None,
            },
            label,
            value: outcome.speedup.filter(|_| struck.is_none()),
            interval: outcome.interval,
            note: struck.map_or("not measured".into(), |who| format!("{who}: no verdict")),
            ..Row::default()
        };
        (study::name(&outcome.settings, &axes), pair)
    });
    let groups = words::grouped(pairs).into_iter().map(|(label, rows)| Group { label, rows }).collect();
    let (title, hint, sides) = match study::has_mistakes(&report.planned) {
        true => ("Times as long", "time of a request with ÷ without the mistake", ["shorter", "longer"]),
        false => ("Speed-up", "throughput with ÷ without", ["slower", "faster"]),
    };
    Panel::new(title, hint, Content::Rows(Rows { axis: RowAxis::Ratio { sides, band: None }, groups }))
}

fn sides(report: &StudyReport, value: fn(&Side) -> Option<f64>) -> Vec<Group> {
    let colours = Colours::new(&study_frameworks(report));
    let axes = varied(&report.planned);
    let group = |(outcome, cell): (&Outcome, &Cell)| {
        let colour = colours.of(&framework(outcome));
        let row = |(side, colour): (&Side, Colour)| {
            let own = cell.rows.iter().find(|row| row.framework == side.contender);
            let is_struck = own.is_some_and(|row| row.state == State::Struck);
            Row {
                label: own.map_or_else(
                    || side.contender.clone(),
                    |row| words::titled(&row.framework, row.state, &row.reasons),
                ),
                colour: Some(colour),
                value: value(side).filter(|_| !is_struck),
                note: if is_struck { "struck: not compared" } else { "not available" }.into(),
                ..Row::default()
            }
        };
        let with = outcome.a.iter().map(|side| (side, colour));
        let both = with.chain(outcome.b.iter().map(|side| (side, GREY)));
        Group { label: study::name(&outcome.settings, &axes), rows: both.map(row).collect() }
    };
    let groups = report.outcomes.iter().zip(&report.cells).map(group);
    groups.filter(|group| !group.rows.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use comparison::plan::sweep::SweepKind;
    use comparison::plan::{Setting, Settings, StudyView};

    use super::*;
    use crate::testing::{cell, study};

    #[test]
    fn a_line_goes_from_left_to_right_whatever_was_typed_first() {
        let at = |threads| Settings::from([(Axis::Threads, Setting::Number(threads))]);
        let cells = [8, 1, 4].map(|threads| cell(at(threads), [f64::from(threads), 1.0])).into();
        let report = study("sweep generate", StudyView::Sweep(SweepKind::Generate), cells);
        let Content::Lines(lines) = lines(&report, Axis::Threads, Metric::Throughput).content else {
            panic!("no lines")
        };
        let drawn: Vec<f64> = lines.series[0].strands[0].iter().map(|point| point.x).collect();
        assert_eq!(drawn, [1.0, 4.0, 8.0]);
    }
}
