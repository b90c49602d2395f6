//! The parity gate: contenders must compute the same thing, in the same run that is timed.
//!
//! Two facts are compared with the reference. Of every process: the most likely tokens of every timed
//! request. In the first round and in one that the seed draws: teacher-forced logits along the trace, from
//! the timed prefill and decode path.

pub mod contender;
pub mod continuation;
pub mod layers;
pub mod logits;
pub mod retrieval;
mod sums;
pub mod text;

use protocol::{Input, Output};

pub use facts::agreement::{Agreement, LogitAgreement, QuantisationLoss, TokenAgreement, Tolerance};
use facts::run::Run;
use logits::{Logits, is_choice};
use sums::Sums;

/// The reference: traces, and the reference engine's logits along them, computed in f32. The traces are its
/// own greedy ones, or these with less likely tokens in some places. At a quantised precision it uses the
/// same codes and scales, dequantised. The gate then allows only for the arithmetic of the kernels, not for
/// the cost of quantising.
#[derive(Debug, Clone)]
pub struct Reference {
    pub framework: String,
    /// The input of each case, if it is not its own.
    pub inputs: Vec<Input>,
    /// The traces, one output for each case.
    pub outputs: Vec<Output>,
    pub logits: Vec<Logits>,
    /// At a quantised precision: the unquantised model's logits along the same traces.
    pub unquantised: Option<Vec<Logits>>,
}

/// Compares a run's logits with the reference's. `tokens`: the comparison of its timed tokens.
pub fn compare(
    reference: &Reference,
    logits: &[Logits],
    tokens: TokenAgreement,
    tolerance: Tolerance,
) -> Result<Agreement, String> {
    let shapes = |cases: &[Logits]| -> Vec<_> {
        cases.iter().map(|case| (case.batch, case.positions, case.vocabulary)).collect()
    };
    if shapes(logits) != shapes(&reference.logits) {
        return Err(format!(
            "its logits have shapes {:?}, the reference's {:?}",
            shapes(logits),
            shapes(&reference.logits)
        ));
    }
    let sums = Sums::over(&reference.logits, logits, tolerance.tie);
    let unquantised = reference.unquantised.as_ref().map(|unquantised| Sums::over(unquantised, logits, 0.0));
    let TokenAgreement { timed, mismatches, misplaced } = tokens;
    let digest = logits::digest(logits);
    let logits = LogitAgreement {
        positions: sums.positions,
        max_abs: sums.max_abs,
        rmse: sums.rmse(),
        mean_kl: sums.mean_kl(),
        top1: sums.top1(),
        largest: Some(sums.largest),
        not_finite: sums.not_finite,
    };
    let mut agreement = Agreement {
        reference: reference.framework.clone(),
        tolerance,
        logits: Some(logits),
        vectors: None,
        timed_tokens: timed,
        timed_mismatches: mismatches,
        misplaced,
        quantisation_loss: unquantised
            .map(|sums| QuantisationLoss { mean_kl: sums.mean_kl(), top1: sums.top1() }),
        digest: Some(digest),
        broken: None,
    };
    agreement.broken = agreement.objection();
    Ok(agreement)
}

/// Compares the tokens of the timed requests with those that the reference prefers. `goes_on`: whether a
/// request is fed the same as the reference whatever it chose; otherwise it diverges after a tie, and later
/// tokens have another context.
pub(crate) fn chosen(reference: &Reference, run: &Run, tie: f32, goes_on: bool) -> TokenAgreement {
    let mut agreement = TokenAgreement::default();
    for (case, sample) in run.requests() {
        let (Some(logits), Some(along)) = (reference.logits.get(case), reference.outputs.get(case)) else {
            continue;
        };
        let rows = sample.output.tokens().iter().zip(along.tokens());
        for (sequence, (timed, trace)) in rows.take(logits.batch).enumerate() {
            let prompt = logits.positions - trace.len();
            for (step, &token) in timed.iter().enumerate().take(trace.len()) {
                agreement.timed += 1;
                let row = logits.row(sequence, prompt + step - 1);
                agreement.mismatches += usize::from(!is_choice(row, token as usize, tie));
                if !goes_on && token != trace[step] {
                    break;
                }
            }
        }
    }
    agreement
}

#[cfg(test)]
mod tests;
