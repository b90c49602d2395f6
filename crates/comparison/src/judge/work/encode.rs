//! Texts to vectors: every vector of every timed request is compared with the reference's.

use std::collections::BTreeSet;

use bundle::{BundleError, ModelConfig, Precision, StoredTensor, TensorSpec, scale_name};
use protocol::Vectors;

use super::Selection;
use crate::facts::agreement::VectorAgreement;
use crate::history::Case;
use crate::judge::metrics::Metric::*;
use crate::plan::WorkKind;
use crate::plan::work::{Encode, encode};

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

/// Least operations for texts of these lengths, without padding: two for each parameter of the layers'
/// products and each token; for each head and each token with a key that it sees, `q · k` and the weighted
/// sum of `v`. Norms, activations, softmax and heads are left out.
pub(crate) fn operations(config: &ModelConfig, lengths: impl Iterator<Item = usize> + Clone) -> f64 {
    let matrices: usize = matrices(config).iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    let of_text = |tokens: usize| {
        let seen = |layer: usize| {
            let attention = config.layer_attention(layer);
            (0..tokens).map(|position| attention.keys(position, tokens).len()).sum::<usize>()
        };
        let pairs: usize = (0..config.layers).map(seen).sum();
        (2 * matrices * tokens) as f64 + (4 * config.heads * config.head_dim * pairs) as f64
    };
    lengths.map(of_text).sum()
}

/// Bytes of the layers' products, as stored, which every batch reads.
pub(crate) fn weights(config: &ModelConfig, precision: Precision) -> Result<u64, BundleError> {
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
    let names: BTreeSet<String> = (0..config.layers).flat_map(of_layer).collect();
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
        (config.hidden_size, config.intermediate_size, config.head_dim) = (64, 64, 32);
        // q, o, gate, up and down of 64 rows, k and v of 32; a scale for each.
        let rows = 2 * (5 * 64 + 2 * 32);
        assert_eq!(weights(&config, Precision::Int8).unwrap(), rows * 64 + 4 * rows);
    }
}
