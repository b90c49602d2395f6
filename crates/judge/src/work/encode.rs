//! Texts to vectors: every vector of every timed request beside the reference's.

use facts::agreement::{Agreement, Tolerance, VectorAgreement};
use facts::run::Run;
use history::Case;
use plan::work::Encode;
use protocol::{Output, Sample};

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

/// A request as it is kept, without its vectors, and how far they are from the reference's.
pub(super) fn kept(mut sample: Sample, reference: Option<&Reference>) -> (Sample, Option<VectorAgreement>) {
    let Output::Vectors(ours) = &mut sample.output else { return (sample, None) };
    let ours = std::mem::take(&mut ours.vectors);
    let theirs = reference.and_then(|reference| reference.outputs.get(sample.case));
    let Some(Output::Vectors(theirs)) = theirs else { return (sample, None) };
    let mut found = VectorAgreement::default();
    found.unlike += ours.len().abs_diff(theirs.vectors.len());
    ours.iter().zip(&theirs.vectors).for_each(|(ours, theirs)| found.add(ours, theirs));
    (sample, Some(found))
}

/// Every vector of every timed request beside the reference's, as they were compared when they arrived.
pub(super) fn agreement(reference: &Reference, run: &Run, tolerance: Tolerance) -> Agreement {
    let mut vectors = VectorAgreement::default();
    for turn in run.turns.iter().filter(|turn| turn.stands) {
        match &turn.vectors {
            Some(found) => vectors.merge(found),
            None => vectors.unlike += 1,
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
