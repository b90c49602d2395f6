//! Texts to vectors: every vector of every timed request beside the reference's.

use facts::agreement::{Agreement, Tolerance, VectorAgreement};
use facts::run::Run;
use history::Case;
use plan::WorkKind;
use plan::work::{Encode, encode};
use protocol::{Output, Sample};

use super::Selection;
use crate::metric::Metric::*;
use crate::parity::Reference;

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
    Case {
        other: other.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..Case::default()
    }
}
