//! The parity gate: whoever is compared must have computed the same thing, in the very run that is timed.
//!
//! Two facts of each run are held against the reference: teacher-forced logits along the trace, by the
//! same prefill and decode path that was timed, and the most likely tokens of every timed iteration.

use bundle::Precision;
use protocol::Decode;
use serde::{Deserialize, Serialize};

use crate::logits::{Logits, is_choice};
use crate::reading;
use crate::run::Run;
use crate::sums::Sums;

/// How far apart two computations may be and still be the same, stated once for each precision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    /// Largest absolute difference of a logit, as a share of the reference's largest logit. Only f32 is
    /// held to it: at 16 bits single logits may be far off without consequence.
    pub max_abs_share: Option<f32>,
    /// Mean Kullback–Leibler divergence from the reference's distribution, nats per position.
    pub mean_kl: f64,
    /// Share of positions whose most likely token is the reference's.
    pub top1: f64,
    /// A token counts as the reference's where the reference itself prefers its own by less than this
    /// (in logits): a tie within numerical noise.
    pub tie: f32,
}

impl Tolerance {
    /// The tolerance of a precision.
    pub fn for_precision(precision: Precision) -> Tolerance {
        match precision {
            // Sums in another order move a logit of 30 by some 1e-4; a wrong operation by far more.
            Precision::F32 => Tolerance { max_abs_share: Some(2e-4), mean_kl: 1e-6, top1: 1.0, tie: 1e-3 },
            // 11 and 8 bits of significand: relative steps of 5e-4 and 4e-3 in every weight.
            Precision::F16 => Tolerance { max_abs_share: None, mean_kl: 0.005, top1: 0.98, tie: 0.05 },
            Precision::Bf16 => Tolerance { max_abs_share: None, mean_kl: 0.05, top1: 0.95, tie: 0.3 },
            // Against the same codes and scales in f32: what is left is the kernels' own arithmetic, in which
            // activations may be rounded to 8 bits.
            Precision::Int8 | Precision::Int4 => {
                Tolerance { max_abs_share: None, mean_kl: 0.02, top1: 0.95, tie: 0.3 }
            }
            Precision::Nf4 => Tolerance { max_abs_share: None, mean_kl: 0.005, top1: 0.98, tie: 0.05 },
        }
    }
}

/// What everyone is held against: the reference engine's own greedy trace and logits, computed in f32. At a
/// quantised precision, from the same codes and scales, dequantised: so that the gate is as narrow as the
/// kernels' arithmetic, and not as wide as what quantising costs.
#[derive(Debug, Clone)]
pub struct Reference {
    pub framework: String,
    /// `[case][batch][new tokens]`
    pub traces: Vec<Vec<Vec<u32>>>,
    pub logits: Vec<Logits>,
    /// At a quantised precision: those of the model before it was quantised, along the same traces.
    pub unquantised: Option<Vec<Logits>>,
}

/// What quantising costs: a run held against the model before it was quantised, in f32. No gate, a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QuantisationLoss {
    /// Kullback–Leibler divergence from the unquantised model's distribution, nats per position.
    pub mean_kl: f64,
    /// Share of positions whose most likely token is the unquantised model's.
    pub top1: f64,
}

/// How well one run agrees with the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    pub reference: String,
    pub tolerance: Tolerance,
    pub positions: usize,
    /// Largest absolute difference of a logit.
    pub max_abs: f64,
    /// Root of the mean squared difference of logits. NaN where a logit is.
    #[serde(deserialize_with = "reading::number")]
    pub rmse: f64,
    /// Mean Kullback–Leibler divergence from the reference's distribution, nats per position. NaN where a logit is.
    #[serde(deserialize_with = "reading::number")]
    pub mean_kl: f64,
    /// Share of positions that agree on the most likely token, ties counted as agreement.
    pub top1: f64,
    /// The reference's largest logit, by its absolute value. `None` in results that did not keep it.
    #[serde(default)]
    pub largest: Option<f32>,
    /// Logits that are no numbers.
    #[serde(default)]
    pub not_finite: usize,
    /// Tokens of timed iterations, and how many of them the reference would not have chosen.
    pub timed_tokens: usize,
    pub timed_mismatches: usize,
    /// At a quantised precision.
    pub quantisation_loss: Option<QuantisationLoss>,
    /// `None` if the run agrees; otherwise what does not.
    pub broken: Option<String>,
}

