//! One line for each figure of each contender: of all prompts together, then of each prompt.

use super::row::Figure;
use super::{Report, Row};
use crate::judge::limit::Share;

const HEADER: [&str; 10] =
    ["framework", "state", "precision", "metric", "unit", "median", "min", "max", "rounds", "prompt"];

pub(crate) fn csv(report: &Report) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut write = |record: [String; 10]| writer.write_record(&record).expect("memory can be written");
    write(HEADER.map(str::to_owned));
    for row in &report.rows {
        for figure in &row.metrics {
            write(line(row, figure.metric.name(), &figure.unit, of(figure), ""));
        }
        let Some(limit) = &row.limit else { continue };
        for (metric, share) in [("decode_share", &limit.decode), ("prefill_share", &limit.prefill)] {
            let figures = share.as_ref().map_or([None; 3], of_share);
            write(line(row, metric, "of limit", figures, ""));
        }
    }
    // A single prompt's are those above.
    for prompt in report.prompts.iter().filter(|_| report.prompts.len() > 1) {
        for (row, of_prompt) in report.rows.iter().zip(&prompt.rows) {
            for figure in &of_prompt.metrics {
                let record = line(row, figure.metric.name(), &figure.unit, of(figure), &prompt.name);
                write(record);
            }
        }
    }
    String::from_utf8(writer.into_inner().expect("memory can be flushed")).expect("fields are UTF-8")
}

/// `prompt`: empty for all together.
fn line(row: &Row, metric: &str, unit: &str, figures: [Option<f64>; 3], prompt: &str) -> [String; 10] {
    let state = serde_json::to_value(row.state).expect("a name");
    let precision = row.precision.observed.as_deref().unwrap_or(row.precision.requested.name());
    let [median, min, max] = figures.map(|value| value.map_or(String::new(), |value| value.to_string()));
    [
        row.framework.clone(),
        state.as_str().unwrap_or_default().to_owned(),
        precision.to_owned(),
        metric.to_owned(),
        unit.to_owned(),
        median,
        min,
        max,
        row.rounds.to_string(),
        prompt.to_owned(),
    ]
}

/// Median, least and most.
fn of(figure: &Figure) -> [Option<f64>; 3] {
    [figure.median, figure.min, figure.max]
}

fn of_share(share: &Share) -> [Option<f64>; 3] {
    let known = || share.values.iter().copied().flatten();
    [Some(share.median), known().reduce(f64::min), known().reduce(f64::max)]
}
