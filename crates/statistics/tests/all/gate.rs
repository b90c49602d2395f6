//! The gate against a known truth: how often `check` raises a false alarm, and how often it finds a
//! regression.
//!
//! A simulated check does the same as `photofinish check`: two frameworks with five metrics each, two runs of
//! log-normal processes, Holm over all ten, the threshold. Two of the five metrics are the same figure
//! (latency and throughput), which makes the family as dependent as in practice.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use statistics::{Change, Samples, Settings, classify, contrast};

const CHECKS: usize = 1_000;
const THRESHOLD: f64 = 0.05;
/// Metrics of two frameworks; the first two have one cause.
const FAMILY: usize = 10;

struct Truth {
    /// Standard deviation of a process's logarithm.
    noise: f64,
    rounds: usize,
    /// How many times worse the first framework decodes in the current run.
    worse: f64,
    /// Effect common to a whole run, as a standard deviation.
    between_runs: f64,
}

/// Shares of checks in which anything was a regression, anything was significant, and the decoding of the
/// first framework was a regression.
struct Found {
    alarms: f64,
    significant: f64,
    decoding: f64,
}

fn simulate(truth: &Truth, seed: u64) -> Found {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut normal = || -> f64 { StandardNormal.sample(&mut random) };
    let mut found = Found { alarms: 0.0, significant: 0.0, decoding: 0.0 };
    for _ in 0..CHECKS {
        let mut figures: Vec<[Vec<f64>; 2]> = Vec::new();
        for metric in 0..FAMILY {
            let shared = [0, 1].map(|_| truth.between_runs * normal());
            let run = |run: usize, worse: f64, normal: &mut dyn FnMut() -> f64| -> Vec<f64> {
                (0..truth.rounds).map(|_| worse * (shared[run] + truth.noise * normal()).exp()).collect()
            };
            let worse = if metric == 0 { truth.worse } else { 1.0 };
            let pair = [run(0, worse, &mut normal), run(1, 1.0, &mut normal)];
            figures.push(if metric == 1 { figures[0].clone() } else { pair });
        }
        let family: Vec<Samples<'_>> = figures.iter().map(|[a, b]| Samples { a, b }).collect();
        let contrasts = contrast(&family, &Settings::default());
        let contrasts: Vec<_> = contrasts.into_iter().map(|contrast| contrast.unwrap()).collect();
        let changes: Vec<Change> =
            contrasts.iter().map(|c| classify(c.ratio, c.interval, c.significant, THRESHOLD)).collect();
        let share = |is: bool| if is { 1.0 / CHECKS as f64 } else { 0.0 };
        found.alarms += share(changes.contains(&Change::Regression));
        found.significant += share(contrasts.iter().any(|contrast| contrast.significant));
        found.decoding += share(changes[0] == Change::Regression);
    }
    found
}

#[test]
fn the_same_build_measured_again_raises_no_more_alarms_than_the_level() {
    for (rounds, noise) in [(6, 0.01), (6, 0.03), (12, 0.03)] {
        let truth = Truth { noise, rounds, worse: 1.0, between_runs: 0.0 };
        let found = simulate(&truth, 1);
        // Two standard errors of a share of 5 % in 1,000 checks are 1.4 %.
        assert!(
            found.significant < 0.064,
            "{rounds} rounds at {noise}: {:.3} significant",
            found.significant
        );
        assert!(found.alarms < 0.03, "{rounds} rounds at {noise}: {:.3} alarms", found.alarms);
    }
}

#[test]
fn a_slowdown_of_eight_percent_is_found() {
    for (rounds, noise, power) in [(6, 0.01, 0.99), (6, 0.02, 0.95), (8, 0.03, 0.75), (12, 0.03, 0.95)] {
        let truth = Truth { noise, rounds, worse: 1.08, between_runs: 0.0 };
        let found = simulate(&truth, 2);
        assert!(found.decoding > power, "{rounds} rounds at {noise}: found in {:.3}", found.decoding);
    }
}

#[test]
fn what_two_runs_do_not_share_is_what_the_threshold_is_for() {
    // Each run has 1 % of its own, which no test on processes can detect. Nearly every check finds a
    // difference, and the threshold keeps the alarms down. At 3 % it does not: interleaved rounds are for
    // that.
    let alarms =
        |between_runs| simulate(&Truth { noise: 0.01, rounds: 8, worse: 1.0, between_runs }, 3).alarms;
    assert!(alarms(0.01) < 0.01, "{}", alarms(0.01));
    assert!(alarms(0.03) > 0.30, "{}", alarms(0.03));
}
