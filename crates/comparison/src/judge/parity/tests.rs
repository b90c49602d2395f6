use bundle::Precision;
use protocol::Decode;
use protocol::{Marks, Sample, Steps};

use super::*;
use crate::facts;
use crate::facts::testing;
use crate::judge::work;
use crate::plan::{Plan, Work};

/// The tokens of a run with the plan's work.
fn tokens(plan: &Plan, reference: &Reference, run: &Run) -> TokenAgreement {
    work::tokens(plan, reference, run, Tolerance::for_precision(Precision::F32)).unwrap()
}

fn forced() -> Plan {
    testing::plan(&["x"])
}

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
    let tokens = self::tokens(&forced(), &reference, &run(tokens));
    compare(&reference, &logits, tokens, tolerance).unwrap()
}

fn compared(reference: &Reference, logits: &[Logits]) -> Agreement {
    let tolerance = Tolerance::for_precision(Precision::F32);
    compare(reference, logits, tokens(&forced(), reference, &run(&[1, 0])), tolerance).unwrap()
}

/// Log-probabilities of the two most likely tokens of each new position, as a server with logits shows them.
fn shown(logits: &[Logits]) -> Vec<Logits> {
    let mut shown = logits.to_vec();
    for case in &mut shown {
        let prompt = case.positions - 2;
        for (position, row) in case.values.chunks_mut(case.vocabulary).enumerate() {
            let best = most_likely(row, 2);
            let all: Vec<f32> = logits::log_probabilities(row).collect();
            row.fill(f32::NAN);
            best.iter()
                .filter(|_| position >= prompt)
                .for_each(|&token| row[token as usize] = all[token as usize]);
        }
    }
    shown
}

#[test]
fn of_a_server_the_log_probabilities_that_it_shows_are_compared() {
    let (reference, tolerance) = (reference(), Tolerance::for_precision(Precision::F32));
    let judge = |logits: &[Logits]| compare_shown(&reference, logits, TokenAgreement::default(), tolerance);
    let equal = judge(&shown(&reference.logits)).unwrap();
    assert_eq!((equal.broken, equal.logits.unwrap().shown), (None, Some(4)));
    // Another temperature: the order of the tokens is the same.
    let mut other = reference.logits.clone();
    other[0].values.iter_mut().for_each(|logit| *logit *= 0.9);
    assert!(judge(&shown(&other)).unwrap().broken.unwrap().starts_with("a logit differs by "));
    let mut infinite = shown(&reference.logits);
    let number = infinite[0].values.iter_mut().find(|number| !number.is_nan()).unwrap();
    *number = f32::NEG_INFINITY;
    assert_eq!(judge(&infinite).unwrap().broken.as_deref(), Some("1 logits are not finite"));
    let mut nothing = reference.logits.clone();
    nothing[0].values.fill(f32::NAN);
    assert!(judge(&nothing).unwrap_err().contains("shows no log-probabilities"));
}

#[test]
fn the_same_logits_agree() {
    let same = judge(|_| {}, &[1, 0]);
    assert_eq!(
        (same.max_abs(), same.logits.unwrap().top1, same.timed_tokens, same.broken),
        (0.0, 1.0, 2, None)
    );
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
    assert_eq!((agreement.logits.unwrap().top1, agreement.broken), (1.0, None));
}

#[test]
fn a_tie_is_broken_either_way() {
    // The last position's two best are 0.0005 apart: swapping them is no disagreement.
    let swapped = judge(|values| values.swap(6, 7), &[1, 0]);
    assert_eq!((swapped.logits.unwrap().top1, swapped.broken), (1.0, None));
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
    let mut plan = forced();
    if let Work::Generate(work) = &mut plan.work {
        work.decode = Decode::Sampled(sampling);
    }
    let drawn = tokens(&plan, &reference, &run(&[2, 2]));
    assert_eq!((drawn.timed, drawn.mismatches), (0, 0));
}

#[test]
fn tokens_that_would_have_been_unmasked_in_another_step_break_parity_in_f32() {
    let mut reference = reference();
    // For masked diffusion there is one row of logits for each token, and one after them.
    let steps = |unmasked: &[u32]| {
        let (tokens, unmasked) = (vec![vec![1, 0]], vec![unmasked.to_vec()]);
        Output::Steps(Steps { tokens, unmasked, passes_ns: Vec::new() })
    };
    reference.outputs = vec![steps(&[1, 0])];
    let mut plan = testing::denoising(forced(), 2);
    let mut run = run(&[1, 0]);
    run.turns[0].sample.output = steps(&[1, 0]);
    assert_eq!(tokens(&plan, &reference, &run), TokenAgreement { timed: 2, ..TokenAgreement::default() });
    run.turns[0].sample.output = steps(&[2, 2]);
    let apart = tokens(&plan, &reference, &run);
    let objection = apart.objection(&Tolerance::for_precision(Precision::F32)).unwrap();
    assert_eq!(objection, "2 of 2 timed tokens would have been unmasked in another step");
    assert_eq!(apart.objection(&Tolerance::for_precision(Precision::Bf16)), None);
    if let Work::Denoise(work) = &mut plan.work {
        work.how.temperature = 0.7;
    }
    assert_eq!(tokens(&plan, &reference, &run).timed, 0);
}

