//! Warm-up: whole iterations, thrown away as samples but reported, until the latest has settled.

use engine::InferenceEngine;
use protocol::{Iteration, Sample, Warmup, WarmupDone};

use crate::clock;
use crate::error::ServeError;
use crate::work::Workload;

/// Below this, medians of the halves of an iteration say more of chance than of a trend.
const GAPS_FOR_HALVES: usize = 8;

/// Warms up as `limits` say: see [`Warmup`]. `cold`: the request of the cold start. The memory is the caller's to read.
pub(crate) fn warm_up<E: InferenceEngine>(
    workload: &mut dyn Workload<E>,
    engine: &mut E,
    limits: &Warmup,
    cold: Sample,
) -> Result<WarmupDone, ServeError> {
    let start = clock::now_ns();
    let from_cold = limits.from_cold && workload.cases() > 1;
    let mut before: Vec<Sample> = from_cold.then_some(cold).into_iter().collect();
    let mut iterations = Vec::with_capacity(limits.max_iterations.min(1024));
    let mut settled = false;
    while goes_on(limits, iterations.len(), settled, clock::now_ns() - start) {
        iterations.push(workload.iteration(engine, iterations.len(), std::mem::take(&mut before))?);
        settled = has_settled(&iterations, limits.settled_within);
    }
    Ok(WarmupDone { iterations, settled, from_cold, ..WarmupDone::default() })
}

/// Whether another iteration is begun after `done` ones.
fn goes_on(limits: &Warmup, done: usize, settled: bool, elapsed_ns: u64) -> bool {
    let enough = settled && done >= limits.min_iterations;
    // The first is run whatever the limit: measured work must have run once.
    done == 0 || (!enough && done < limits.max_iterations && elapsed_ns < limits.max_ns)
}

/// Whether the latest iteration is steady in itself, or as fast, gap by gap, as the one before. The second can hold even
/// where each gap is longer than the one before it. Iterations of few gaps are compared by the time that they took: what
/// comes before the first gap is most of them.
fn has_settled(iterations: &[Iteration], within: f64) -> bool {
    let gaps = |iteration: &Iteration| iteration.steps_ns().map(|ns| ns as f64).collect::<Vec<f64>>();
    let latest = iterations.last().map(gaps).unwrap_or_default();
    let has_few = latest.len() < GAPS_FOR_HALVES;
    if !has_few {
        let (first, second) = latest.split_at(latest.len() / 2);
        if near(median(first) / median(second), within) {
            return true;
        }
    }
    match iterations {
        [.., before, last] if has_few => near(whole_ns(before) / whole_ns(last), within),
        [.., before, _] => {
            let ratios: Vec<f64> = gaps(before).iter().zip(&latest).map(|(a, b)| a / b).collect();
            near(median(&ratios), within)
        }
        _ => false,
    }
}

/// The time of all requests of an iteration.
fn whole_ns(iteration: &Iteration) -> f64 {
    iteration.cases.iter().map(|case| case.marks_ns.end() as f64).sum()
}

/// Whether a ratio differs from 1 by less than the share `within`, whichever of the two is the larger.
fn near(ratio: f64, within: f64) -> bool {
    ratio.max(1.0 / ratio) < 1.0 + within
}

/// The upper of the two in the middle of an even number.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Marks;

    fn iteration(gaps: &[u64]) -> Iteration {
        let sample = Sample { marks_ns: Marks::new(9, gaps.iter().copied()), ..Sample::default() };
        Iteration { index: 0, cases: vec![sample] }
    }

    fn settled(iterations: &[&[u64]]) -> bool {
        has_settled(&iterations.iter().map(|gaps| iteration(gaps)).collect::<Vec<_>>(), 0.05)
    }

    const FALLING: [u64; 8] = [150, 140, 130, 120, 100, 100, 100, 100];
    const RISING: [u64; 8] = [100, 110, 120, 130, 140, 150, 160, 170];

    #[test]
    fn an_iteration_whose_halves_agree_has_settled() {
        assert!(settled(&[&[100, 101, 99, 100, 100, 102, 100, 100]]));
        assert!(!settled(&[&FALLING]));
    }

    #[test]
    fn an_iteration_like_the_one_before_has_settled_though_its_gaps_grow() {
        assert!(!settled(&[&RISING]));
        assert!(settled(&[&RISING, &RISING.map(|gap| gap + 3)]));
        assert!(!settled(&[&RISING.map(|gap| gap + 30), &RISING]));
        assert!(!settled(&[&RISING, &RISING.map(|gap| gap + 30)]), "slower is not settled either");
    }

    #[test]
    fn one_odd_gap_unsettles_nothing() {
        let mut odd = RISING;
        odd[3] = 900;
        assert!(settled(&[&odd, &RISING]));
    }

    #[test]
    fn iterations_of_few_gaps_are_compared_by_the_time_that_they_took() {
        assert!(!settled(&[&[100, 100]]));
        assert!(settled(&[&[100, 100], &[150, 51]]));
        assert!(!settled(&[&[100, 100], &[150, 100]]));
    }

    #[test]
    fn requests_of_one_mark_are_compared_by_it() {
        assert!(!settled(&[&[]]));
        assert!(settled(&[&[], &[]]));
    }

    #[test]
    fn warm_up_ends_when_settled_or_at_a_limit() {
        let limits = Warmup {
            min_iterations: 2,
            max_iterations: 5,
            max_ns: 100,
            settled_within: 0.05,
            from_cold: false,
        };
        assert!(goes_on(&limits, 1, true, 0), "the least number of iterations is run even if settled");
        assert!(!goes_on(&limits, 2, true, 0));
        assert!(goes_on(&limits, 4, false, 0));
        assert!(!goes_on(&limits, 5, false, 0));
        assert!(!goes_on(&limits, 1, false, 100), "no iteration is begun after the time limit");
        assert!(goes_on(&limits, 0, false, 100), "what is measured must have run once");
    }
}
