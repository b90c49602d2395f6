//! One line for each figure of each contender.

use super::Report;

pub(crate) fn csv(report: &Report) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = ["framework", "state", "precision", "metric", "unit", "median", "min", "max", "rounds"];
    let mut write = |record: &[String]| writer.write_record(record).expect("memory can be written");
    write(&header.map(str::to_owned));
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for row in &report.rows {
        let state = serde_json::to_value(row.state).expect("a name");
        let state = state.as_str().unwrap_or_default();
        let precision = row.precision.observed.as_deref().unwrap_or(row.precision.requested.name());
        for figure in &row.metrics {
            write(&[
                row.framework.clone(),
                state.to_owned(),
                precision.to_owned(),
                figure.metric.name().to_owned(),
                figure.unit.to_owned(),
                number(figure.median),
                number(figure.min),
                number(figure.max),
                row.rounds.to_string(),
            ]);
        }
    }
    String::from_utf8(writer.into_inner().expect("memory can be flushed")).expect("fields are UTF-8")
}
