//! The parity gate: contenders must compute the same thing, in the same run that is timed.
//!
//! Two facts are compared with the reference. Of every process: the most likely tokens of every timed
//! request. In the first round and in one that the seed draws: teacher-forced logits along the trace, from
//! the timed prefill and decode path.

pub mod layers;
mod logits;
pub mod retrieval;
#[cfg(test)]
mod tests;

pub use logits::{Logits, TextSums, argmax, is_choice, most_likely};
use logits::{Sums, digest, is_uniform};
use protocol::{InEffect, Output};
use serde::{Deserialize, Serialize};

pub use crate::facts::agreement::{Agreement, LogitAgreement, QuantisationLoss, TokenAgreement, Tolerance};
use crate::facts::agreement::{TextScore, VectorAgreement};
use crate::facts::run::{Run, RunFailure};
use crate::judge::parity::layers::LayerDifference;

/// The reference: traces, and the reference engine's logits along them, computed in f32. The traces are its
/// own greedy ones, or these with less likely tokens in some places. At a quantised precision it uses the
/// same codes and scales, dequantised. The gate then allows only for the arithmetic of the kernels, not for
/// the cost of quantising.
#[derive(Debug, Clone)]
pub struct Reference {
    pub framework: String,
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
    let TokenAgreement { timed, mismatches, misplaced, .. } = tokens;
    let digest = digest(logits);
    let logits = LogitAgreement {
        positions: sums.positions,
        max_abs: sums.max_abs,
        rmse: sums.rmse(),
        mean_kl: sums.mean_kl(),
        top1: sums.top1(),
        largest: Some(sums.largest),
        not_finite: sums.not_finite,
        uniform: is_uniform(&reference.logits),
        shown: None,
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

/// The same of log-probabilities, of which only those of the most likely tokens are shown, and the others NaN: these count
/// as the reference's. Positions that show none, such as a prompt's, are left out.
pub fn compare_shown(
    reference: &Reference,
    ours: &[Logits],
    tokens: TokenAgreement,
    tolerance: Tolerance,
) -> Result<Agreement, String> {
    let (mut shown, mut both) = (0, Vec::new());
    for (theirs, ours) in reference.logits.iter().zip(ours) {
        let of = |values| Logits { batch: 1, positions: 0, vocabulary: theirs.vocabulary, values };
        let (mut reference, mut filled) = (of(Vec::new()), of(Vec::new()));
        if (theirs.batch, theirs.positions, theirs.vocabulary)
            != (ours.batch, ours.positions, ours.vocabulary)
        {
            return Err("its log-probabilities do not have the shape of the reference's logits".into());
        }
        let rows = theirs.values.chunks(theirs.vocabulary).zip(ours.values.chunks(ours.vocabulary));
        for (theirs, ours) in rows.filter(|(_, ours)| ours.iter().any(|number| !number.is_nan())) {
            shown += ours.iter().filter(|number| !number.is_nan()).count();
            let start = reference.values.len();
            reference.values.extend(logits::log_probabilities(theirs));
            let theirs = &reference.values[start..];
            let fill = |(ours, theirs): (&f32, &f32)| if ours.is_nan() { *theirs } else { *ours };
            filled.values.extend(ours.iter().zip(theirs).map(fill));
            (reference.positions, filled.positions) = (reference.positions + 1, filled.positions + 1);
        }
        both.push((reference, filled));
    }
    if shown == 0 {
        return Err("it shows no log-probabilities of the tokens that it was asked for".into());
    }
    let (logits, filled): (Vec<Logits>, Vec<Logits>) = both.into_iter().unzip();
    let reference = Reference { logits, unquantised: None, ..reference.clone() };
    let found = compare(&reference, &filled, tokens, tolerance)?;
    let logits = found.logits.map(|logits| LogitAgreement { shown: Some(shown), ..logits });
    Ok(Agreement { logits, digest: None, ..found })
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

/// Logits of some tokens behind a timed step, which the worker was asked for only then.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The step, from 0.
    pub step: usize,
    pub tokens: Vec<u32>,
    /// `[sequence][token]`
    pub values: Vec<Vec<f32>>,
}

/// Compares a timed request with a reference that was computed along the tokens that the request was fed: the tokens that
/// it chose, and the logits that were drawn. `barred`: tokens that it never chooses. `along`: of each sequence the logits
/// that predict its new tokens, `[new tokens, vocabulary]`.
pub fn proved(
    chosen: &[Vec<u32>],
    (drawn, barred): (&[Drawn], &[u32]),
    (along, vocabulary): (&[&[f32]], usize),
    tolerance: &Tolerance,
) -> TokenAgreement {
    let mut found = TokenAgreement::default();
    for (sequence, (chosen, logits)) in chosen.iter().zip(along).enumerate() {
        let rows: Vec<&[f32]> = logits.chunks_exact(vocabulary).collect();
        for (row, &token) in rows.iter().zip(chosen) {
            found.timed += 1;
            let is_choice = match barred {
                [] => is_choice(row, token as usize, tolerance.tie),
                _ => is_choice(&without(row, barred), token as usize, tolerance.tie),
            };
            found.mismatches += usize::from(!is_choice);
        }
        let Some(share) = tolerance.max_abs_share else { continue };
        let largest = logits.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
        for asked in drawn {
            let Some((row, ours)) = rows.get(asked.step).zip(asked.values.get(sequence)) else { continue };
            for (&token, &ours) in asked.tokens.iter().zip(ours) {
                let apart = f64::from((ours - row[token as usize]).abs() / largest);
                found.drawn += 1;
                // NaN is beyond any distance.
                found.beyond += usize::from(apart.is_nan() || apart > f64::from(share));
                found.farthest = found.farthest.max(apart);
            }
        }
    }
    found
}

/// A row in which some tokens are not likely at all.
fn without(row: &[f32], tokens: &[u32]) -> Vec<f32> {
    let mut row = row.to_vec();
    for &token in tokens {
        if let Some(logit) = row.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    row
}

// The findings of the processes of `photofinish parity`.

#[derive(Default)]
pub struct Findings {
    pub reference: Option<Reference>,
    /// The reason why the reference has no hidden states.
    pub reference_without_layers: Option<String>,
    /// The reason why the text could not be scored in f32, or at all.
    pub no_text: Option<String>,
    pub text_reference: Option<String>,
    pub contenders: Vec<ContenderParity>,
}

/// The findings about one contender. A missing value was not reached.
#[derive(Default)]
pub struct ContenderParity {
    pub failure: Option<RunFailure>,
    pub in_effect: Option<InEffect>,
    pub layers: Vec<LayerDifference>,
    /// The reason why there are no layers between prompt and logits.
    pub no_layers: Option<String>,
    pub continuation: Option<Continuation>,
    /// How far vectors are from the reference's.
    pub vectors: Option<VectorAgreement>,
    /// Whether two processes generated the same tokens, and otherwise where they first differ; or whether their
    /// vectors were equal to the last bit.
    pub repeated: Option<Repeated>,
    pub text: Option<std::result::Result<TextScore, String>>,
}

/// Whether two processes generated the same tokens.
pub enum Repeated {
    Same,
    Differs {
        prompt: String,
        token: usize,
    },
    /// Vectors differ in their bits.
    OtherBits,
}

// Compares greedy continuations with the reference's: how many tokens agree, and whether the first difference is a
// tie.

/// One framework's continuations of every prompt, compared with the reference's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Continuation {
    /// Number of generated tokens, over all prompts.
    pub tokens: usize,
    /// Number of tokens before each prompt's first difference, over all prompts.
    pub common: usize,
    /// The first difference of each prompt. Later tokens have another context and are not compared.
    pub divergences: Vec<Divergence>,
}

/// A point where a continuation leaves the reference's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    pub prompt: String,
    /// Place among the new tokens, from 1.
    pub token: usize,
    /// Token id of the continuation.
    pub ours: u32,
    /// Token id of the reference's continuation.
    pub reference: u32,
    /// The reference's preference for its own token, in logits.
    #[serde(deserialize_with = "crate::facts::agreement::distance")]
    pub margin: f32,
    /// Whether the preference is within numerical noise.
    pub tie: bool,
}

impl Continuation {
    /// Compares tokens, `[prompt][batch][new tokens]`. `names` are the prompts' names; `tie` is in logits.
    pub fn new(reference: &Reference, tokens: &[Vec<Vec<u32>>], names: &[&str], tie: f32) -> Continuation {
        let mut continuation = Continuation { tokens: 0, common: 0, divergences: Vec::new() };
        let cases = tokens
            .iter()
            .zip(reference.outputs.iter().map(protocol::Output::tokens))
            .zip(&reference.logits)
            .zip(names);
        for (((ours, traces), logits), name) in cases {
            for (sequence, (ours, trace)) in ours.iter().zip(traces).enumerate() {
                let common = ours.iter().zip(trace).take_while(|(ours, theirs)| ours == theirs).count();
                continuation.tokens += ours.len();
                continuation.common += common;
                let (Some(&ours), Some(&theirs)) = (ours.get(common), trace.get(common)) else { continue };
                // The row of the position before the token predicts it.
                let row = logits.row(sequence, logits.positions - trace.len() + common - 1);
                let logit = row.get(ours as usize).copied().unwrap_or(f32::NEG_INFINITY);
                let margin = row[argmax(row)] - logit;
                let prompt = (*name).to_owned();
                let divergence = Divergence {
                    prompt,
                    token: common + 1,
                    ours,
                    reference: theirs,
                    margin,
                    tie: margin <= tie,
                };
                continuation.divergences.push(divergence);
            }
        }
        continuation
    }

    /// Whether the share of differences that are not ties exceeds the tolerance on top-1 agreement.
    pub fn diverges(&self, top1: f64) -> bool {
        let allowed = ((1.0 - top1) * self.tokens as f64).floor() as usize;
        self.divergences.iter().filter(|divergence| !divergence.tie).count() > allowed
    }
}

/// The first difference between two continuations of the same prompts, as `(prompt, new token from 1)`.
pub fn first_difference(
    one: &[Vec<Vec<u32>>],
    other: &[Vec<Vec<u32>>],
    names: &[&str],
) -> Option<(String, usize)> {
    let cases = one.iter().zip(other).zip(names);
    cases.flat_map(|((one, other), name)| one.iter().zip(other).map(move |rows| (rows, name))).find_map(
        |((one, other), name)| {
            let at = one.iter().zip(other).position(|(one, other)| one != other);
            let at = at.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())));
            at.map(|at| ((*name).to_string(), at + 1))
        },
    )
}
