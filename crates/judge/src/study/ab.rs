//! A/B studies: each framework with an optimisation and without it, paired by round.

use plan::{Axis, Setting, Settings};
use serde::{Deserialize, Serialize};

use super::cell::{Cell, CellRow};
use super::scaling::{self, Scaling};
use crate::metrics::Metric;
use crate::report::verdicts::Verdict;

/// One framework at one place, with and without.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub settings: Settings,
    /// The reason why there is nothing to compare, if there is one.
    pub reason: Option<String>,
    pub a: Option<Side>,
    pub b: Option<Side>,
    /// The speed-up of decoding or encoding: a's throughput ÷ b's, with its 95 % interval, and the verdict on
    /// a. For a mistake: b's time of a whole request ÷ a's.
    pub speedup: Option<f64>,
    #[serde(deserialize_with = "facts::reading::interval")]
    pub interval: Option<(f64, f64)>,
    pub verdict: Option<Verdict>,
    /// Change of the peak memory as a share: a's peak ÷ b's − 1.
    pub memory_change: Option<f64>,
    /// Number of tokens chosen in the timed loop, and how many of them are the same in both arms.
    pub tokens: usize,
    pub same_tokens: usize,
    /// Parity of both arms, in words.
    pub parity: [String; 2],
}

/// The figures of one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    pub contender: String,
    pub precision: String,
    /// Throughput in tokens per second, for encoders in texts per second.
    pub throughput: Option<f64>,
    /// Time of one request in milliseconds, to its last mark.
    pub total_ms: Option<f64>,
    /// Peak memory in gigabytes.
    pub peak_memory: Option<f64>,
}

/// The outcome of every cell.
pub fn outcomes(cells: &[Cell]) -> Vec<Outcome> {
    cells.iter().map(outcome).collect()
}

fn outcome(cell: &Cell) -> Outcome {
    let [a, b] = [cell.rows.first(), cell.rows.get(1)];
    let of_pair = |metric: Metric| {
        let verdict = cell.verdicts.iter().find(|verdict| verdict.metric == metric)?;
        let is_a = Some(verdict.a.as_str()) == a.map(|row| row.framework.as_str());
        let turned = |(low, high): (f64, f64)| if is_a { (low, high) } else { (1.0 / high, 1.0 / low) };
        let word = match verdict.verdict {
            Verdict::Faster if !is_a => Verdict::Slower,
            other => other,
        };
        let speedup = verdict.advantage.map(|times| if is_a { times } else { 1.0 / times });
        Some((speedup, verdict.interval.map(turned), word))
    };
    let decides = deciding(cell);
    let (speedup, interval, verdict) = match of_pair(decides) {
        Some((speedup, interval, verdict)) => (speedup, interval, Some(verdict)),
        None => (None, None, None),
    };
    let peak = |row: Option<&CellRow>| row?.typical(Metric::PeakMemory);
    // One round cannot separate a difference from chance, but it gives this estimate.
    let figure = |row: Option<&CellRow>| row?.typical(decides);
    let speedup = speedup.or_else(|| {
        let (a, b) = (figure(a)?, figure(b)?);
        Some(if decides.higher_is_better() { a / b } else { b / a })
    });
    let throughput = throughput(cell);
    let (tokens, same_tokens) = same(a, b);
    let reasons =
        || cell.rows.iter().flat_map(|row| row.reasons.iter().map(|why| format!("{}: {why}", row.framework)));
    Outcome {
        settings: cell.settings.clone(),
        reason: cell.refused.clone().or_else(|| reasons().next()),
        a: a.map(|row| side(row, throughput, total(cell))),
        b: b.map(|row| side(row, throughput, total(cell))),
        speedup,
        interval,
        verdict,
        memory_change: peak(a).zip(peak(b)).map(|(a, b)| a / b - 1.0),
        tokens,
        same_tokens,
        parity: [a, b].map(|row| row.map_or("not run".into(), |row| row.parity.clone())),
    }
}

/// Whether these are the places of mistakes. Their cost is that of a whole request.
pub fn has_mistakes(planned: &[Settings]) -> bool {
    planned.iter().any(|settings| settings.contains_key(&Axis::Mistake))
}

/// Sorts the cells of mistakes by their cost, the worst first; those that could not be measured come last.
pub fn by_cost(cells: &mut [Cell]) {
    let cost = |cell: &Cell| outcome(cell).speedup.unwrap_or(0.0);
    cells.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
}

/// The metric that both sides of a cell are compared by.
fn deciding(cell: &Cell) -> Metric {
    if has_mistakes(std::slice::from_ref(&cell.settings)) { total(cell) } else { throughput(cell) }
}

/// The throughput of a cell: for encoders, that of batches of texts.
pub fn throughput(cell: &Cell) -> Metric {
    if has(cell, Metric::EncodingThroughput) { Metric::EncodingThroughput } else { Metric::Throughput }
}

/// The time of a whole request in a cell: for a single encoded text, its own.
fn total(cell: &Cell) -> Metric {
    if has(cell, Metric::SingleText) { Metric::SingleText } else { Metric::Total }
}

fn has(cell: &Cell, metric: Metric) -> bool {
    cell.rows.iter().any(|row| row.metrics.contains_key(&metric))
}

fn side(row: &CellRow, throughput: Metric, total: Metric) -> Side {
    Side {
        contender: row.framework.clone(),
        precision: row.precision.clone(),
        throughput: row.typical(throughput),
        total_ms: row.typical(total),
        peak_memory: row.typical(Metric::PeakMemory),
    }
}

/// Number of tokens that both sides chose in the timed loop, and how many of them are the same.
fn same(a: Option<&CellRow>, b: Option<&CellRow>) -> (usize, usize) {
    let flat = |row: &CellRow| -> Option<Vec<u32>> {
        Some(row.tokens.as_ref()?.iter().flatten().flatten().copied().collect())
    };
    let Some((a, b)) = a.and_then(flat).zip(b.and_then(flat)) else { return (0, 0) };
    (a.len().max(b.len()), a.iter().zip(&b).filter(|(a, b)| a == b).count())
}

/// Growth of the speed-up, and of the time of either side, with the number of new tokens.
pub fn scaling(outcomes: &[Outcome]) -> Vec<Scaling> {
    let mut places: Vec<Settings> = Vec::new();
    for outcome in outcomes {
        let mut rest = outcome.settings.clone();
        rest.remove(&Axis::NewTokens);
        if !places.contains(&rest) {
            places.push(rest);
        }
    }
    let mut all = Vec::new();
    for place in places {
        let here = outcomes.iter().filter(|outcome| {
            let mut rest = outcome.settings.clone();
            rest.remove(&Axis::NewTokens);
            rest == place
        });
        let here: Vec<&Outcome> = here.collect();
        for pick in [|o: &Outcome| o.a.clone(), |o: &Outcome| o.b.clone()] {
            let points = here.iter().filter_map(|outcome| {
                let Setting::Number(tokens) = outcome.settings.get(&Axis::NewTokens)? else { return None };
                Some((f64::from(*tokens), pick(outcome)?.total_ms?))
            });
            let points: Vec<(f64, f64)> = points.collect();
            let name = here.iter().find_map(|outcome| Some(pick(outcome)?.contender));
            let mut at = place.clone();
            at.remove(&Axis::Framework);
            let name = name.unwrap_or_default();
            all.extend(scaling::scaling(&name, Axis::NewTokens, at, Metric::Total, &points));
        }
    }
    all
}
