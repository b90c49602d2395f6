//! Several comparisons side by side, one for each precision: the costs and savings of each.

use comparison::facts::agreement::Agreement;
use comparison::judge::metrics::Metric;
use comparison::judge::report::{Report, Row, SCHEMA};

use super::{figure, figures, told};
use crate::table::{Cell, Column, Table};
use crate::table::{Screen, Tone};
use crate::words::{DASH, Json, title};

const METRICS: [Metric; 4] =
    [Metric::Load, Metric::PrefillThroughput, Metric::Throughput, Metric::PeakMemory];
const NOTE: &str = "Precisions were measured one after another: a difference between two of them is shown, not \
                    tested; verdicts are those of each comparison above.";

/// The table as text for a terminal, below the tables of the comparisons.
pub fn table(reports: &[Report], screen: &Screen) -> String {
    format!("{}\n{}", grid(reports).terminal(screen), screen.paragraph(Tone::Plain, NOTE))
}

pub fn markdown(reports: &[Report]) -> String {
    format!("{}\n\n{NOTE}\n", grid(reports).markdown())
}

pub fn json(reports: &[Report]) -> String {
    let all = Json::List(reports.iter().map(told).collect());
    Json::Fields(vec![("schema".to_owned(), Json::new(&SCHEMA)), ("reports".to_owned(), all)]).pretty()
}

/// The figures of all comparisons under one header. Each line names its precision.
pub fn csv(reports: &[Report]) -> String {
    figures::table(reports).csv()
}

fn grid(reports: &[Report]) -> Table {
    let figures = METRICS.map(|metric| Column::right(Cell::from(metric.title()).short(metric.short_title())));
    let ends = ["Parity", "Top-1 of f32", "KL from f32"].map(Column::right);
    let start = ["Precision", "Framework"].map(Column::left);
    let mut table = Table::new(start.into_iter().chain(figures).chain(ends));
    for row in reports.iter().flat_map(|report| &report.rows) {
        let (top1, kl) = loss(row);
        let start = [row.precision_words(), title(row)];
        let figures = METRICS.map(|metric| figure(row, metric));
        table.add(start.into_iter().chain(figures).chain([row.parity_words(), top1, kl]));
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
