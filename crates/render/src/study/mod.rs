//! A study: its cells side by side.

mod grids;
mod words;

use comparison::judge::study::StudyReport;
use comparison::plan::StudyView;
pub(crate) use grids::{PUBLISHED, curve, published};
pub(crate) use words::summary;

use crate::export::{Block, Body, Document};
use crate::table::{Screen, Table};
use crate::words::Json;
use crate::words::verdicts::{self, warnings_sentence as warning};

impl Document for StudyReport {
    fn body(&self, terminal: Option<&Screen>) -> Body {
        let summary = summary(self);
        let ranges = terminal.is_some_and(|screen| screen.verbose);
        let answer = vec![
            Block::Answer(summary.answer),
            Block::Paragraph(summary.heading),
            Block::Table(grid(self, ranges)),
        ];
        let tables = grids::arms(self).into_iter().chain(curve(self)).chain(published(self));
        let mut rest: Vec<Block> = tables.map(Block::Table).collect();
        rest.push(Block::Lines(summary.details));
        if !self.analysis.is_empty() {
            rest.push(Block::Paragraph(self.analysis.clone()));
        }
        rest.push(Block::Elsewhere(format!("Every comparison, and report.html: {}", self.results)));
        Body { answer, rest }
    }

    fn json(&self) -> Json {
        let mut json = Json::new(self);
        json.each("cells", &self.cells, |json, cell| {
            let tell = |json: &mut Json, found: &_| {
                verdicts::tell(json, found, verdicts::sentence(found, cell.origin.margin))
            };
            json.each("verdicts", &cell.verdicts, tell);
            json.set("warnings", Json::new(&cell.warnings.iter().map(warning).collect::<Vec<_>>()));
        });
        json.set("summary", Json::new(&summary(self)));
        json
    }

    fn figures(&self) -> Table {
        grids::figures(self)
    }
}

/// The main table. With `ranges`, the least and the largest of each figure of a sweep are below its median.
pub(crate) fn grid(report: &StudyReport, ranges: bool) -> Table {
    match &report.view {
        StudyView::Sweep(kind) => grids::sweep(report, *kind, ranges),
        StudyView::Ab(arms) => grids::ab(report, arms),
    }
}
