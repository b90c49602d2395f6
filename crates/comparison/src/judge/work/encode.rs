//! Texts to vectors: every vector of every timed request is compared with the reference's.

use std::collections::BTreeSet;

use bundle::{BundleError, ModelConfig, Precision, StoredTensor, TensorSpec, scale_name};
use protocol::Vectors;
use serde::{Deserialize, Serialize};

use super::Selection;
use crate::facts::agreement::VectorAgreement;
use crate::facts::evidence::Evidence;
use crate::history::Case;
use crate::judge::metrics::Metric::*;
use crate::judge::metrics::by_round_of;
use crate::judge::report::limit::{Bound, Limit, Share, arithmetic, share};
use crate::plan::work::{Encode, encode};
use crate::plan::{Contender, Plan, WorkKind};

pub(super) const NAME: &str = "encode";

/// Single texts are one question, batches of several another.
pub(super) const BOTH: Selection = Selection {
    replaced: &[
        (Latency, SingleText),
        (Throughput, EncodingThroughput),
        (FirstToken, SingleText),
        (PrefillThroughput, EncodedTokens),
        (Total, SingleText),
    ],
    replaces_in_tables: true,
    shown: &[],
    follows: &[],
};

pub(super) const MANY: Selection = Selection {
    replaced: &[
        (Latency, Total),
        (Throughput, EncodingThroughput),
        (FirstToken, Total),
        (PrefillThroughput, EncodedTokens),
    ],
    replaces_in_tables: true,
    shown: &[],
    follows: &[(Total, EncodingThroughput)],
};

pub(super) const SINGLE: Selection = Selection {
    replaced: &[
        (Latency, SingleText),
        (Throughput, SingleText),
        (FirstToken, SingleText),
        (PrefillThroughput, EncodedTokens),
        (Total, SingleText),
    ],
    replaces_in_tables: true,
    shown: &[],
    follows: &[],
};

/// How far vectors are from the reference's.
pub(super) fn difference(ours: &Vectors, theirs: &Vectors) -> VectorAgreement {
    let unlike = ours.vectors.len().abs_diff(theirs.vectors.len());
    let mut found = VectorAgreement { unlike, ..VectorAgreement::default() };
    theirs.vectors.iter().for_each(|vector| found.look_at(vector));
    ours.vectors.iter().zip(&theirs.vectors).for_each(|(ours, theirs)| found.add(ours, theirs));
    found
}

// From text to vector: the time of the tokenizer, which is the same for all, and then of each framework.

/// A batch of texts, from text to vectors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FromText {
    pub batch: String,
    pub texts: usize,
    /// Time of tokenising all its texts, in milliseconds: geometric mean over rounds, the least and the most.
    pub tokenising_ms: f64,
    pub tokenising_range_ms: (f64, f64),
    /// One for each contender that has a figure.
    pub rows: Vec<FromTextRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FromTextRow {
    pub framework: String,
    /// Time of the request, in milliseconds: geometric mean over rounds.
    pub request_ms: f64,
    /// The sum of both times.
    pub total_ms: f64,
    /// Texts ÷ that sum.
    pub texts_per_second: f64,
}

