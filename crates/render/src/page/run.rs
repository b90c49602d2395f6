//! The page of a run: the answer, every pair, the table, four pictures; then what proves it.

use charts::{Panel, number};
use judge::Metric;
use judge::report::dependence::Dependence;
use judge::report::verdicts::{Comparison, Verdict};
use judge::report::work::generate::Times;
use judge::report::{Report, Row, State};
use maud::{Markup, html};

use super::facts;
use super::html::{self, Chart};
use super::repeat::{self, Source};
use super::table::{self, Look};
use super::work::generate;
use crate::comparison;
use crate::pictures::run::{Pictures, absent, subtitle, title};
use crate::table::{Column, Table};
use crate::words::{self, or_dash};

pub(super) fn html(report: &Report, times: &Times) -> Result<String, String> {
    let pictures = Pictures::new(report);
    let Report { environment, .. } = report;
    let json = serde_json::to_string(&crate::comparison::told(report))
        .expect("a report has string keys and no failing serialiser");
    let source = Source {
        commit: environment.git_commit.as_deref(),
        modified: environment.git_modified == Some(true),
        seed: Some(report.plan.seed),
    };
    let body = html! {
        (html::header(&title(report), &subtitle(report), &environment.started, &words::answer(&words::summary(report))))
        (html::section("Every pair", &pairs(report, &pictures)?))
        (html::section("Result", &result(report)))
        (html::warnings(&warnings(report)))
        (html::section("Side by side", &html::charts(&side_by_side(report, &pictures))?))
        (html::section("The evidence", &html! {
            (html::paragraph(&report.plan.analysis))
            @if deciding(report).next().is_some() {
                (html::details("By the state of the machine", &by_state(report, &pictures)?))
            }
            (html::details("Request by request", &generate::over_time(report, &pictures, times)?))
            (html::details("Memory by part", &memory(report, &pictures)?))
            (html::details("Every verdict", &html::list(sentences(report))))
            (facts::rules(report))
            (facts::prompts(report))
            (html::details("What else was measured", &html::list(facts::further_findings(report))))
            (html::details("Versions and environment", &html! {
                (facts::versions(report))
                (facts::environment(report))
            }))
        }))
        (html::section("To repeat it", &repeat::section(&environment.command, source)))
        (html::section("Raw data", &html::data(&json, &["comparison.png", "comparison.svg", "preview.png"])))
    };
    Ok(html::document(&title(report), &body))
}

/// Why rows have no part in verdicts, and the verdict on every metric of every pair.
pub(super) fn sentences(report: &Report) -> Vec<String> {
    let comparisons: Vec<String> =
        report.comparisons.iter().map(|found| comparison::verdict(report, found)).collect();
    let verdicts = words::summary(report).verdicts.into_iter().map(|line| line.text);
    let others = verdicts.filter(|line| !comparisons.contains(line)).collect::<Vec<_>>().into_iter();
    others.chain(comparisons.iter().cloned()).collect()
}

/// Up to this number of pairs, the pairs of every metric that is asked for are shown; beyond, those of the first alone.
const FEW: usize = 6;

fn pairs(report: &Report, pictures: &Pictures<'_>) -> Result<Markup, String> {
    let chart = |metric: Metric| Chart {
        id: format!("pairs-{}", metric.name()),
        title: format!("{}, pair by pair", metric.title()),
        description: "A row for each pair of contenders: how many times better the first is, with the 95 % interval, \
                          on a logarithmic axis. The grey band counts as no difference; only decided pairs have a colour",
        panel: Panel::Forest(pictures.forest(metric)),
        table: Some(pair_by_pair(pictures, metric)),
    };
    let asked = Metric::questions(report.plan.work.kind());
    let count = report.comparisons.iter().filter(|found| found.metric == asked[0]).count();
    let shown = if count <= FEW { asked.as_slice() } else { &asked[..1] };
    let (shown, folded): (Vec<Metric>, Vec<Metric>) =
        pictures.compared().into_iter().partition(|metric| shown.contains(metric));
    let [shown, folded] = [shown, folded].map(|metrics| metrics.into_iter().map(chart).collect::<Vec<_>>());
    let caption = format!(
        "How many times better the first of two is, with the 95 % interval, on a logarithmic axis. The grey band, within \
         {} %, counts as no difference. Only pairs that are decided have a colour.",
        report.plan.margin * 100.0
    );
    Ok(html! {
        @if !shown.is_empty() { p class="caption" { (caption) } }
        (html::charts(&shown)?)
        (html::details("Every pair in the other metrics", &html::charts(&folded)?))
    })
}

