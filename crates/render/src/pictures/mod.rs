//! The charts of reports: the content of each panel, and pictures for sharing.

pub(crate) mod by_version;
mod crossed;
pub(crate) mod over_time;
pub(crate) mod run;
pub(crate) mod study;
pub(crate) mod sweep;
pub(crate) mod work;

use std::collections::BTreeMap;

use charts::{Colour, Figure, Panel, Size};
use judge::metrics::Metric;
use judge::report::work::memory::Parts;

/// Frameworks with a colour of their own, the same in every chart of every run.
pub(crate) const KNOWN: [&str; 3] = ["candle", "tch", "ort"];

/// Size in pixels of a picture for issues and slides.
const PASTED: Size = Size { width: 1200, height: 675 };
/// Largest height in pixels of a picture with many bars.
const HIGHEST: u32 = 4000;

pub(crate) fn colours(labels: &[String]) -> BTreeMap<String, Colour> {
    labels.iter().cloned().zip(charts::assign(labels, &KNOWN)).collect()
}

/// The hint beside a metric's title: which direction is better.
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

/// Height in pixels of a panel by itself, title and axis included, at which its texts do not touch. `line` is that of
/// one row.
pub(crate) fn panel_height(panel: &Panel, line: u32) -> u32 {
    let rows = |rows: usize| 60 + line * rows.clamp(2, 160) as u32;
    match panel {
        Panel::Dots(dots) => rows(dots.lines()),
        Panel::Forest(forest) => rows(forest.lines()),
        Panel::Bars(bars) => {
            let headings = bars.groups.iter().filter(|group| !group.label.is_empty()).count();
            rows(headings + bars.groups.iter().map(|group| group.bars.len()).sum::<usize>())
        }
        Panel::Stack(stack) => 54 + rows(stack.rows.len()),
        Panel::Heatmap(heatmap) => 40 + rows(heatmap.values.len()),
        Panel::Lines(_) | Panel::Strands(_) | Panel::Survival(_) => 260,
    }
}

/// Characters of the answer that fit on a line of a picture.
const ANSWER_LINE: usize = 100;

/// Height in pixels at which the texts of a figure do not touch.
fn height(figure: &Figure) -> u32 {
    let of_row = |row: &std::ops::Range<usize>| {
        let panels = figure.panels[row.clone()].iter();
        panels.map(|panel| panel_height(panel, 26)).max().unwrap_or(0) + 24
    };
    let rows: u32 = figure.rows().iter().map(of_row).sum();
    let answer: usize = figure.answer.iter().map(|line| line.chars().count() / ANSWER_LINE + 1).sum();
    170 + 24 * answer as u32 + rows
}

/// A picture for sharing; higher if it has many bars.
fn size(figure: &Figure) -> Size {
    Size { height: height(figure).clamp(PASTED.height, HIGHEST), ..PASTED }
}

pub(crate) fn png(figure: &Figure) -> Result<Vec<u8>, String> {
    figure.png(size(figure)).map_err(|error| error.to_string())
}

/// A figure as `<name>.png` and `<name>.svg`.
pub(crate) fn files(name: &str, figure: &Figure) -> Result<Vec<(String, Vec<u8>)>, String> {
    let svg = figure.svg(size(figure)).map_err(|error| error.to_string())?;
    Ok(vec![(format!("{name}.png"), png(figure)?), (format!("{name}.svg"), svg.into_bytes())])
}
