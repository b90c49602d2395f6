//! A line for each figure of each contender: first over all prompts, then for each prompt.

use comparison::judge::report::limit::Share;
use comparison::judge::report::{Figure, Report, Row};
use comparison::plan::Work;

use crate::table::Table;
use crate::words;

const TITLES: [&str; 14] = [
    "framework",
    "state",
    "precision",
    "metric",
    "unit",
    "median",
    "min",
    "max",
    "rounds",
    "prompt",
    "typical",
    "mean",
    "standard_deviation",
    "coefficient_of_variation",
];

/// The figures as CSV, for spreadsheets.
pub fn csv(report: &Report) -> String {
    table(std::slice::from_ref(report)).csv()
}

/// The figures of all reports as CSV under one header. Each line names its precision.
pub(super) fn table(reports: &[Report]) -> Table {
    let mut table = Table::plain(TITLES);
    for report in reports {
        table.rows.extend(lines(report).into_iter().map(|line| line.map(Into::into).into()));
    }
    table
}

fn lines(report: &Report) -> Vec<[String; 14]> {
    let mut lines = Vec::new();
    for row in &report.rows {
        lines.extend(row.metrics.iter().map(|figure| of_figure(row, figure, "")));
        let Some(limit) = &row.limit else { continue };
        let shares = match &report.plan.work {
            Work::Encode(_) => vec![("encoding_share", &limit.encoding)],
            _ => vec![("decode_share", &limit.decode), ("prefill_share", &limit.prefill)],
        };
        for (name, share) in shares {
            lines.push(line(row, name, "of limit", share.as_ref().map_or([None; 7], spread), ""));
        }
    }
    // The figures of a single prompt are those above.
    for prompt in report.prompts.iter().filter(|_| report.prompts.len() > 1) {
        for (row, by_prompt) in report.rows.iter().zip(&prompt.rows) {
            lines.extend(by_prompt.metrics.iter().map(|figure| of_figure(row, figure, &prompt.name)));
        }
    }
    lines
}

/// The line of one figure; `prompt` is empty for all prompts together.
fn of_figure(row: &Row, figure: &Figure, prompt: &str) -> [String; 14] {
    let figures = [
        figure.median,
        figure.min,
        figure.max,
        figure.typical,
        figure.mean,
        figure.standard_deviation,
        figure.coefficient_of_variation,
    ];
    line(row, figure.metric.name(), &figure.unit, figures, prompt)
}

fn line(row: &Row, metric: &str, unit: &str, figures: [Option<f64>; 7], prompt: &str) -> [String; 14] {
    // The requested precision is shown only without figures: with figures it might not be the one in effect.
    let unseen = if row.state.has_figures() { "" } else { row.precision.requested.name() };
    let precision = row.precision.observed.as_deref().unwrap_or(unseen);
    let [median, min, max, typical, mean, deviation, variation] = figures.map(words::exact);
    [
        row.framework.clone(),
        row.state.name().to_owned(),
        precision.to_owned(),
        metric.to_owned(),
        unit.to_owned(),
        median,
        min,
        max,
        row.rounds.to_string(),
        prompt.to_owned(),
        typical,
        mean,
        deviation,
        variation,
    ]
}

/// Median, least and largest figure, and nothing of the others.
fn spread(share: &Share) -> [Option<f64>; 7] {
    let known = || share.values.iter().copied().flatten();
    let (least, most) = (known().reduce(f64::min), known().reduce(f64::max));
    [Some(share.median), least, most, None, None, None, None]
}