#[test]
fn shapes_that_differ_are_not_compared() {
    let reference = reference();
    let none = TokenAgreement::default();
    let error = compare(&reference, &[], none, Tolerance::for_precision(Precision::F32)).unwrap_err();
    assert!(error.contains("shapes"), "{error}");
}

#[test]
fn the_page_of_measures_states_these_tolerances() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/measures.md");
    let page = std::fs::read_to_string(page).unwrap();
    for precision in Precision::ALL {
        let Tolerance { max_abs_share, mean_kl, top1, tie } = Tolerance::for_precision(precision);
        let number = |value: f64| if value < 0.005 { format!("{value:e}") } else { format!("{value}") };
        let share = max_abs_share.map_or("–".into(), |share| format!("{share:e}"));
        let tie: f64 = tie.to_string().parse().unwrap();
        let (kl, tie) = (number(mean_kl), number(tie));
        let row = format!("| {precision} | {share} | {kl} | {:.0} % | {tie} |", top1 * 100.0);
        assert!(page.contains(&row), "docs/reference/measures.md has no row {row}");
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
    let logits = broken.logits.map(|logits| LogitAgreement { largest: None, ..logits });
    let not_finite = Agreement { logits, ..broken };
    assert_eq!(not_finite.clone().rejudged(Tolerance::for_precision(Precision::Bf16)), not_finite);
}

#[test]
fn an_agreement_with_no_numbers_is_read_back() {
    let broken = judge(|values| values[0] = f32::NAN, &[1, 0]);
    let text = serde_json::to_string(&broken).unwrap();
    let read: Agreement = serde_json::from_str(&text).unwrap();
    assert_eq!((read.broken, read.logits.unwrap().not_finite), (broken.broken, 1));
    assert!(read.logits.unwrap().rmse.is_nan());
}

#[test]
fn drawn_logits_show_a_request_that_computed_at_another_precision() {
    let along: [&[f32]; 1] = [&[0.0, 8.0, -4.0, 1.0, 0.0, 6.0]];
    let of = |chosen: [u32; 2], logit: f32, precision| {
        let drawn = [Drawn { step: 1, tokens: vec![0, 2], values: vec![vec![logit, 6.0]] }];
        proved(&[chosen.to_vec()], (&drawn, &[]), (&along, 3), &Tolerance::for_precision(precision))
    };
    let same = of([1, 2], 1.0, Precision::F32);
    assert_eq!((same.timed, same.mismatches, same.drawn, same.beyond), (2, 0, 2, 0));
    assert_eq!(of([1, 0], 1.0, Precision::F32).mismatches, 1);
    let rounded = of([1, 2], 1.01, Precision::F32);
    assert_eq!(rounded.beyond, 1);
    let objection = rounded.objection(&Tolerance::for_precision(Precision::F32)).unwrap();
    assert!(objection.contains("1 of 2 logits") && objection.contains("1.25e-3"), "{objection}");
    assert_eq!(of([1, 2], f32::NAN, Precision::F32).beyond, 1);
    assert_eq!(of([1, 2], 1.01, Precision::Bf16).drawn, 0, "single logits may be off at 16 bits");
}

#[test]
fn a_server_is_not_held_to_tokens_that_it_never_chooses() {
    let along: [&[f32]; 1] = [&[0.0, 8.0, -4.0, 1.0, 0.0, 6.0]];
    let mismatches = |barred: &[u32]| {
        let tolerance = Tolerance::for_precision(Precision::F32);
        proved(&[vec![0, 2]], (&[], barred), (&along, 3), &tolerance).mismatches
    };
    assert_eq!((mismatches(&[]), mismatches(&[1]), mismatches(&[2])), (1, 0, 2));
}

// Continuations.

/// One prompt token, three new ones, a vocabulary of three; the second choice is a tie.
fn reference_with_a_tie() -> Reference {
    let values = vec![0.0, 9.0, 1.0, 8.0, 2.0, 7.9995, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0];
    Reference {
        framework: "r".into(),
        outputs: vec![Output::Tokens(vec![vec![1, 0, 0]])],
        logits: vec![Logits { batch: 1, positions: 4, vocabulary: 3, values }],
        unquantised: None,
    }
}

fn continued(tokens: &[u32]) -> Continuation {
    Continuation::new(&reference_with_a_tie(), &[vec![tokens.to_vec()]], &["p"], 1e-3)
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
