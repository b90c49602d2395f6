//! Texts to vectors: every vector of every timed request beside the reference's.

use facts::agreement::{Agreement, Tolerance, VectorAgreement};
use facts::run::Run;
use history::Case;
use plan::work::Encode;
use protocol::Output;

use super::Selection;
use crate::metric::Metric::*;
use crate::parity::Reference;

pub(super) const NAME: &str = "encode";

pub(super) const TEXTS: Selection = Selection {
    replaced: &[
        (Latency, Total),
        (Throughput, EncodingThroughput),
        (FirstToken, Total),
        (PrefillThroughput, EncodedTokens),
    ],
    replaces_in_tables: true,
    follows: &[(Total, EncodingThroughput), (EncodedTokens, EncodingThroughput)],
};

/// Every vector beside the reference's.
pub(super) fn agreement(reference: &Reference, run: &Run, tolerance: Tolerance) -> Agreement {
    let mut vectors = VectorAgreement::default();
    for (case, sample) in run.requests() {
        match (&sample.output, reference.outputs.get(case)) {
            (Output::Vectors(ours), Some(Output::Vectors(theirs))) => {
                vectors.unlike += ours.vectors.len().abs_diff(theirs.vectors.len());
                ours.vectors.iter().zip(&theirs.vectors).for_each(|(ours, theirs)| vectors.add(ours, theirs));
            }
            _ => vectors.unlike += 1,
        }
    }
    let mut agreement = Agreement {
        reference: reference.framework.clone(),
        tolerance,
        logits: None,
        vectors: Some(vectors),
        timed_tokens: 0,
        timed_mismatches: 0,
        misplaced: 0,
        quantisation_loss: None,
        broken: None,
    };
    agreement.broken = agreement.objection();
    agreement
}

pub(super) fn case(work: &Encode) -> Case {
    let texts: Vec<usize> = work.batches.iter().map(|batch| batch.texts.len()).collect();
    let other = [("work".to_owned(), NAME.into()), ("texts".to_owned(), texts.into())];
    Case { other: other.into_iter().collect(), ..Case::default() }
}
