//! The parity gate: contenders must compute the same thing, in the very run that is timed.
//!
//! Two facts are compared with the reference: of every process the most likely tokens of every timed request, and in
//! the first round and in one that the seed draws, teacher-forced logits along the trace, from the prefill and decode
//! path that was timed.

use plan::Plan;
use protocol::{Decode, Denoise, Output};

use crate::logits::{Logits, is_choice};
use crate::sums::Sums;
pub use facts::agreement::{Agreement, QuantisationLoss, TokenAgreement, Tolerance};
use facts::run::Run;

/// The reference: traces, and the reference engine's logits along them, computed in f32. The traces are its own greedy
/// ones, or these with less likely tokens in some places. At a quantised precision it uses
/// the same codes and scales, dequantised. The gate is then as narrow as the arithmetic of the kernels, and not as wide
/// as the cost of quantising.
#[derive(Debug, Clone)]
pub struct Reference {
    pub framework: String,
    /// The traces, one output for each case.
    pub outputs: Vec<Output>,
    pub logits: Vec<Logits>,
    /// At a quantised precision: the logits of the model before it was quantised, along the same traces.
    pub unquantised: Option<Vec<Logits>>,
}

/// The way in which requests generate.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub decode: Decode,
    pub denoise: Option<Denoise>,
}

impl Way {
    pub fn new(plan: &Plan) -> Way {
        Way { decode: plan.decode, denoise: plan.denoise }
    }
}

/// Compares a run's logits with the reference's. `tokens`: its timed tokens beside those of the reference.
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
        timed_tokens: timed,
        timed_mismatches: mismatches,
        misplaced,
        quantisation_loss: unquantised
            .map(|sums| QuantisationLoss { mean_kl: sums.mean_kl(), top1: sums.top1() }),
        broken: None,
    };
    agreement.broken = agreement.objection(sums.largest);
    Ok(agreement)
}

/// The tokens of the timed requests beside the reference's. Drawn tokens do not count, because no engine chose them.
pub fn tokens(reference: &Reference, run: &Run, way: Way, tie: f32) -> TokenAgreement {
    let Way { decode, denoise } = way;
    let mut agreement = TokenAgreement { timed: 0, mismatches: 0, misplaced: 0 };
    let is_drawn = match denoise {
        // A process that goes its own way is soon in states that the reference was never in.
        Some(denoise) => denoise.temperature > 0.0 || decode != Decode::Forced,
        None => matches!(decode, Decode::Sampled(_)),
    };
    if is_drawn {
        return agreement;
    }
    for (case, sample) in run.requests() {
        let (Some(logits), Some(along)) = (reference.logits.get(case), reference.outputs.get(case)) else {
            continue;
        };
        let steps = sample.output.unmasked().iter().flatten().zip(along.unmasked().iter().flatten());
        agreement.misplaced += steps.filter(|(ours, theirs)| ours != theirs).count();
        for (sequence, (timed, trace)) in sample.output.tokens().iter().zip(along.tokens()).enumerate() {
            let prompt = logits.positions - trace.len();
            for (step, &token) in timed.iter().enumerate().take(trace.len()) {
                agreement.timed += 1;
                let row = logits.row(sequence, prompt + step - 1);
                agreement.mismatches += usize::from(!is_choice(row, token as usize, tie));
                // After a tie, a greedy run goes its own way; later tokens have another context.
                if decode == Decode::Greedy && token != trace[step] {
                    break;
                }
            }
        }
    }
    agreement
}

#[cfg(test)]
mod tests {
    use bundle::Precision;
    use protocol::{Marks, Sample, Steps};

    use super::*;

    const FORCED: Way = Way { decode: Decode::Forced, denoise: None };

