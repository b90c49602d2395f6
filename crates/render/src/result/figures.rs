//! A line for each figure of each contender: first over all prompts, then for each prompt.

use comparison::judge::report::limit::Share;
use comparison::judge::report::{Figure, Report, Row};
use serde_json::{Value, json};

use crate::flat::{self, Line};
use crate::table::Table;

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

/// The figures of all reports under one header. Each line names its precision.
pub(super) fn table(reports: &[Report]) -> Table {
    flat::table(&TITLES, &reports.iter().flat_map(lines).collect::<Vec<_>>())
}

fn lines(report: &Report) -> Vec<Line> {
    let mut lines = Vec::new();
    for row in &report.rows {
        lines.extend(row.metrics.iter().map(|figure| of_figure(row, figure, "")));
        let Some(limit) = &row.limit else { continue };
        let shares = [
            ("encoding_share", &limit.encoding),
            ("decode_share", &limit.decode),
            ("prefill_share", &limit.prefill),
        ];
        for (name, share) in shares {
            lines.extend(share.iter().map(|share| of_share(row, name, share)));
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
fn of_figure(row: &Row, figure: &Figure, prompt: &str) -> Line {
    let spread = [figure.median, figure.min, figure.max];
    let mut line = start(row, figure.metric.name(), &figure.unit, spread, prompt);
    line.extend(flat::line([
        ("typical", json!(figure.typical)),
        ("mean", json!(figure.mean)),
        ("standard_deviation", json!(figure.standard_deviation)),
        ("coefficient_of_variation", json!(figure.coefficient_of_variation)),
    ]));
    line
}

/// Median, least and largest share of the machine's limit.
fn of_share(row: &Row, name: &str, share: &Share) -> Line {
    let known = || share.values.iter().copied().flatten();
    let (least, most) = (known().reduce(f64::min), known().reduce(f64::max));
    start(row, name, "of limit", [Some(share.median), least, most], "")
}

fn start(row: &Row, metric: &str, unit: &str, [median, min, max]: [Option<f64>; 3], prompt: &str) -> Line {
    // The requested precision is shown only without figures: with figures it might not be the one in effect.
    let unseen = if row.state.has_figures() { "" } else { row.precision.requested.name() };
    flat::line([
        ("framework", json!(row.framework)),
        ("state", json!(row.state.name())),
        ("precision", Value::from(row.precision.observed.as_deref().unwrap_or(unseen))),
        ("metric", json!(metric)),
        ("unit", json!(unit)),
        ("median", json!(median)),
        ("min", json!(min)),
        ("max", json!(max)),
        ("rounds", json!(row.rounds)),
        ("prompt", json!(prompt)),
    ])
}
