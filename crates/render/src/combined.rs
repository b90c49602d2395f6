//! Runs of one case, combined: a table for each case, and every figure as CSV.

use comparison::judge::combined::{Pair, Runs};
use serde_json::json;

use crate::export::{Block, Body, Document};
use crate::flat;
use crate::table::{Cell, Screen, Table};
use crate::words::{Json, between, count, times};

/// Version of the JSON.
const SCHEMA: u32 = 1;

const NOTE: &str = "All runs: how many times better the first is (random effects), with the 95 % interval of this pair \
                    alone. Each run: the least and the most. I²: the share of the variance between the runs' ratios that \
                    the noise within runs does not explain.";

pub struct Combined<'a>(pub &'a [Runs]);

impl Document for Combined<'_> {
    fn body(&self, _: Option<&Screen>) -> Body {
        let mut answer: Vec<Block> = Vec::new();
        for case in self.0 {
            answer.push(Block::Heading(vec![heading(case)]));
            answer.push(Block::Table(table(case)));
            let versions = case.versions.iter().map(|text| format!("versions differ: {text}"));
            answer.extend(versions.map(Block::Paragraph));
        }
        if !self.0.is_empty() {
            answer.push(Block::Paragraph(NOTE.to_owned()));
        }
        Body { answer, rest: Vec::new() }
    }

    fn json(&self) -> Json {
        Json::new(&json!({ "schema": SCHEMA, "cases": self.0 }))
    }

    fn figures(&self) -> Table {
        let lines = |case: &Runs| case.pairs.iter().map(|pair| line(case, pair)).collect::<Vec<_>>();
        flat::table(&[], &self.0.iter().flat_map(lines).collect::<Vec<_>>())
    }
}

/// "a-model f32, 12 → 32, 2 threads: 5 runs on 4 days".
fn heading(case: &Runs) -> String {
    let machines = if case.machines > 1 { format!(", {} machines", case.machines) } else { String::new() };
    format!("{}: {} on {}{machines}", case.case, count(case.runs.len(), "run"), count(case.days, "day"))
}

fn table(case: &Runs) -> Table {
    let mut table = Table::of(["", "All runs"], ["Each run", "Runs", "I²"]);
    for pair in &case.pairs {
        let interval =
            pair.interval.map_or_else(String::new, |(low, high)| format!(" ({})", between(low, high)));
        let all = format!("{} {} {}{interval}", pair.a, times(pair.advantage), pair.b);
        let (least, most) = ends(&pair.each);
        let share = format!("{:.0} %", 100.0 * pair.inconsistency);
        table.push(
            [Cell::of_metric(pair.metric), all.into()],
            [format!("{}x", between(least, most)), pair.each.len().to_string(), share],
        );
    }
    table
}

fn ends(each: &[f64]) -> (f64, f64) {
    (each.iter().copied().fold(f64::INFINITY, f64::min), each.iter().copied().fold(0.0, f64::max))
}

fn line(case: &Runs, pair: &Pair) -> flat::Line {
    let (least, most) = ends(&pair.each);
    flat::line([
        ("case", json!(case.case)),
        ("metric", json!(pair.metric.name())),
        ("a", json!(pair.a)),
        ("b", json!(pair.b)),
        ("advantage", json!(pair.advantage)),
        ("advantage_low", json!(pair.interval.map(|(low, _)| low))),
        ("advantage_high", json!(pair.interval.map(|(_, high)| high))),
        ("least", json!(least)),
        ("most", json!(most)),
        ("runs", json!(pair.each.len())),
        ("days", json!(case.days)),
        ("machines", json!(case.machines)),
        ("tau", json!(pair.tau)),
        ("inconsistency", json!(pair.inconsistency)),
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use comparison::judge::Metric;

    use super::*;

    /// Three runs of one case.
    pub(crate) fn three() -> Vec<Runs> {
        let pair = |metric, interval, each: [f64; 3]| Pair {
            metric,
            a: "candle".into(),
            b: "ort".into(),
            advantage: each[1],
            interval,
            tau: 0.02,
            inconsistency: 0.62,
            each: each.into(),
        };
        vec![Runs {
            case: "a-model f32, 12 → 32, 2 threads".into(),
            runs: ["1", "2", "3"].map(String::from).into(),
            days: 2,
            machines: 2,
            versions: vec!["ort: ort 1.22, ort 1.23".into()],
            pairs: vec![
                pair(Metric::Throughput, Some((1.09, 1.19)), [1.13, 1.14, 1.17]),
                pair(Metric::Load, None, [0.9, 1.2, 2.4]),
            ],
        }]
    }
}
