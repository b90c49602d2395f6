//! The charts of reports: the content of each panel, and pictures for sharing.

pub(crate) mod by_version;
mod crossed;
pub(crate) mod over_time;
pub(crate) mod run;
pub(crate) mod study;
pub(crate) mod sweep;
pub(crate) mod work;

use std::collections::BTreeMap;

use charts::{Colour, Figure, Size};
use judge::metrics::Metric;
use judge::report::work::memory::Parts;

/// Frameworks that have the same colour in every chart of every run.
pub(crate) const KNOWN: [&str; 3] = ["candle", "tch", "ort"];

/// Width in pixels of a picture for issues and slides, and its largest height.
const WIDTH: u32 = 1200;
const HIGHEST: u32 = 6000;
/// Size in pixels of link previews.
pub(crate) const PREVIEW: Size = Size { width: 1200, height: 630 };

pub(crate) fn colours(labels: &[String]) -> BTreeMap<String, Colour> {
    labels.iter().cloned().zip(charts::assign(labels, &KNOWN)).collect()
}

/// The hint next to a metric's title: the better direction.
pub(crate) fn better(metric: Metric) -> String {
    if metric.higher_is_better() { "higher is better" } else { "lower is better" }.to_owned()
}

/// The parts of the peak, in the order of the bar.
pub(crate) const PARTS: [&str; 5] = ["framework", "parameters", "KV cache", "activations", "remainder"];

/// A bar of [`PARTS`] in megabytes.
pub(crate) fn stacked(label: String, parts: &Parts) -> charts::StackRow {
    let values = parts.summands().map(|(_, bytes)| bytes / 1e6);
    charts::StackRow { label, values: values.into(), total: parts.peak / 1e6 }
}

/// A chart; `None` without rows.
pub(crate) fn stack(rows: Vec<charts::StackRow>) -> Option<charts::Stack> {
    (!rows.is_empty()).then(|| charts::Stack {
        title: "Peak memory by part".into(),
        hint: "MB".into(),
        parts: PARTS.map(str::to_owned).into(),
        rows,
    })
}

/// A picture for sharing, as high as its content.
fn size(figure: &Figure) -> Size {
    let Size { width, height } = figure.size(WIDTH);
    Size { width, height: height.min(HIGHEST) }
}

pub(crate) fn png(figure: &Figure) -> Result<Vec<u8>, String> {
    figure.png(size(figure)).map_err(|error| error.to_string())
}

/// A picture for link previews.
pub(crate) fn preview(figure: &Figure) -> Result<Vec<u8>, String> {
    figure.png(PREVIEW).map_err(|error| error.to_string())
}

/// A figure as `<name>.png` and `<name>.svg`.
pub(crate) fn files(name: &str, figure: &Figure) -> Result<Vec<(String, Vec<u8>)>, String> {
    let svg = figure.svg(size(figure)).map_err(|error| error.to_string())?;
    Ok(vec![(format!("{name}.png"), png(figure)?), (format!("{name}.svg"), svg.into_bytes())])
}
