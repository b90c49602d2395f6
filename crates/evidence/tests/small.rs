//! The calibration in small, with limits that are loose and yet detect faults; and tests of the calibration
//! itself, with methods that are broken on purpose.

use evidence::calibrate::kept::{Kept, Play};
use evidence::calibrate::page::{
    self, Options, Share, THROUGHPUT, any_different, coverage, is, joint_coverage, last_is_slower, mean,
    repeat,
};
use evidence::calibrate::simulated::{Machine, Order, Rounds, Scenario, Schedule};
use evidence::calibrate::studies::{
    self, BUDGET_S, DRIFT, INTERLEAVED, NORMAL, PROCESSES, noise_scenario, survive,
};
use evidence::calibrate::uneven::{COURSES, Uneven};
use statistics::steady::classify;
use statistics::{LogRatios, Outcome};

const OPTIONS: Options = Options { comparisons: 200, seed: 7 };
const AUTOMATIC: Rounds = Rounds::Automatic(30);
/// Tests run in the directory of the crate.
const PUBLISHED: &str = "../../results/published";

#[test]
fn one_contender_under_two_names_is_seldom_different() {
    for noise in [NORMAL, DRIFT] {
        let outcomes = OPTIONS.simulate(&noise_scenario(2, 1.0, noise, AUTOMATIC));
        let wrong = Share::count(&outcomes, any_different);
        assert!(wrong.value() <= 0.06, "{wrong:?} with {noise:?}");
    }
}

#[test]
fn three_percent_are_found_in_two_percent_noise() {
    let scenario = noise_scenario(2, 1.03, NORMAL, AUTOMATIC);
    let found = Share::count(&OPTIONS.simulate(&scenario), |outcome| last_is_slower(&scenario, outcome));
    assert!(found.value() >= 0.88, "{found:?}");
}

#[test]
fn clear_differences_take_few_rounds() {
    let outcomes = OPTIONS.simulate(&noise_scenario(3, 1.5, NORMAL, Rounds::Fixed(6)));
    assert!(outcomes.iter().all(any_different));
    let outcomes = OPTIONS.simulate(&noise_scenario(2, 1.5, NORMAL, AUTOMATIC));
    assert!(outcomes.iter().all(|outcome| outcome.effort.rounds == 6));
}

#[test]
fn intervals_hold_the_truth_about_as_often_as_they_say() {
    for rounds in [Rounds::Fixed(6), AUTOMATIC] {
        let outcomes = OPTIONS.simulate(&noise_scenario(2, 1.03, NORMAL, rounds));
        let (_, held) = coverage(&outcomes, 1.03);
        assert!((0.90..=0.99).contains(&held.value()), "{held:?} with {rounds:?}");
    }
}

#[test]
fn intervals_of_a_table_hold_their_ratios_together() {
    let scenario = noise_scenario(3, 1.03, NORMAL, Rounds::Automatic(12));
    let held = joint_coverage(&scenario, &OPTIONS.simulate(&scenario));
    assert!(held.value() >= 0.94, "{held:?}");
}

#[test]
fn what_is_at_the_margin_is_seldom_equivalent() {
    let outcomes = OPTIONS.simulate(&noise_scenario(2, 1.02, NORMAL, Rounds::Fixed(24)));
    let wrong = Share::count(&outcomes, |outcome| is(&outcome.throughput()[0], Outcome::Equivalent));
    assert!(wrong.value() <= 0.06, "{wrong:?}");
}

#[test]
fn courses_are_classified_as_what_they_are() {
    for (name, course, state) in COURSES {
        let found =
            repeat(OPTIONS.comparisons, OPTIONS.seed, |seed| classify(&course.series(seed)).unwrap().state);
        let right = Share::count(&found, |found| *found == state);
        assert!(right.value() >= 0.9, "{name}: {right:?}");
    }
}

#[test]
fn peeking_without_paying_is_caught() {
    let scenario = noise_scenario(2, 1.0, NORMAL, AUTOMATIC);
    let misled = repeat(OPTIONS.comparisons, OPTIONS.seed, |seed| {
        let mut excluded = false;
        scenario.observe(seed, |family, _, _| {
            let ratios = LogRatios::new(family[THROUGHPUT].a, family[THROUGHPUT].b).unwrap();
            let (low, high) = ratios.interval(0.05);
            excluded |= low > 0.0 || high < 0.0;
            excluded
        });
        excluded
    });
    let wrong = Share::count(&misled, |misled| *misled);
    assert!(wrong.interval().0 > 0.05, "{wrong:?}");
}

