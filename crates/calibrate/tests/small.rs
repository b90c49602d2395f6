//! The calibration in small, with limits that are loose and yet detect faults; and tests of the calibration
//! itself, with methods that are broken on purpose.

use calibrate::comparison::{Rounds, Scenario};
use calibrate::figures::DECIDING;
use calibrate::machine::Machine;
use calibrate::outcomes::{any_different, coverage, is, last_is_slower};
use calibrate::page;
use calibrate::processes::Order;
use calibrate::steady::COURSES;
use calibrate::studies;
use calibrate::studies::bandwidth::{self, BUDGET_S, INTERLEAVED, PROCESSES};
use calibrate::studies::noise::{DRIFT, NORMAL, scenario};
use calibrate::study::{Options, Share, mean, repeat};
use calibrate::turns::Schedule;
use statistics::steady::classify;
use statistics::{LogRatios, Looks, Outcome, Resamples};

const OPTIONS: Options = Options { comparisons: 200, seed: 7 };

#[test]
fn one_contender_under_two_names_is_seldom_different() {
    for noise in [NORMAL, DRIFT] {
        let outcomes = OPTIONS.simulate(&scenario(2, 1.0, noise, Rounds::Automatic));
        let wrong = Share::count(&outcomes, any_different);
        assert!(wrong.value() <= 0.06, "{wrong:?} with {noise:?}");
    }
}

#[test]
fn three_percent_are_found_in_two_percent_noise() {
    let scenario = scenario(2, 1.03, NORMAL, Rounds::Automatic);
    let found = Share::count(&OPTIONS.simulate(&scenario), |outcome| last_is_slower(&scenario, outcome));
    assert!(found.value() >= 0.88, "{found:?}");
}

#[test]
fn clear_differences_take_few_rounds() {
    let outcomes = OPTIONS.simulate(&scenario(3, 1.5, NORMAL, Rounds::Fixed(6)));
    assert!(outcomes.iter().all(any_different));
    let outcomes = OPTIONS.simulate(&scenario(2, 1.5, NORMAL, Rounds::Automatic));
    assert!(outcomes.iter().all(|outcome| outcome.effort.rounds == 6));
}

#[test]
fn intervals_hold_the_truth_about_as_often_as_they_say() {
    for rounds in [Rounds::Fixed(6), Rounds::Automatic] {
        let outcomes = OPTIONS.simulate(&scenario(2, 1.03, NORMAL, rounds));
        let (_, held) = coverage(&outcomes, 1.03);
        assert!((0.90..=0.99).contains(&held.value()), "{held:?} with {rounds:?}");
    }
}

#[test]
fn what_is_at_the_margin_is_seldom_equivalent() {
    let outcomes = OPTIONS.simulate(&scenario(2, 1.02, NORMAL, Rounds::Fixed(24)));
    let wrong = Share::count(&outcomes, |outcome| is(&outcome.deciding()[0], Outcome::Equivalent));
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
    let scenario = scenario(2, 1.0, NORMAL, Rounds::Automatic);
    let looks = Rounds::Automatic.looks();
    let misled = repeat(OPTIONS.comparisons, OPTIONS.seed, |seed| {
        let mut excluded = false;
        scenario.observe(&looks, seed, |family, _| {
            let ratios = LogRatios::new(family[DECIDING].a, family[DECIDING].b).unwrap();
            let (low, high) =
                Resamples::new(ratios.rounds(), seed).interval(ratios.differences(), ratios.freedom(), 0.95);
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
    let machine = Machine::Even { noise: DRIFT, order: Order::OneByOne };
    let one_by_one = Scenario::new(2, 1.0, machine, Rounds::Fixed(24));
    let wrong = Share::count(&OPTIONS.simulate(&one_by_one), any_different);
    assert!(wrong.interval().0 > 0.05, "{wrong:?}");
}

#[test]
fn a_table_without_holm_is_caught() {
    let scenario = scenario(3, 1.0, NORMAL, Rounds::Fixed(12));
    let any = repeat(OPTIONS.comparisons, OPTIONS.seed, |seed| {
        let comparison = scenario.compare(&Looks::fixed(12), seed);
        comparison.table.iter().flatten().any(|decision| decision.p_t < 0.05)
    });
    let wrong = Share::count(&any, |any| *any);
    assert!(wrong.interval().0 > 0.05, "{wrong:?}");
}

#[test]
fn bandwidth_that_changes_is_no_difference() {
    for schedule in [INTERLEAVED, Schedule::Sequential] {
        let outcomes = OPTIONS.simulate(&bandwidth::scenario(3, 1.0, PROCESSES[0], schedule));
        let wrong = Share::count(&outcomes, any_different);
        assert!(wrong.value() <= 0.06, "{wrong:?} when {schedule}");
    }
}

#[test]
fn intervals_hold_the_truth_while_bandwidth_changes() {
    for process in PROCESSES {
        let outcomes = OPTIONS.simulate(&bandwidth::scenario(2, 1.03, process, INTERLEAVED));
        let (bias, held) = coverage(&outcomes, 1.03);
        assert!((0.90..=0.99).contains(&held.value()) && bias.abs() < 0.01, "{held:?} {bias} at {process}");
    }
}

#[test]
fn interleaved_requests_find_more_in_the_same_time() {
    let found = [INTERLEAVED, Schedule::Sequential].map(|schedule| {
        let scenario = bandwidth::scenario(2, 1.10, PROCESSES[0], schedule);
        let outcomes = OPTIONS.simulate(&scenario);
        let seconds: Vec<f64> = outcomes.iter().map(|outcome| outcome.effort.seconds).collect();
        assert!(mean(&seconds) < BUDGET_S, "{} s when {schedule}", mean(&seconds));
        Share::count(&outcomes, |outcome| last_is_slower(&scenario, outcome)).value()
    });
    assert!(found[0] > 2.0 * found[1], "{found:?}");
}

#[test]
fn the_same_options_give_the_same_page() {
    let options = Options { comparisons: 3, seed: 5 };
    let page = || page::render(&options, &studies::all(&options));
    assert_eq!(page(), page());
}
