//! The toy: requests that return bytes.

use facts::agreement::{Agreement, Tolerance};
use facts::run::Run;
use history::Case;
use protocol::Output;

use super::Selection;
use crate::metric::Metric::*;
use crate::parity::Reference;

pub(super) const NAME: &str = "echo";

pub(super) const BYTES: Selection = Selection {
    replaced: &[(Latency, Total), (Throughput, Total), (FirstToken, Total), (PrefillThroughput, Total)],
    replaces_in_tables: true,
    follows: &[],
};

/// Compares the bytes of timed requests with the reference's: all must be equal.
pub(super) fn agreement(reference: &Reference, run: &Run, tolerance: Tolerance) -> Agreement {
    let (mut compared, mut others) = (0, 0);
    for (case, sample) in run.requests() {
        if let (Output::Bytes(ours), Some(Output::Bytes(theirs))) =
            (&sample.output, reference.outputs.get(case))
        {
            compared += theirs.len();
            let same = ours.iter().zip(theirs).filter(|(ours, theirs)| ours == theirs).count();
            others += ours.len().max(theirs.len()) - same;
        }
    }
    Agreement {
        reference: reference.framework.clone(),
        tolerance,
        logits: None,
        vectors: None,
        timed_tokens: compared,
        timed_mismatches: others,
        misplaced: 0,
        quantisation_loss: None,
        digest: None,
        broken: (others > 0).then(|| format!("{others} of {compared} bytes are not the reference's")),
    }
}

pub(super) fn case() -> Case {
    Case { other: [("work".to_owned(), NAME.into())].into_iter().collect(), ..Case::default() }
}