impl FromTextRow {
    /// Titles of a batch's time of tokenising and of a contender's figures, in a table.
    pub const TITLES: [&'static str; 4] =
        ["Tokenizer (ms)", "Encoder (ms)", "Text to vector (ms)", "texts/s"];
}

/// Every batch, if the tokenizer was timed.
pub fn from_text(plan: &Plan, evidence: &Evidence) -> Vec<FromText> {
    let of_case = |case: usize| {
        let rounds = evidence.tokenised.iter().flatten();
        let rounds: Vec<f64> = rounds.filter_map(|round| Some(*round.get(case)? as f64 / 1e6)).collect();
        let tokenising_ms = statistics::geometric_mean(&rounds)?;
        let (texts, _) = plan.work.size(case);
        let row = |label: &str| {
            let times = by_round_of(Total, case..case + 1, plan, evidence, label);
            let request_ms = statistics::geometric_mean(&times.into_iter().flatten().collect::<Vec<_>>())?;
            let total_ms = tokenising_ms + request_ms;
            let texts_per_second = texts as f64 * 1e3 / total_ms;
            Some(FromTextRow { framework: label.to_owned(), request_ms, total_ms, texts_per_second })
        };
        Some(FromText {
            batch: plan.work.case_name(case).to_owned(),
            texts,
            tokenising_ms,
            tokenising_range_ms: (
                rounds.iter().copied().fold(f64::INFINITY, f64::min),
                rounds.iter().copied().fold(0.0, f64::max),
            ),
            rows: plan.contenders.iter().filter_map(|contender| row(&contender.label)).collect(),
        })
    };
    (0..plan.work.cases()).filter_map(of_case).collect()
}

// The machine's limit.

/// The share of the arithmetic limit that an encoder reaches in the batch with the most tokens. A small one
/// may be bound by reading the weights, or by the time that operations need to start.
pub(crate) fn limit(
    (plan, work): (&Plan, &Encode),
    config: &ModelConfig,
    evidence: &Evidence,
    contender: &Contender,
) -> Option<Limit> {
    let label = contender.label.as_str();
    let case = (0..plan.work.cases()).max_by_key(|&case| plan.work.case_tokens(case))?;
    let texts = &work.batches.get(case)?.texts;
    let operations = operations(config, texts.iter().map(Vec::len));
    let times = by_round_of(Total, case..case + 1, plan, evidence, label);
    let rates = times.into_iter().map(|ms| Some(1e3 / ms?));
    let rows = plan.work.case_tokens(case);
    let arithmetic = arithmetic(plan, evidence, (label, contender.precision), rows);
    let encoding = arithmetic.and_then(|(unit, speeds)| {
        Some(Share { unit, ..share(rates, &speeds, operations, Bound::Compute)? })
    });
    Some(Limit {
        weights: weights(config, contender.precision).ok()? as f64,
        kv_cache: 0.0,
        operations,
        decode: None,
        prefill: None,
        encoding,
    })
}

/// Least operations for texts of these lengths, without padding: two for each parameter of the layers'
/// products and each token; for each head and each token with a key that it sees, `q · k` and the weighted
/// sum of `v`. Norms, activations, softmax and heads are left out.
fn operations(config: &ModelConfig, lengths: impl Iterator<Item = usize> + Clone) -> f64 {
    let matrices: usize = matrices(config).iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    let of_text = |tokens: usize| {
        let seen = |layer: usize| {
            let attention = config.layer_attention(layer);
            (0..tokens).map(|position| attention.keys(position, tokens).len()).sum::<usize>()
        };
        let pairs: usize = (0..config.layers.len()).map(seen).sum();
        (2 * matrices * tokens) as f64 + (4 * config.heads * config.head_dim * pairs) as f64
    };
    lengths.map(of_text).sum()
}

/// Bytes of the layers' products, as stored, which every batch reads.
fn weights(config: &ModelConfig, precision: Precision) -> Result<u64, BundleError> {
    let names = matrices(config).into_iter().map(|tensor| tensor.name);
    let names: BTreeSet<String> = names.flat_map(|name| [scale_name(&name), name]).collect();
    let stored = config.stored(precision)?;
    Ok(stored.iter().filter(|tensor| names.contains(&tensor.name)).map(StoredTensor::bytes).sum())
}

/// The matrices of the layers.
fn matrices(config: &ModelConfig) -> Vec<TensorSpec> {
    let of_layer = |index: usize| {
        let layer = config.layer(index);
        [layer.qkv, layer.output, layer.gate_up, layer.down].into_iter().flat_map(|names| names.weights)
    };
    let names: BTreeSet<String> = (0..config.layers.len()).flat_map(of_layer).collect();
    config.tensors().into_iter().filter(|tensor| names.contains(&tensor.name)).collect()
}

/// The kind of work of a record.
pub(super) fn kind(case: &Case) -> WorkKind {
    let texts = case.other.get("texts").and_then(|texts| texts.as_array()).into_iter().flatten();
    encode::kind(texts.filter_map(|texts| Some(texts.as_u64()? as usize)))
}

pub(super) fn case(work: &Encode) -> Case {
    let texts: Vec<usize> = work.batches.iter().map(|batch| batch.texts.len()).collect();
    let tokens: Vec<usize> =
        work.batches.iter().map(|batch| batch.texts.iter().map(Vec::len).sum()).collect();
    let task = serde_json::to_value(work.task).unwrap_or_default();
    let other = [("work", NAME.into()), ("texts", texts.into()), ("tokens", tokens.into()), ("task", task)];
    // "steps" are those of masked diffusion.
    let steps = serde_json::to_value(&work.steps).unwrap_or_default();
    let steps = (!work.steps.is_empty()).then_some(("after_pooling", steps));
    Case {
        other: other.into_iter().chain(steps).map(|(name, value)| (name.to_owned(), value)).collect(),
        ..Case::default()
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Marks, Sample};

    use super::*;
    use crate::facts::testing;

    #[test]
    fn operations_are_those_of_tokens_and_of_the_keys_that_they_see() {
        // Two layers: q and o of 8 × 8, k and v of 4 × 8, gate, up and down of 16 × 8; two heads of four.
        let (layer, mut config) = (2 * 64 + 2 * 32 + 3 * 128, testing::config());
        let of = |config: &ModelConfig| operations(config, [3, 1].into_iter());
        let products = f64::from(2 * 2 * layer * 4);
        assert_eq!(
            of(&config),
            products + f64::from(4 * 2 * 2 * 4 * (1 + 2 + 3 + 1)),
            "a key behind is not seen"
        );
        config.causal = false;
        assert_eq!(of(&config), products + f64::from(4 * 2 * 2 * 4 * (9 + 1)));
        assert_eq!(weights(&config, Precision::F32).unwrap(), 4 * 2 * layer as u64, "no table, no head");
        (config.hidden_size, config.head_dim) = (64, 32);
        let mlp = bundle::Feed::Mlp(bundle::Mlp { width: 64, ..config.mlp(0) });
        config.layers.iter_mut().for_each(|layer| layer.feed = mlp.clone());
        // q, o, gate, up and down of 64 rows, k and v of 32; a scale for each.
        let rows = 2 * (5 * 64 + 2 * 32);
        assert_eq!(weights(&config, Precision::Int8).unwrap(), rows * 64 + 4 * rows);
    }

    #[test]
    fn both_times_add_up_and_rounds_are_averaged() {
        let plan = testing::plan(&["a", "b"]);
        let sample = Sample { marks_ns: Marks::new(2_000_000, []), ..Sample::default() };
        let mut evidence = Evidence::default();
        assert_eq!(from_text(&plan, &evidence), [], "the tokenizer was not timed");
        for (round, ns) in [1_000_000, 4_000_000].into_iter().enumerate() {
            evidence.runs.push(testing::measured("a", round, Vec::new(), vec![vec![sample.clone()]]));
            evidence.tokenised.push(Ok(vec![ns]));
        }
        let [batch] = &from_text(&plan, &evidence)[..] else { panic!("one case") };
        assert!((batch.tokenising_ms - 2.0).abs() < 1e-9, "{batch:?}");
        assert_eq!(batch.tokenising_range_ms, (1.0, 4.0));
        let [row] = &batch.rows[..] else { panic!("b has no figure") };
        assert_eq!(row.framework, "a");
        assert!((row.total_ms - 4.0).abs() < 1e-9 && (row.texts_per_second - 250.0).abs() < 1e-6, "{row:?}");
    }
}
