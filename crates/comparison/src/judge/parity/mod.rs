//! The parity gate: contenders must compute the same thing, in the same run that is timed.
//!
//! Two facts are compared with the reference. Of every process: the most likely tokens of every timed
//! request. In the first round and in one that the seed draws: teacher-forced logits along the trace, from
//! the timed prefill and decode path.

pub mod layers;
pub mod retrieval;
#[cfg(test)]
mod tests;

use protocol::{InEffect, Output};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

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
    let digest = self::digest(logits);
    let logits = LogitAgreement {
        positions: sums.positions,
        max_abs: sums.max_abs,
        rmse: sums.rmse(),
        mean_kl: sums.mean_kl(),
        top1: sums.top1(),
        largest: Some(sums.largest),
        not_finite: sums.not_finite,
        uniform: is_uniform(&reference.logits),
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
/// it chose, and the logits that were drawn. `along`: of each sequence the logits that predict its new tokens, `[new
/// tokens, vocabulary]`.
pub fn proved(
    chosen: &[Vec<u32>],
    drawn: &[Drawn],
    (along, vocabulary): (&[&[f32]], usize),
    tolerance: &Tolerance,
) -> TokenAgreement {
    let mut found = TokenAgreement::default();
    for (sequence, (chosen, logits)) in chosen.iter().zip(along).enumerate() {
        let rows: Vec<&[f32]> = logits.chunks_exact(vocabulary).collect();
        for (row, &token) in rows.iter().zip(chosen) {
            found.timed += 1;
            found.mismatches += usize::from(!is_choice(row, token as usize, tolerance.tie));
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

// The findings of the processes of `photofinish parity`.

/// All findings, by contender.
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
    /// How far an encoder's vectors are from the reference's.
    pub vectors: Option<VectorAgreement>,
    /// Whether two processes generated the same tokens, and otherwise where they first differ. For an
    /// encoder: whether their vectors were equal to the last bit.
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
    /// An encoder's vectors differ in their bits.
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

// Logits, and arithmetic on their rows.

/// Logits of one case, `[batch, positions, vocabulary]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    pub batch: usize,
    pub positions: usize,
    pub vocabulary: usize,
    pub values: Vec<f32>,
}

/// Whether all logits of all cases are one number.
fn is_uniform(cases: &[Logits]) -> bool {
    let mut all = cases.iter().flat_map(|case| &case.values);
    all.next().is_some_and(|first| all.all(|logit| logit == first))
}

impl Logits {
    /// The logits of one position.
    pub fn row(&self, sequence: usize, position: usize) -> &[f32] {
        let at = (sequence * self.positions + position) * self.vocabulary;
        &self.values[at..at + self.vocabulary]
    }
}

impl Logits {
    /// The logits of one sequence, `[positions, vocabulary]`.
    pub fn values_of(&self, sequence: usize) -> &[f32] {
        let size = self.positions * self.vocabulary;
        &self.values[sequence * size..(sequence + 1) * size]
    }
}

/// The sha256 of the numbers of all cases, in hexadecimal digits.
pub(crate) fn digest(cases: &[Logits]) -> String {
    let mut hasher = Sha256::new();
    for row in cases.iter().flat_map(|case| case.values.chunks(case.vocabulary.max(1))) {
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    bundle::hexadecimal(&hasher.finalize())
}

/// log Σ exp(x) of a row of logits, in f64, without overflow.
pub fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + row.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}

/// Σ p · (log p − log q) over softmaxes of two rows of logits, in f64.
pub fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
    let (of_p, of_q) = (log_sum_exp(p), log_sum_exp(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let log_p = f64::from(p) - of_p;
        log_p.exp() * (log_p - (f64::from(q) - of_q))
    });
    // Rounding can make the sum slightly negative, although it never is.
    terms.sum::<f64>().max(0.0)
}

/// Whether a token is the reference's choice or tied with it.
pub fn is_choice(reference: &[f32], token: usize, tie: f32) -> bool {
    let best = reference[argmax(reference)];
    reference.get(token).is_some_and(|&logit| best - logit <= tie)
}

/// The indices of the largest values, the largest first.
pub fn most_likely(row: &[f32], count: usize) -> Vec<u32> {
    let mut largest: Vec<u32> = Vec::with_capacity(count + 1);
    for (index, value) in row.iter().enumerate() {
        let place = largest.partition_point(|&other| row[other as usize] >= *value);
        if place < count {
            largest.insert(place, index as u32);
            largest.truncate(count);
        }
    }
    largest
}

/// The index of the largest value; the first one of several.
pub fn argmax(row: &[f32]) -> usize {
    let best = row.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (index, &value)| {
        if value > best.1 { (index, value) } else { best }
    });
    best.0
}

// Sums over the positions of two computations of the same thing.

/// Distance of one computation from another.
#[derive(Default)]
struct Sums {
    pub(crate) positions: usize,
    numbers: usize,
    pub(crate) max_abs: f64,
    squares: f64,
    kl: f64,
    choices: usize,
    pub(crate) largest: f32,
    pub(crate) not_finite: usize,
}

impl Sums {
    /// Over all positions of cases of the same shapes.
    pub(crate) fn over(reference: &[Logits], ours: &[Logits], tie: f32) -> Sums {
        let mut sums = Sums::default();
        for (theirs, ours) in reference.iter().zip(ours) {
            for sequence in 0..theirs.batch {
                for position in 0..theirs.positions {
                    sums.add(theirs.row(sequence, position), ours.row(sequence, position), tie);
                }
            }
        }
        sums
    }

    /// Root of the mean squared difference of numbers.
    pub(crate) fn rmse(&self) -> f64 {
        (self.squares / self.numbers.max(1) as f64).sqrt()
    }

    /// Nats per position.
    pub(crate) fn mean_kl(&self) -> f64 {
        self.kl / self.positions.max(1) as f64
    }

    /// Share of positions that agree on the most likely token.
    pub(crate) fn top1(&self) -> f64 {
        self.choices as f64 / self.positions.max(1) as f64
    }

    fn add(&mut self, reference: &[f32], ours: &[f32], tie: f32) {
        self.positions += 1;
        self.numbers += reference.len();
        self.not_finite += ours.iter().filter(|value| !value.is_finite()).count();
        for (theirs, ours) in reference.iter().zip(ours) {
            let difference = f64::from(ours - theirs);
            self.max_abs = self.max_abs.max(difference.abs());
            self.squares += difference * difference;
            self.largest = self.largest.max(theirs.abs());
        }
        self.kl += kl_divergence(reference, ours);
        self.choices += usize::from(is_choice(reference, argmax(ours), tie));
    }
}

// Scores how well a model predicts a text, and the effect of an engine or a precision on it.

/// Sums over the windows of a text.
#[derive(Debug, Default)]
pub struct TextSums {
    predicted: usize,
    nll: f64,
    /// Number of positions that were compared with a reference.
    compared: usize,
    kl: f64,
    choices: usize,
}

impl TextSums {
    /// Adds a window: the logits `[1, n, vocabulary]` of its `n` tokens, compared with those of a reference. Position
    /// `i` predicts token `i + 1`; the token after the last one is unknown.
    pub fn add(&mut self, tokens: &[u32], logits: &Logits, reference: Option<&Logits>) -> Result<(), String> {
        let shape = |logits: &Logits| (logits.batch, logits.positions, logits.vocabulary);
        if (logits.batch, logits.positions) != (1, tokens.len()) {
            return Err("its logits do not have the shape of the text".into());
        }
        if let Some(reference) = reference.filter(|reference| shape(reference) != shape(logits)) {
            let (ours, theirs) = (shape(logits), shape(reference));
            return Err(format!("its logits have shape {ours:?}, the reference's {theirs:?}"));
        }
        for (position, &next) in tokens.iter().enumerate().skip(1).map(|(i, next)| (i - 1, next)) {
            let row = logits.row(0, position);
            let logit = row.get(next as usize).ok_or("a token of the text is outside its logits")?;
            self.predicted += 1;
            self.nll += log_sum_exp(row) - f64::from(*logit);
            if let Some(reference) = reference {
                let theirs = reference.row(0, position);
                self.compared += 1;
                self.kl += kl_divergence(theirs, row);
                self.choices += usize::from(argmax(theirs) == argmax(row));
            }
        }
        Ok(())
    }

    /// The score; `Err` if there was nothing to predict, or if logits were not finite.
    pub fn score(&self) -> Result<TextScore, String> {
        if self.predicted == 0 {
            return Err("the text is too short to predict anything".into());
        }
        let nll = self.nll / self.predicted as f64;
        if !nll.is_finite() {
            return Err("its logits are not finite".into());
        }
        let mean = |sum: f64| (self.compared > 0).then(|| sum / self.compared as f64);
        Ok(TextScore {
            predicted: self.predicted,
            nll,
            perplexity: nll.exp(),
            mean_kl: mean(self.kl),
            top1: mean(self.choices as f64),
        })
    }
}

#[cfg(test)]
mod unit {
    use crate::judge::parity::Logits;

    use super::*;

    /// One prompt token, three new ones, a vocabulary of three; the second choice is a tie.
    fn reference() -> Reference {
        let values = vec![0.0, 9.0, 1.0, 8.0, 2.0, 7.9995, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        Reference {
            framework: "r".into(),
            outputs: vec![protocol::Output::Tokens(vec![vec![1, 0, 0]])],
            logits: vec![Logits { batch: 1, positions: 4, vocabulary: 3, values }],
            unquantised: None,
        }
    }

    fn continued(tokens: &[u32]) -> Continuation {
        Continuation::new(&reference(), &[vec![tokens.to_vec()]], &["p"], 1e-3)
    }

    #[test]
    fn the_same_tokens_do_not_diverge() {
        let same = continued(&[1, 0, 0]);
        assert_eq!((same.tokens, same.common, same.divergences.len()), (3, 3, 0));
        assert!(!same.diverges(1.0));
    }

    #[test]
    fn parting_at_a_tie_is_no_divergence() {
        let tied = continued(&[1, 2, 1]);
        assert_eq!((tied.common, tied.divergences[0].token, tied.divergences[0].tie), (1, 2, true));
        assert!(!tied.diverges(1.0));
    }

    #[test]
    fn parting_against_a_clear_preference_is_one() {
        let wrong = continued(&[2, 0, 0]);
        assert_eq!((wrong.common, wrong.divergences[0].margin), (0, 8.0));
        assert!(wrong.diverges(1.0) && !wrong.diverges(0.5));
    }

    #[test]
    fn two_runs_differ_at_their_first_difference() {
        let tokens = |last| vec![vec![vec![1, 2, 3]], vec![vec![4, 5, last]]];
        assert_eq!(first_difference(&tokens(6), &tokens(6), &["a", "b"]), None);
        assert_eq!(first_difference(&tokens(6), &tokens(7), &["a", "b"]), Some(("b".into(), 3)));
    }

    #[test]
    fn the_most_likely_come_first() {
        assert_eq!(most_likely(&[1.0, 4.0, 2.0, 4.0, 3.0], 3), [1, 3, 4]);
        assert_eq!(most_likely(&[1.0, 2.0], 3), [1, 0]);
    }

    #[test]
    fn kl_is_zero_for_equal_and_known_for_simple_distributions() {
        assert_eq!(kl_divergence(&[1.0, 2.0], &[3.0, 4.0]), 0.0);
        // p = (1/2, 1/2), q = (1/4, 3/4): ½·ln 2 + ½·ln(2/3)
        let kl = kl_divergence(&[0.0, 0.0], &[0.0, 3f32.ln()]);
        let expected = 0.5 * 2f64.ln() + 0.5 * (2.0 / 3.0f64).ln();
        assert!((kl - expected).abs() < 1e-7);
    }

    /// Rows of logarithms of these probabilities, with an offset that softmax removes.
    fn logits(rows: &[[f32; 2]]) -> Logits {
        let values = rows.iter().flatten().map(|p| p.ln() + 5.0).collect();
        Logits { batch: 1, positions: rows.len(), vocabulary: 2, values }
    }

    fn score(tokens: &[u32], rows: &[[f32; 2]], reference: Option<&[[f32; 2]]>) -> Result<TextScore, String> {
        let mut sums = TextSums::default();
        sums.add(tokens, &logits(rows), reference.map(logits).as_ref())?;
        sums.score()
    }

    #[test]
    fn a_position_predicts_the_next_token_and_the_last_none() {
        // Token 1 with 1/4, then token 0 with 1/8: nll = (ln 4 + ln 8) / 2, perplexity = √32.
        let found = score(&[0, 1, 0], &[[0.75, 0.25], [0.125, 0.875], [0.5, 0.5]], None).unwrap();
        assert_eq!((found.predicted, found.mean_kl, found.top1), (2, None, None));
        assert!((found.nll - 2.5 * 2f64.ln()).abs() < 1e-6, "{found:?}");
        assert!((found.perplexity - 32f64.sqrt()).abs() < 1e-5, "{found:?}");
    }

    #[test]
    fn complete_ignorance_has_the_perplexity_of_the_vocabulary() {
        let found = score(&[1, 1, 0], &[[0.5; 2]; 3], None).unwrap();
        assert!((found.perplexity - 2.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn divergence_and_choices_are_means_over_predicted_positions() {
        // First position: p = (1/2, 1/2), q = (1/4, 3/4): ½·ln(4/3); second: equal.
        let reference = [[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]];
        let found = score(&[0, 0, 0], &[[0.25, 0.75], [0.9, 0.1], [0.8, 0.2]], Some(&reference)).unwrap();
        assert!((found.mean_kl.unwrap() - 0.25 * (4.0 / 3.0f64).ln()).abs() < 1e-6, "{found:?}");
        assert_eq!(found.top1, Some(0.5));
    }

    #[test]
    fn windows_weigh_by_their_tokens() {
        let mut sums = TextSums::default();
        sums.add(&[0, 0], &logits(&[[0.5, 0.5], [1.0, 1.0]]), None).unwrap();
        sums.add(&[0, 0, 0], &logits(&[[0.125, 0.875]; 3]), None).unwrap();
        let found = sums.score().unwrap();
        assert!((found.nll - 7.0 / 3.0 * 2f64.ln()).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn what_cannot_be_scored_is_said() {
        assert!(score(&[0], &[[0.5; 2]], None).unwrap_err().contains("too short"));
        assert!(score(&[0, 1], &[[0.5; 2]], None).unwrap_err().contains("shape"));
        assert!(score(&[0, 1], &[[0.5; 2]; 2], Some(&[[0.5; 2]])).unwrap_err().contains("shape"));
        assert!(score(&[0, 2], &[[0.5; 2]; 2], None).unwrap_err().contains("outside"));
        assert!(score(&[0, 1], &[[f32::NAN; 2]; 2], None).unwrap_err().contains("finite"));
    }
}