#[test]
fn drift_that_falls_on_one_contender_is_caught() {
    let machine = Machine::Even { noise: DRIFT, order: Order::OneByOne, uneven: None };
    let one_by_one = Scenario::new(2, 1.0, machine, Rounds::Fixed(24));
    let wrong = Share::count(&OPTIONS.simulate(&one_by_one), any_different);
    assert!(wrong.interval().0 > 0.05, "{wrong:?}");
}

#[test]
fn a_table_without_holm_is_caught() {
    let scenario = noise_scenario(3, 1.0, NORMAL, Rounds::Fixed(12));
    let any = repeat(OPTIONS.comparisons, OPTIONS.seed, |seed| {
        let comparison = scenario.compare(seed);
        comparison.table.iter().flatten().any(|decision| decision.p_t < 0.05)
    });
    let wrong = Share::count(&any, |any| *any);
    assert!(wrong.interval().0 > 0.05, "{wrong:?}");
}

#[test]
fn bandwidth_that_changes_is_no_difference() {
    for schedule in [INTERLEAVED, Schedule::Sequential] {
        let outcomes = OPTIONS.simulate(&studies::scenario(3, 1.0, PROCESSES[0], schedule));
        let wrong = Share::count(&outcomes, any_different);
        assert!(wrong.value() <= 0.06, "{wrong:?} when {schedule:?}");
    }
}

#[test]
fn intervals_hold_the_truth_while_bandwidth_changes() {
    for process in PROCESSES {
        let outcomes = OPTIONS.simulate(&studies::scenario(2, 1.03, process, INTERLEAVED));
        let (bias, held) = coverage(&outcomes, 1.03);
        assert!((0.90..=0.99).contains(&held.value()) && bias.abs() < 0.01, "{held:?} {bias} at {process}");
    }
}

#[test]
fn interleaved_requests_find_more_in_the_same_time() {
    let found = [INTERLEAVED, Schedule::Sequential].map(|schedule| {
        let scenario = studies::scenario(2, 1.10, PROCESSES[0], schedule);
        let outcomes = OPTIONS.simulate(&scenario);
        let seconds: Vec<f64> = outcomes.iter().map(|outcome| outcome.effort.seconds).collect();
        assert!(mean(&seconds) < BUDGET_S, "{} s when {schedule:?}", mean(&seconds));
        Share::count(&outcomes, |outcome| last_is_slower(&scenario, outcome)).value()
    });
    assert!(found[0] > 2.0 * found[1], "{found:?}");
}

#[test]
fn two_speeds_of_one_contender_are_seen_and_are_no_difference() {
    let survived = survive(&OPTIONS, Uneven::Speeds { share: 1.0 / 3.0, factor: 1.2 }, 2, AUTOMATIC);
    assert!(survived.wrong.value() <= 0.08 && survived.seen.value() >= 0.85, "{survived:?}");
}

#[test]
fn kept_rounds_of_equals_are_seldom_different() {
    let kept = Kept::read(PUBLISHED).unwrap();
    for (exchanged, slower) in [(false, 1.0), (true, 1.0), (true, 1.2)] {
        let play = Play { rounds: 10, exchanged, slower };
        let any = repeat(OPTIONS.comparisons, OPTIONS.seed, |seed| {
            let all =
                kept.questions.iter().zip(kept.play(&play, seed)).filter(|(question, _)| question.is_asked);
            all.flat_map(|(_, decisions)| decisions).any(|decision| is(&decision, Outcome::Different))
        });
        let share = Share::count(&any, |any| *any).value();
        assert!(if slower > 1.0 { share > 0.9 } else { share <= 0.07 }, "{share} with {play:?}");
    }
}

#[test]
fn the_same_options_give_the_same_page() {
    let options = Options { comparisons: 3, seed: 5 };
    let kept = [Kept::read(PUBLISHED).unwrap()];
    let page = || page::render(&options, &studies::all(&options, &kept));
    assert_eq!(page(), page());
}