    /// One prompt token, two new ones, a vocabulary of three.
    fn reference() -> Reference {
        let values = vec![0.0, 9.0, 1.0, 8.0, 2.0, 1.0, 3.0, 3.0005, 0.0];
        Reference {
            framework: "r".into(),
            outputs: vec![Output::Tokens(vec![vec![1, 0]])],
            logits: vec![Logits { batch: 1, positions: 3, vocabulary: 3, values }],
            unquantised: None,
        }
    }

    fn run(tokens: &[u32]) -> Run {
        let output = Output::Tokens(vec![tokens.to_vec()]);
        let sample = Sample { marks_ns: Marks::new(1, [1]), output, ..Sample::default() };
        facts::testing::measured("x", 0, Vec::new(), vec![vec![sample]])
    }

    fn judge(change: impl Fn(&mut Vec<f32>), tokens: &[u32]) -> Agreement {
        let reference = reference();
        let mut logits = reference.logits.clone();
        change(&mut logits[0].values);
        let tolerance = Tolerance::for_precision(Precision::F32);
        let tokens = super::tokens(&reference, &run(tokens), FORCED, tolerance.tie);
        compare(&reference, &logits, tokens, tolerance).unwrap()
    }

    fn compared(reference: &Reference, logits: &[Logits]) -> Agreement {
        let tolerance = Tolerance::for_precision(Precision::F32);
        compare(reference, logits, tokens(reference, &run(&[1, 0]), FORCED, tolerance.tie), tolerance)
            .unwrap()
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
        let drawn = tokens(&reference, &run(&[2, 2]), Way { decode, denoise: None }, tolerance.tie);
        assert_eq!((drawn.timed, drawn.mismatches), (0, 0));
    }

    #[test]
    fn tokens_that_would_have_been_unmasked_in_another_step_break_parity_in_f32() {
        let mut reference = reference();
        // Of masked diffusion there is one row of logits for each token, and one behind them.
        let steps = |unmasked: &[u32]| {
            let (tokens, unmasked) = (vec![vec![1, 0]], vec![unmasked.to_vec()]);
            Output::Steps(Steps { tokens, unmasked, passes_ns: Vec::new() })
        };
        reference.outputs = vec![steps(&[1, 0])];
        let denoise = serde_json::from_str(r#"{"steps": 2, "algorithm": "entropy"}"#).unwrap();
        let way = Way { decode: Decode::Forced, denoise: Some(denoise) };
        let mut run = run(&[1, 0]);
        run.turns[0].sample.output = steps(&[1, 0]);
        assert_eq!(
            tokens(&reference, &run, way, 1e-3),
            TokenAgreement { timed: 2, mismatches: 0, misplaced: 0 }
        );
        run.turns[0].sample.output = steps(&[2, 2]);
        let apart = tokens(&reference, &run, way, 1e-3);
        let objection = apart.objection(&Tolerance::for_precision(Precision::F32)).unwrap();
        assert_eq!(objection, "2 of 2 timed tokens would have been unmasked in another step");
        assert_eq!(apart.objection(&Tolerance::for_precision(Precision::Bf16)), None);
        let drawn = Way { denoise: Some(Denoise { temperature: 0.7, ..denoise }), ..way };
        assert_eq!(tokens(&reference, &run, drawn, 1e-3).timed, 0);
    }

    #[test]
    fn shapes_that_differ_are_not_compared() {
        let reference = reference();
        let none = TokenAgreement { timed: 0, mismatches: 0, misplaced: 0 };
        let error = compare(&reference, &[], none, Tolerance::for_precision(Precision::F32)).unwrap_err();
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
        assert_eq!(
            broken.clone().rejudged(Tolerance::for_precision(Precision::F32)),
            broken,
            "nothing has changed"
        );
        let at_16_bits = broken.clone().rejudged(Tolerance::for_precision(Precision::Bf16));
        assert_eq!((at_16_bits.broken, at_16_bits.tolerance.tie), (None, 0.3));
        let not_finite = Agreement { largest: None, ..broken };
        assert_eq!(not_finite.clone().rejudged(Tolerance::for_precision(Precision::Bf16)), not_finite);
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
