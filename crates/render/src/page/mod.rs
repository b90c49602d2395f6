//! Pages and pictures of results: one self-contained `report.html` of a run, of a study and of the history, and the
//! charts as files. They are made from what was saved, so that `driver report` makes the same again later.

mod command;
mod facts;
mod history;
mod markup;
mod pictures;
mod run;
mod samples;
mod study;
mod sweep;
#[cfg(test)]
mod tests;
mod view;

use std::path::{Path, PathBuf};

use charts::{Figure, Panel, Size};
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::report::SCHEMA;
use crate::results::write_whole;

pub(crate) use command::{ReportArgs, report};
pub(crate) use history::performance_over_time;
pub(crate) use pictures::KNOWN;

/// What is pasted into issues and slides.
const PASTED: Size = Size { width: 1200, height: 675 };
/// As high as a picture of many bars may become.
const HIGHEST: u32 = 4000;

/// Makes page and pictures of the run or study in this directory from its `report.json`.
pub(crate) fn write(directory: &Path) -> Result<Vec<PathBuf>> {
    let path = directory.join("report.json");
    let text = std::fs::read_to_string(&path).map_err(|e| {
        Failure::usage(format!(
            "{} is no results directory: cannot read report.json: {e}",
            directory.display()
        ))
    })?;
    let foreign = |reason: String| {
        Failure::usage(format!("{} is no report that can be shown: {reason}", path.display()))
    };
    let value: Value = serde_json::from_str(&text).map_err(|e| foreign(e.to_string()))?;
    match value.get("schema").and_then(Value::as_u64) {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(schema) => {
            return Err(foreign(format!(
                "its schema is {schema}, and this driver shows {SCHEMA}; measure again, or use the driver that made it"
            )));
        }
        None => return Err(foreign("it has no schema".into())),
    }
    let unreadable = |error: serde_json::Error| foreign(error.to_string());
    if value.get("study").is_some() {
        let study: view::Study = serde_json::from_value(value).map_err(unreadable)?;
        let page = save(directory, "report.html", study::html(&study, &text)?.as_bytes())?;
        let drawn = study::comparison(&study).map(|figure| pictures_of(directory, "comparison", &figure));
        return Ok([vec![page], drawn.transpose()?.unwrap_or_default()].concat());
    }
    if value.get("rows").is_none() {
        return Err(foreign("it has no rows".into()));
    }
    let run: view::Run = serde_json::from_value(value).map_err(unreadable)?;
    let page = run::html(&run, &text, &samples::gaps(directory))?;
    let page = save(directory, "report.html", page.as_bytes())?;
    let figure = pictures::Pictures::of(&run).comparison(&run::title(&run), &run::subtitle(&run));
    Ok([vec![page], pictures_of(directory, "comparison", &figure)?].concat())
}

/// Pixels that a figure's bars take without their texts touching, row by row of its panels.
fn height(figure: &Figure) -> u32 {
    let of = |panel: &Panel| match panel {
        Panel::Bars(bars) => {
            let headings = bars.groups.iter().filter(|group| !group.label.is_empty()).count();
            60 + 24 * bars.groups.iter().map(|group| group.bars.len()).sum::<usize>() + 22 * headings
        }
        Panel::Stack(stack) => 120 + 24 * stack.rows.len(),
        _ => 240,
    };
    let rows = figure.panels.chunks(figure.columns.max(1));
    let rows: usize = rows.map(|row| row.iter().map(of).max().unwrap_or(0) + 24).sum();
    140 + rows as u32
}

fn size(figure: &Figure) -> Size {
    Size { height: height(figure).clamp(PASTED.height, HIGHEST), ..PASTED }
}

/// A figure as people paste it; higher, where it has many bars.
pub(crate) fn png(figure: &Figure) -> Result<Vec<u8>> {
    figure.png(size(figure)).map_err(|error| Failure::failed(error.to_string()))
}

/// One figure as `<name>.png` and `<name>.svg`.
fn pictures_of(directory: &Path, name: &str, figure: &Figure) -> Result<Vec<PathBuf>> {
    let svg = figure.svg(size(figure)).map_err(|error| Failure::failed(error.to_string()))?;
    Ok(vec![
        save(directory, &format!("{name}.png"), &png(figure)?)?,
        save(directory, &format!("{name}.svg"), svg.as_bytes())?,
    ])
}

/// Whole or not at all.
fn save(directory: &Path, name: &str, contents: &[u8]) -> Result<PathBuf> {
    let path = directory.join(name);
    write_whole(directory, name, contents)
        .map_err(|e| Failure::failed(format!("cannot save to {}: {e}", path.display())))?;
    Ok(path)
}
