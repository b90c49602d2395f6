//! One line for each figure of each contender.

use super::Report;
use crate::judge::limit::Share;

pub(crate) fn csv(report: &Report) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = ["framework", "state", "precision", "metric", "unit", "median", "min", "max", "rounds"];
    let mut write = |record: &[&str]| writer.write_record(record).expect("memory can be written");
    write(&header);
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for row in &report.rows {
        let state = serde_json::to_value(row.state).expect("a name");
        let state = state.as_str().unwrap_or_default();
        let precision = row.precision.observed.as_deref().unwrap_or(row.precision.requested.name());
        let rounds = row.rounds.to_string();
        let mut line = |metric: &str, unit: &str, figures: [Option<f64>; 3]| {
            let [median, min, max] = figures.map(number);
            write(&[&row.framework, state, precision, metric, unit, &median, &min, &max, &rounds]);
        };
        for figure in &row.metrics {
            line(figure.metric.name(), figure.unit, [figure.median, figure.min, figure.max]);
        }
        let Some(limit) = &row.limit else { continue };
        for (metric, share) in [("decode_share", &limit.decode), ("prefill_share", &limit.prefill)] {
            line(metric, "of limit", share.as_ref().map_or([None; 3], figures));
        }
    }
    String::from_utf8(writer.into_inner().expect("memory can be flushed")).expect("fields are UTF-8")
}

/// Median, least and most.
fn figures(share: &Share) -> [Option<f64>; 3] {
    let known = || share.values.iter().copied().flatten();
    [Some(share.median), known().reduce(f64::min), known().reduce(f64::max)]
}