/// The figures of a forest plot.
fn pair_by_pair(pictures: &Pictures<'_>, metric: Metric) -> Table {
    let figures = ["Times better", "95 % interval"].map(Column::right);
    let columns = [Column::left("Pair")].into_iter().chain(figures).chain([Column::left("Verdict")]);
    let mut table = Table::new(columns);
    for found in pictures.comparisons(metric) {
        let Comparison { a, b, .. } = found;
        let verdict = match found.verdict {
            Verdict::Faster => format!("{a} is better"),
            Verdict::Slower => format!("{b} is better"),
            verdict => words::verdicts::word(verdict).to_owned(),
        };
        let ratio = or_dash(found.advantage, |ratio| format!("{ratio:.2}"));
        let interval = or_dash(found.interval, |(low, high)| format!("{low:.2} – {high:.2}"));
        table.add([format!("{a} vs {b}"), ratio, interval, verdict]);
    }
    table.captioned(format!("{}, pair by pair", metric.title()))
}

/// The table of the comparison.
pub(super) fn result(report: &Report) -> Markup {
    let caption = "Geometric mean over rounds; below it its 95 % interval, where there are rounds enough \
                   for one";
    let struck_columns: Vec<usize> = facts::struck(&report.rows).into_iter().map(|place| place + 1).collect();
    let shown = |mut table: Table| {
        for (column, row) in table.columns.iter_mut().skip(1).zip(&report.rows) {
            column.title = words::title(row).into();
        }
        table::looking(
            &table.captioned(caption),
            &Look { struck_columns: struck_columns.clone(), ..Look::default() },
        )
    };
    html! {
        (shown(comparison::grid(report, true)))
        p { (comparison::kinds(report)) }
        (html::details("Further metrics", &shown(comparison::further_metrics(report))))
    }
}

/// Frameworks without figures or outside the ranking, and warnings that qualify the rest.
pub(super) fn warnings(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for row in report.rows.iter().filter(|row| row.state != State::Measured) {
        let words = row.state.words();
        lines.extend(row.reasons.iter().map(|reason| format!("{} {words}: {reason}", row.framework)));
    }
    lines
        .extend(report.sanity.iter().map(|flag| format!("impossible: {}: {}", flag.framework, flag.finding)));
    lines.extend(words::warnings::warnings(report));
    lines
}

fn side_by_side(report: &Report, pictures: &Pictures<'_>) -> Vec<Chart> {
    let chart = |metric: Metric| Chart {
        id: metric.name().into(),
        title: metric.title().into(),
        description: "A dot for each process of each framework; below, their geometric mean with its 95 % interval",
        panel: Panel::Dots(pictures.dots(metric)),
        table: Some(by_round(report, metric)),
    };
    if report.rows.is_empty() { Vec::new() } else { pictures.drawn().into_iter().map(chart).collect() }
}

