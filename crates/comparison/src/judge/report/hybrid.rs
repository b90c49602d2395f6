//! Hybrids of two engines compared with their parts: the prediction from the parts' figures, the measurement,
//! and whether the hybrid pays.

use protocol::untrusted::Foreign;
use serde::{Deserialize, Serialize};
use statistics::median;

use super::Row;
use crate::facts::evidence::Evidence;
use crate::facts::run::Run;
use crate::judge::metrics::Metric;
use crate::judge::report::verdicts::{self, Comparison};
use crate::plan::{Contender, Plan};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hybrid {
    pub framework: String,
    /// The labels of its parts' columns; `None` for a part that is not in the comparison or has no figures.
    pub prefill: Option<String>,
    pub decode: Option<String>,
    /// Why one engine computed everything: `falls back to candle alone: …`. Nothing is predicted then.
    pub alone: Option<Foreign>,
    /// Keys and values from one engine to the other; `None` if nothing was handed over, or that was not
    /// reported.
    pub hand_over: Option<HandOver>,
    /// Predictions from its parts, and its measured figures. Empty unless both parts have figures.
    pub figures: Vec<Predicted>,
    /// Total time of a request, compared with the better of its parts: whether it pays. `None` as for `figures`.
    pub verdict: Option<Comparison>,
    /// In gigabytes.
    pub memory: Option<Memory>,
}

/// A hand-over: medians over processes, for one request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HandOver {
    /// Bytes copied; 0 if both engines keep keys and values in the same memory.
    pub bytes: f64,
    pub ms: f64,
    /// Addresses of the first layer's keys in its last process: in the engine that read the prompt, and in
    /// the other.
    pub addresses: [u64; 2],
    pub obstacle: Option<Foreign>,
}

/// One metric, in its unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    pub metric: Metric,
    pub predicted: f64,
    pub measured: f64,
    /// How much the measurement exceeds the prediction, as a share of the prediction.
    pub difference: f64,
}

/// Peak memory of the hybrid and of its parts, and the size of one set of weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub hybrid: f64,
    pub prefill: f64,
    pub decode: f64,
    pub weights: f64,
}

/// A prediction from these figures, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Time to first token of the engine that reads prompts.
    first_token: f64,
    /// Time of a token, of the engine that decodes.
    latency: f64,
    hand_over: f64,
    /// Marks of a request: its tokens.
    marks: usize,
}

impl Parts {
    /// The hand-over is part of the first gap.
    fn predict(self, metric: Metric) -> Option<f64> {
        let later = self.marks.saturating_sub(1) as f64;
        match metric {
            Metric::FirstToken => Some(self.first_token),
            Metric::Latency if later > 0.0 => Some(self.latency + self.hand_over / later),
            Metric::Total if later > 0.0 => Some(self.first_token + later * self.latency + self.hand_over),
            _ => None,
        }
    }
}

const PREDICTED: [Metric; 3] = [Metric::FirstToken, Metric::Latency, Metric::Total];

pub(super) fn hybrids(
    plan: &Plan,
    evidence: &Evidence,
    rows: &[Row],
    unmeasurable: Option<&str>,
) -> Vec<Hybrid> {
    let known = plan.contenders.iter().filter_map(|contender| {
        let row = rows.iter().find(|row| row.framework == contender.label && row.state.has_figures())?;
        Hybrid::new(contender, row, (plan, evidence, rows), unmeasurable)
    });
    known.collect()
}

