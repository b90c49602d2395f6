//! Several comparisons side by side, one for each precision: the costs and savings of each.

use comparison::facts::agreement::Agreement;
use comparison::judge::metrics::Metric;
use comparison::judge::report::{Report, Row, SCHEMA};

use super::{figure, figures, told};
use crate::export::{Block, Body, Document};
use crate::table::{Cell, Screen, Table};
use crate::words::{DASH, Json, title};

const METRICS: [Metric; 4] =
    [Metric::Load, Metric::PrefillThroughput, Metric::Throughput, Metric::PeakMemory];
const NOTE: &str = "Precisions were measured one after another: a difference between two of them is shown, not \
                    tested; verdicts are those of each comparison above.";

pub struct Precisions<'a>(pub &'a [Report]);

impl Document for Precisions<'_> {
    /// The table below those of the comparisons.
    fn body(&self, _: Option<&Screen>) -> Body {
        let answer = vec![Block::Table(grid(self.0)), Block::Paragraph(NOTE.to_owned())];
        Body { answer, rest: Vec::new() }
    }

    fn json(&self) -> Json {
        let all = Json::List(self.0.iter().map(told).collect());
        Json::Fields(vec![("schema".to_owned(), Json::new(&SCHEMA)), ("reports".to_owned(), all)])
    }

    /// The figures of all comparisons under one header. Each line names its precision.
    fn figures(&self) -> Table {
        figures(self.0)
    }
}

fn grid(reports: &[Report]) -> Table {
    let ends = ["Parity", "Top-1 of f32", "KL from f32"].map(Cell::from);
    let mut table =
        Table::of(["Precision", "Framework"], METRICS.map(Cell::of_metric).into_iter().chain(ends));
    for row in reports.iter().flat_map(|report| &report.rows) {
        let (top1, kl) = loss(row);
        let start = [row.precision_words(), title(row)];
        let figures = METRICS.map(|metric| figure(row, metric));
        table.push(start, figures.into_iter().chain([row.parity_words(), top1, kl]));
    }
    table
}

/// Agreement with the unquantised model in f32. At 16 bits and above, it is the result of the parity gate itself.
fn loss(row: &Row) -> (String, String) {
    let of_row = |agreement: &Agreement| {
        let of_loss = agreement.quantisation_loss.map(|loss| (loss.top1, loss.mean_kl));
        of_loss.or_else(|| agreement.logits.map(|logits| (logits.top1, logits.mean_kl)))
    };
    match row.agreement.as_ref().and_then(of_row) {
        Some((top1, kl)) => (format!("{:.1} %", top1 * 100.0), format!("{kl:.1e}")),
        None => (DASH.into(), DASH.into()),
    }
}