fn by_round(report: &Report, metric: Metric) -> Table {
    let figure = |row: &Row| row.metrics.iter().find(|figure| figure.metric == metric).cloned();
    let rounds = report.rows.iter().filter_map(|row| Some(figure(row)?.values.len())).max().unwrap_or(0);
    let titles = ["Geometric mean", "95 % interval"].map(str::to_owned).into_iter();
    let titles = titles.chain((1..=rounds).map(|round| round.to_string())).map(Column::right);
    let mut table = Table::new([Column::left("Framework")].into_iter().chain(titles));
    for row in &report.rows {
        let figure = figure(row);
        let median = figure.as_ref().and_then(|figure| figure.typical);
        let interval = figure.as_ref().and_then(words::interval);
        let start = [
            words::title(row),
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

/// The pairs with a deciding ratio that depends on the state of the machine.
fn deciding(report: &Report) -> impl Iterator<Item = &Dependence> {
    let metric = Metric::deciding(report.plan.work.kind());
    report.dependences.iter().filter(move |found| found.metric == metric)
}

/// These pairs, each with its ratio by the speed of the others.
fn by_state(report: &Report, pictures: &Pictures<'_>) -> Result<Markup, String> {
    let chart = |(place, found): (usize, &Dependence)| Chart {
        id: format!("state-{place}"),
        title: format!(
            "{} ÷ {} by the speed of {}",
            found.a,
            found.b,
            words::dependence::others(&found.others)
        ),
        description: "A mark for each round: the speed of the other contenders and the ratio of the pair, both on \
                          logarithmic axes; and the fitted line",
        panel: Panel::Lines(pictures.by_state(found)),
        table: None,
    };
    let charts: Vec<Chart> = deciding(report).enumerate().map(chart).collect();
    Ok(html! {
        p class="caption" {
            "The speed of the other contenders shows the state of the machine in a round, for example of its memory. These \
             ratios depend on it; verdicts are about its mean in this run."
        }
        (html::charts(&charts)?)
    })
}

fn memory(report: &Report, pictures: &Pictures<'_>) -> Result<Markup, String> {
    let Some(stack) = pictures.memory() else { return Ok(Markup::default()) };
    let ends = ["peak", "of weights + KV cache"];
    let parts = stack.parts.iter().map(String::as_str).chain(ends).map(Column::right);
    let mut table = Table::new([Column::left("Framework")].into_iter().chain(parts));
    let mut struck = Vec::new();
    for row in &report.rows {
        let Some(parts) = &row.memory else { continue };
        if row.state == State::Struck {
            struck.push(table.rows.len());
        }
        let stacked = crate::pictures::stacked(words::title(row), parts);
        let values = stacked.values.iter().chain([&stacked.total]).map(|&value| number(value));
        let times = parts.times_needed.map_or_else(|| words::DASH.to_owned(), |times| format!("{times:.2}x"));
        table.add([stacked.label].into_iter().chain(values).chain([times]));
    }
    let (title, whose) = match report.plan.is_on_gpu() {
        true => ("Memory of the host by part", "of the host, in addition to the GPU’s"),
        false => ("Peak memory by part", "the parts add up to the peak"),
    };
    let chart = Chart {
        id: "parts".into(),
        title: title.into(),
        description: "For each framework, the parts of its process's peak memory laid end to end up to the peak",
        panel: Panel::Stack(stack),
        table: None,
    };
    let table = table.captioned(format!("{title} (MB); {whose}"));
    let look = Look { struck_rows: struck, ..Look::default() };
    Ok(html! { (html::charts(&[chart])?) (table::looking(&table, &look)) (on_gpu(report)) })
}

/// Memory of the GPU by part, and by phase.
fn on_gpu(report: &Report) -> Markup {
    let rows = report.rows.iter();
    let known: Vec<_> =
        rows.filter_map(|row| Some((row, row.memory.as_ref()?.gpu_parts.as_ref()?))).collect();
    let Some((_, first)) = known.first() else { return Markup::default() };
    let mb = |bytes: Option<f64>| or_dash(bytes.map(|bytes| bytes / 1e6), number);
    let names = first.summands().map(|(name, _)| name);
    let columns = names.into_iter().chain(["peak", "mean", "weights file"]).map(Column::right);
    let mut parts = Table::new([Column::left("Framework")].into_iter().chain(columns));
    let phases = first.phases.iter().flat_map(|phase| {
        ["held", "allocated", "at most"]
            .map(|what| Column::right(format!("{}: {what}", phase.phase.as_str())))
    });
    let mut by_phase = Table::new([Column::left("Framework")].into_iter().chain(phases));
    for (row, told) in &known {
        let ends = [Some(told.peak), told.mean, Some(told.weights_file)];
        let bytes = told.summands().map(|(_, bytes)| bytes).into_iter().chain(ends);
        parts.add([words::title(row)].into_iter().chain(bytes.map(mb)));
        let readings = told.phases.iter().flat_map(|phase| [phase.held, phase.in_use, phase.peak]);
        by_phase.add([words::title(row)].into_iter().chain(readings.map(mb)));
    }
    let parts = parts.captioned("Memory of the GPU by part (MB); the first four add up to the peak");
    let by_phase = by_phase.captioned("Memory of the GPU after each phase (MB)");
    let look = Look::default();
    html! { (table::looking(&parts, &look)) (table::looking(&by_phase, &look)) }
}