impl Hybrid {
    fn new(
        contender: &Contender,
        row: &Row,
        (plan, evidence, rows): (&Plan, &Evidence, &[Row]),
        unmeasurable: Option<&str>,
    ) -> Option<Hybrid> {
        let names = contender.engine.parts()?;
        let alone = row.in_effect.as_ref().and_then(|in_effect| in_effect.hybrid.as_ref()?.alone.clone());
        let parts = names.map(|name| part(name, contender, plan, rows));
        let hand_over = hand_over(evidence, &contender.label);
        let mut hybrid = Hybrid {
            framework: contender.label.clone(),
            prefill: parts[0].map(|part| part.framework.clone()),
            decode: parts[1].map(|part| part.framework.clone()),
            alone,
            figures: Vec::new(),
            verdict: None,
            memory: None,
            hand_over,
        };
        if let ([Some(prefill), Some(decode)], None) = (parts, &hybrid.alone) {
            let copy = hybrid.hand_over.as_ref().map_or(0.0, |hand_over| hand_over.ms);
            hybrid.figures = figures(row, prefill, decode, copy, plan.work.marks());
            hybrid.memory = memory(row, prefill, decode, evidence);
            let better = match (prefill.typical(Metric::Total), decode.typical(Metric::Total)) {
                (Some(one), Some(other)) if one < other => prefill,
                _ => decode,
            };
            let take_part = row.state.takes_part() && better.state.takes_part();
            hybrid.verdict = take_part.then(|| {
                let pair = [contender.label.as_str(), better.framework.as_str()];
                verdicts::of_pair(Metric::Total, pair, plan, evidence, unmeasurable)
            });
        }
        Some(hybrid)
    }
}

/// The row of the framework of this name with the hybrid's settings.
fn part<'a>(name: &str, hybrid: &Contender, plan: &Plan, rows: &'a [Row]) -> Option<&'a Row> {
    let is_part = |contender: &&Contender| {
        contender.engine.name == name
            && (contender.precision, contender.jit) == (hybrid.precision, hybrid.jit)
            && (contender.threads, contender.cache.policy) == (hybrid.threads, hybrid.cache.policy)
    };
    let label = &plan.contenders.iter().find(is_part)?.label;
    rows.iter().find(|row| row.framework == *label && row.state.has_figures())
}

fn hand_over(evidence: &Evidence, label: &str) -> Option<HandOver> {
    let told: Vec<&protocol::HandOver> =
        evidence.complete(label).filter_map(|run: &Run| run.usage()?.cache.hand_over.as_ref()).collect();
    let of_request = |of: fn(&protocol::HandOver) -> u64| {
        let of_each = told.iter().map(|told| of(told) as f64 / told.times.max(1) as f64);
        median(&of_each.collect::<Vec<_>>())
    };
    let last = told.last()?;
    Some(HandOver {
        bytes: of_request(|told| told.bytes)?,
        ms: of_request(|told| told.ns)? / 1e6,
        addresses: [last.prefill_address, last.decode_address],
        obstacle: last.obstacle.clone(),
    })
}

fn figures(row: &Row, prefill: &Row, decode: &Row, hand_over: f64, marks: usize) -> Vec<Predicted> {
    let parts = || {
        let (first_token, latency) = (prefill.typical(Metric::FirstToken)?, decode.typical(Metric::Latency));
        // A request for one token decodes nothing.
        Some(Parts { first_token, latency: latency.unwrap_or(0.0), hand_over, marks })
    };
    let Some(parts) = parts() else { return Vec::new() };
    let figure = |metric: Metric| {
        let (predicted, measured) = (parts.predict(metric)?, row.typical(metric)?);
        Some(Predicted { metric, predicted, measured, difference: measured / predicted - 1.0 })
    };
    PREDICTED.into_iter().filter_map(figure).collect()
}

fn memory(row: &Row, prefill: &Row, decode: &Row, evidence: &Evidence) -> Option<Memory> {
    let peak = |row: &Row| row.typical(Metric::PeakMemory);
    let weights = evidence.complete(&row.framework).find_map(|run| Some(run.loaded()?.weights_bytes))?;
    Some(Memory {
        hybrid: peak(row)?,
        prefill: peak(prefill)?,
        decode: peak(decode)?,
        weights: weights as f64 / 1e9,
    })
}

#[cfg(test)]
mod tests;