/// Holds a run's logits and timed tokens against the reference.
pub fn compare(
    reference: &Reference,
    logits: &[Logits],
    run: &Run,
    decode: Decode,
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
    let (timed_tokens, timed_mismatches) = timed(reference, run, decode, tolerance.tie);
    let mut agreement = Agreement {
        reference: reference.framework.clone(),
        tolerance,
        positions: sums.positions,
        max_abs: sums.max_abs,
        rmse: sums.rmse(),
        mean_kl: sums.mean_kl(),
        top1: sums.top1(),
        largest: Some(sums.largest),
        not_finite: sums.not_finite,
        timed_tokens,
        timed_mismatches,
        quantisation_loss: unquantised
            .map(|sums| QuantisationLoss { mean_kl: sums.mean_kl(), top1: sums.top1() }),
        broken: None,
    };
    agreement.broken = agreement.objection(sums.largest);
    Ok(agreement)
}

impl Agreement {
    /// Decides again whether the run agrees, with today's tolerance for its precision. What was not kept of an older
    /// run leaves its decision as it was. Ties were counted with the tolerance of then.
    pub fn rejudged(self, precision: Precision) -> Agreement {
        let Some(largest) = self.largest else { return self };
        let judged = Agreement { tolerance: Tolerance::for_precision(precision), ..self };
        Agreement { broken: judged.objection(largest), ..judged }
    }

    /// What does not agree, where the reference's largest logit is `largest`.
    fn objection(&self, largest: f32) -> Option<String> {
        let tolerance = self.tolerance;
        if self.not_finite > 0 {
            return Some(format!("{} logits are not finite", self.not_finite));
        }
        if let Some(share) = tolerance.max_abs_share {
            let limit = f64::from(share * largest.max(1.0));
            if self.max_abs > limit {
                return Some(format!("a logit differs by {:.2e}, more than {limit:.2e}", self.max_abs));
            }
        }
        if self.mean_kl > tolerance.mean_kl {
            return Some(format!(
                "mean KL divergence {:.2e} exceeds {:.0e}",
                self.mean_kl, tolerance.mean_kl
            ));
        }
        if self.top1 < tolerance.top1 {
            let (top1, limit) = (self.top1 * 100.0, tolerance.top1 * 100.0);
            return Some(format!("top-1 agreement {top1:.1} % is below {limit:.0} %"));
        }
        let allowed = ((1.0 - tolerance.top1) * self.timed_tokens as f64).floor() as usize;
        if self.timed_mismatches > allowed {
            return Some(format!(
                "{} of {} timed tokens are not the reference's",
                self.timed_mismatches, self.timed_tokens
            ));
        }
        None
    }
}

/// Tokens of the timed iterations, and how many the reference would not have chosen. Tokens that were drawn are
/// not held against it: they are no engine's choice.
fn timed(reference: &Reference, run: &Run, decode: Decode, tie: f32) -> (usize, usize) {
    if matches!(decode, Decode::Sampled(_)) {
        return (0, 0);
    }
    let (mut tokens, mut mismatches) = (0, 0);
    for iteration in run.iterations() {
        for ((sample, logits), traces) in iteration.cases.iter().zip(&reference.logits).zip(&reference.traces)
        {
            for (sequence, (timed, trace)) in sample.tokens.iter().zip(traces).enumerate() {
                let prompt = logits.positions - trace.len();
                for (step, &token) in timed.iter().enumerate().take(trace.len()) {
                    tokens += 1;
                    let row = logits.row(sequence, prompt + step - 1);
                    mismatches += usize::from(!is_choice(row, token as usize, tie));
                    // A greedy run goes its own way after a tie; what follows has another context.
                    if decode == Decode::Greedy && token != trace[step] {
                        break;
                    }
                }
            }
        }
    }
    (tokens, mismatches)
}

#[cfg(test)]
mod tests {
    use protocol::{CaseSample, Event, Iteration};

    use super::*;

    /// One prompt token, two new ones, a vocabulary of three.
    fn reference() -> Reference {
        let values = vec![0.0, 9.0, 1.0, 8.0, 2.0, 1.0, 3.0, 3.0005, 0.0];
        Reference {
            framework: "r".into(),
            traces: vec![vec![vec![1, 0]]],
            logits: vec![Logits { batch: 1, positions: 3, vocabulary: 3, values }],
            unquantised: None,
        }
    }

    fn run(tokens: &[u32]) -> Run {
        let sample = CaseSample { first_token_ns: 1, gaps_ns: vec![1], tokens: vec![tokens.to_vec()] };
        let iteration = Iteration { index: 0, cases: vec![sample] };
        crate::testing::run("x", 0, vec![Event::Iteration(iteration)])
    }

    fn judge(change: impl Fn(&mut Vec<f32>), tokens: &[u32]) -> Agreement {
        let reference = reference();
        let mut logits = reference.logits.clone();
        change(&mut logits[0].values);
        compare(&reference, &logits, &run(tokens), Decode::Forced, Tolerance::for_precision(Precision::F32))
            .unwrap()
    }

    fn compared(reference: &Reference, logits: &[Logits]) -> Agreement {
        let tolerance = Tolerance::for_precision(Precision::F32);
        compare(reference, logits, &run(&[1, 0]), Decode::Forced, tolerance).unwrap()
    }

