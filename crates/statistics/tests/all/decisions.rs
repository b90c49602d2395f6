//! Verdicts on whole tables.

use std::sync::LazyLock;

use proptest::prelude::*;
use statistics::{Decision, Looks, Outcome, Series, Settings, Undecided, decide, settled};

const STEADY: [f64; 6] = [10.0, 10.1, 9.9, 10.0, 10.05, 9.95];

fn some(figures: &[f64]) -> Vec<Option<f64>> {
    figures.iter().copied().map(Some).collect()
}

fn scaled(by: f64) -> Vec<f64> {
    STEADY.iter().enumerate().map(|(i, x)| x * by * (1.0 + 0.002 * (i % 3) as f64)).collect()
}

/// A hypothesis that has the same weight as every other.
fn equal<'a>(a: &'a [Option<f64>], b: &'a [Option<f64>]) -> Series<'a> {
    Series::new(a, b, 1.0)
}

fn verdicts(family: &[Series<'_>], looks: &Looks, last: bool) -> Vec<Option<Decision>> {
    decide(family, looks, last, &Settings::default())
}

/// One hypothesis, looked at once.
fn one(a: &[f64], b: &[f64]) -> Option<Decision> {
    let (a, b) = (some(a), some(b));
    verdicts(&[equal(&a, &b)], &Looks::fixed(a.len()), true).remove(0)
}

#[test]
fn a_clear_difference_is_different() {
    let decision = one(&scaled(1.9), &STEADY).unwrap();
    assert_eq!((decision.outcome, decision.reason), (Outcome::Different, None));
    assert!((decision.ratio - 1.9).abs() < 0.01 && decision.interval.0 > 1.8 && decision.interval.1 < 2.0);
    assert_eq!((decision.p_sequential, decision.p_adjusted), (decision.p_t, decision.p_t));
    assert!(decision.p_welch < 0.001 && decision.p_mann_whitney < 0.01 && decision.p_sign_flip < 0.05);
}

#[test]
fn five_rounds_are_never_enough() {
    let decision = one(&scaled(3.0)[..5], &STEADY[..5]).unwrap();
    assert_eq!(decision.outcome, Outcome::Inconclusive);
    assert_eq!(decision.reason, Some(Undecided::TooFewRounds { rounds: 5 }));
}

#[test]
fn a_small_but_certain_difference_is_equivalence() {
    let decision = one(&STEADY, &scaled(1.004)).unwrap();
    assert!(decision.p_adjusted < 0.05);
    assert_eq!(decision.outcome, Outcome::Equivalent);
}

#[test]
fn noise_is_inconclusive() {
    let decision = one(&STEADY, &[5.0, 15.0, 9.0, 12.0, 8.0, 11.0]).unwrap();
    assert_eq!((decision.outcome, decision.reason), (Outcome::Inconclusive, Some(Undecided::Noise)));
}

#[test]
fn the_whole_table_is_answered_for() {
    // p = 0.036: enough alone, not enough among fourteen others that show nothing.
    let (a, b) = (some(&[1.01, 1.06, 1.05, 1.04, 1.16, 1.09]), some(&[1.0; 6]));
    let alone = one(&[1.01, 1.06, 1.05, 1.04, 1.16, 1.09], &[1.0; 6]).unwrap();
    assert_eq!(alone.outcome, Outcome::Different);
    let noise = some(&[1.1, 0.9, 1.2, 0.8, 1.05, 0.97]);
    let mut family = vec![equal(&noise, &b); 14];
    family.push(equal(&a, &b));
    let table = verdicts(&family, &Looks::fixed(6), true);
    let beside = table[14].clone().unwrap();
    assert!((beside.p_adjusted / beside.p_t - 15.0).abs() < 1e-9);
    assert_eq!(beside.outcome, Outcome::Inconclusive);
}

#[test]
fn what_is_asked_first_has_most_of_the_error_rate() {
    let (a, b) = (some(&[1.01, 1.06, 1.05, 1.04, 1.16, 1.09]), some(&[1.0; 6]));
    let noise = some(&[1.1, 0.9, 1.2, 0.8, 1.05, 0.97]);
    // The same figures once on the deciding metric, and once on another.
    let figures = [&a, &a, &noise, &noise, &noise];
    let weights = [0.8, 0.05, 0.05, 0.05, 0.05];
    let family: Vec<Series<'_>> =
        figures.iter().zip(weights).map(|(a, weight)| Series::new(a, &b, weight)).collect();
    let table = verdicts(&family, &Looks::fixed(6), true);
    let (deciding, beside) = (table[0].clone().unwrap(), table[1].clone().unwrap());
    assert!((deciding.p_adjusted / deciding.p_t - 1.0 / 0.8).abs() < 1e-9);
    // The error rate that throughput did not need is left to the others: 0.2/0.05 of p instead of 1/0.05.
    assert!((beside.p_adjusted / beside.p_t - 4.0).abs() < 1e-9);
    assert_eq!((deciding.outcome, beside.outcome), (Outcome::Different, Outcome::Inconclusive));
}

#[test]
fn looking_again_and_again_is_paid_for() {
    let (a, b) = (some(&scaled(1.03)), some(&STEADY));
    let family = [equal(&a, &b)];
    let looks = Looks::automatic(24);
    let first = verdicts(&family, &looks, false).remove(0).unwrap();
    assert!((first.p_sequential / first.p_t - 16.0).abs() < 1e-3);
    let only = verdicts(&family, &looks, true).remove(0).unwrap();
    assert_eq!(only.p_sequential, only.p_t);
}

#[test]
fn the_sign_flip_test_has_a_veto() {
    // Nearly no noise but for one round: the t test alone cannot be trusted with five equal values and one
    // other.
    let decision = one(&[1.10, 1.10, 1.10, 1.10, 1.10, 0.999], &[1.0; 6]).unwrap();
    assert!(decision.p_t < 0.05 && decision.p_sign_flip > 0.05, "{decision:?}");
    assert_eq!(decision.outcome, Outcome::Inconclusive);
}

#[test]
fn nothing_to_compare_is_no_decision_and_no_hypothesis() {
    let (a, b, none) = (some(&scaled(1.9)), some(&STEADY), vec![None; 6]);
    let family = [equal(&a, &b), equal(&a, &none)];
    let table = verdicts(&family, &Looks::fixed(6), true);
    assert_eq!(table[1], None);
    let decided = table[0].clone().unwrap();
    assert_eq!(decided.p_adjusted, decided.p_sequential);
    assert_eq!(one(&[1.0], &[2.0]), None);
    assert_eq!(one(&[1.0, -1.0], &[2.0, 2.0]), None);
    assert!(verdicts(&[], &Looks::automatic(24), false).is_empty());
}

#[test]
fn identical_series_are_equivalent_and_constant_ratios_certain() {
    let same = one(&STEADY, &STEADY).unwrap();
    assert_eq!(
        (same.ratio, same.interval, same.p_t, same.outcome),
        (1.0, (1.0, 1.0), 1.0, Outcome::Equivalent)
    );
    let twice = one(&STEADY.map(|x| 2.0 * x), &STEADY).unwrap();
    assert_eq!((twice.p_t, twice.outcome), (0.0, Outcome::Different));
}

#[test]
fn equivalence_is_also_paid_for_under_peeking() {
    let (a, b) = (some(&STEADY), some(&scaled(1.008)));
    let family = [equal(&a, &b)];
    let peeking = verdicts(&family, &Looks::automatic(24), false).remove(0).unwrap();
    let once = verdicts(&family, &Looks::fixed(6), true).remove(0).unwrap();
    assert!(peeking.p_equivalence > 10.0 * once.p_equivalence);
}

#[test]
fn rounds_end_when_every_pair_is_decided_or_closely_known() {
    let different = one(&scaled(1.9), &STEADY);
    let noisy = one(&STEADY, &[5.0, 15.0, 9.0, 12.0, 8.0, 11.0]);
    assert!(settled(&[different.clone(), None], 0.02));
    assert!(!settled(&[different, noisy.clone()], 0.02));
    let close = noisy.map(|noisy| Decision { interval_alone: (1.012, 1.030), ..noisy });
    assert!(settled(std::slice::from_ref(&close), 0.02));
    let wider = close.map(|close| Decision { interval_alone: (1.005, 1.030), ..close });
    assert!(!settled(&[wider], 0.02));
}

/// Its boundaries are computed once.
static TWELVE: LazyLock<Looks> = LazyLock::new(|| Looks::automatic(12));

fn figures() -> impl Strategy<Value = Vec<Option<f64>>> {
    let figure = prop_oneof![
        8 => (0.5..2.0f64).prop_map(Some),
        2 => Just(Some(1.0)),
        1 => Just(None),
        1 => prop_oneof![Just(1e-300), Just(1e300), Just(f64::MIN_POSITIVE), Just(f64::MAX)].prop_map(Some),
    ];
    proptest::collection::vec(figure, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_number_is_a_number(a in figures(), b in figures(), last: bool, seed: u64) {
        let family = [equal(&a, &b), equal(&b, &a)];
        let settings = Settings { seed, ..Settings::default() };
        for decision in decide(&family, &TWELVE, last, &settings).into_iter().flatten() {
            let p = [
                decision.p_t, decision.p_sign_flip, decision.p_welch, decision.p_mann_whitney,
                decision.p_sequential, decision.p_adjusted, decision.p_equivalence,
            ];
            prop_assert!(p.iter().all(|p| (0.0..=1.0).contains(p)), "{decision:?}");
            let ((low, high), (low_alone, high_alone)) = (decision.interval, decision.interval_alone);
            let positive = [decision.ratio, low, high, low_alone, high_alone];
            prop_assert!(positive.iter().all(|x| x.is_finite() && *x > 0.0), "{decision:?}");
            prop_assert!(low <= high && low_alone <= high_alone);
            match decision.outcome {
                Outcome::Different => prop_assert!(low >= 1.0 || high <= 1.0, "{decision:?}"),
                Outcome::Inconclusive => prop_assert!(low <= 1.0 && high >= 1.0, "{decision:?}"),
                Outcome::Equivalent => prop_assert!(low.max(1.0 / 1.021) == low && high <= 1.021, "{decision:?}"),
            }
        }
    }

    #[test]
    fn swapping_the_two_inverts_the_ratio(a in proptest::collection::vec(0.5..2.0f64, 6..20), seed: u64) {
        let (a, b) = (some(&a), some(&vec![1.0; a.len()]));
        let settings = Settings { seed, ..Settings::default() };
        let decided = |a, b| decide(&[equal(a, b)], &Looks::fixed(6), true, &settings).remove(0).unwrap();
        let (ab, ba) = (decided(&a, &b), decided(&b, &a));
        prop_assert!((ab.ratio * ba.ratio - 1.0).abs() < 1e-9);
        prop_assert!((ab.interval.0 * ba.interval.1 - 1.0).abs() < 1e-9);
        prop_assert!((ab.p_t - ba.p_t).abs() < 1e-9 && ab.outcome == ba.outcome);
        prop_assert_eq!(ab.p_sign_flip, ba.p_sign_flip);
    }
}

#[test]
fn a_decision_is_read_back_as_it_was_written() {
    let shown = [one(&scaled(1.9), &STEADY), one(&STEADY, &scaled(1.004)), one(&[1.0; 6], &[1.0; 6])];
    let undecided = [one(&scaled(3.0)[..5], &STEADY[..5]), one(&STEADY, &[5.0, 15.0, 9.0, 12.0, 8.0, 11.0])];
    // Beyond every exponent: the ratio is the largest finite number.
    let extreme = one(&[1e300; 6], &[1e-300; 6]);
    for decision in shown.into_iter().chain(undecided).chain([extreme]) {
        let decision = decision.unwrap();
        let written = serde_json::to_string(&decision).unwrap();
        assert_eq!(serde_json::from_str::<Decision>(&written).unwrap(), decision, "{written}");
    }
}