    #[test]
    fn the_same_logits_agree() {
        let same = judge(|_| {}, &[1, 0]);
        assert_eq!((same.max_abs, same.top1, same.timed_tokens, same.broken), (0.0, 1.0, 2, None));
    }

    #[test]
    fn a_difference_beyond_noise_is_named() {
        let broken = judge(|values| values[4] += 0.1, &[1, 0]).broken.unwrap();
        assert!(broken.starts_with("a logit differs by 1.00e-1"), "{broken}");
        let broken = judge(|values| values[0] = f32::NAN, &[1, 0]).broken.unwrap();
        assert_eq!(broken, "1 logits are not finite");
    }

    #[test]
    fn what_quantising_costs_is_told_beside_the_gate_and_is_no_part_of_it() {
        let mut reference = reference();
        let ours = reference.logits.clone();
        assert_eq!(compared(&reference, &ours).quantisation_loss, None);
        let mut unquantised = ours.clone();
        unquantised[0].values.swap(0, 1); // the first of three positions preferred another token
        reference.unquantised = Some(unquantised);
        let agreement = compared(&reference, &ours);
        let loss = agreement.quantisation_loss.unwrap();
        assert!((loss.top1 - 2.0 / 3.0).abs() < 1e-12 && loss.mean_kl > 1.0, "{loss:?}");
        assert_eq!((agreement.top1, agreement.broken), (1.0, None));
    }

    #[test]
    fn a_tie_is_broken_either_way() {
        // The last position's two best are 0.0005 apart: swapping them is no disagreement.
        let swapped = judge(|values| values.swap(6, 7), &[1, 0]);
        assert_eq!((swapped.top1, swapped.broken), (1.0, None));
    }

    #[test]
    fn wrong_tokens_in_the_timed_loop_break_parity_even_if_the_logits_agree() {
        let broken = judge(|_| {}, &[1, 2]).broken.unwrap();
        assert_eq!(broken, "1 of 2 timed tokens are not the reference's");
    }

    #[test]
    fn drawn_tokens_are_not_held_against_the_reference_s_choice() {
        let reference = reference();
        let sampling = protocol::Sampling { temperature: 1.0, top_k: None, top_p: None, seed: 1 };
        let (decode, tolerance) = (Decode::Sampled(sampling), Tolerance::for_precision(Precision::F32));
        let drawn = compare(&reference, &reference.logits, &run(&[2, 2]), decode, tolerance).unwrap();
        assert_eq!((drawn.timed_tokens, drawn.timed_mismatches, drawn.broken), (0, 0, None));
    }

    #[test]
    fn shapes_that_differ_are_not_compared() {
        let reference = reference();
        let error =
            compare(&reference, &[], &run(&[]), Decode::Forced, Tolerance::for_precision(Precision::F32))
                .unwrap_err();
        assert!(error.contains("shapes"), "{error}");
    }

    #[test]
    fn the_page_of_measures_states_these_tolerances() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measures.md");
        let page = std::fs::read_to_string(page).unwrap();
        for precision in Precision::ALL {
            let Tolerance { max_abs_share, mean_kl, top1, tie } = Tolerance::for_precision(precision);
            let number = |value: f64| if value < 0.005 { format!("{value:e}") } else { format!("{value}") };
            let share = max_abs_share.map_or("–".into(), |share| format!("{share:e}"));
            let tie: f64 = tie.to_string().parse().unwrap();
            let (kl, tie) = (number(mean_kl), number(tie));
            let row = format!("| {precision} | {share} | {kl} | {:.0} % | {tie} |", top1 * 100.0);
            assert!(page.contains(&row), "docs/measures.md has no row {row}");
        }
    }

    #[test]
    fn a_run_can_be_judged_again_by_what_was_kept_of_it() {
        let broken = judge(|values| values[4] += 0.1, &[1, 0]);
        assert_eq!(broken.clone().rejudged(Precision::F32), broken, "nothing has changed");
        let at_16_bits = broken.clone().rejudged(Precision::Bf16);
        assert_eq!((at_16_bits.broken, at_16_bits.tolerance.tie), (None, 0.3));
        let of_schema_2 = Agreement { largest: None, ..broken };
        assert_eq!(of_schema_2.clone().rejudged(Precision::Bf16), of_schema_2);
    }

    #[test]
    fn an_agreement_with_no_numbers_is_read_back() {
        let broken = judge(|values| values[0] = f32::NAN, &[1, 0]);
        let text = serde_json::to_string(&broken).unwrap();
        let read: Agreement = serde_json::from_str(&text).unwrap();
        assert_eq!((read.broken, read.not_finite), (broken.broken, 1));
        assert!(read.rmse.is_nan());
    }
}
