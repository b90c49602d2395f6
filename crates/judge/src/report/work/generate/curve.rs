//! The times of a process's iterations from the first: the cost of the first, the iteration from which times
//! are steady, and the result that too short a warm-up would give. `docs/reference/measures.md` defines each.

use std::collections::BTreeMap;

use protocol::{Iteration, Marks, Sample};
use serde::{Deserialize, Serialize};
use statistics::median;

use facts::evidence::Evidence;
use facts::run::Run;

/// Figures of one iteration, medians over processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of the iteration from 1, through warm-up and measurement.
    pub iteration: usize,
    /// Number of processes that reached it, and of those for which it was warm-up.
    pub processes: usize,
    pub warmup: usize,
    /// Mean time to first token, and mean gap between tokens, milliseconds.
    pub first_token_ms: f64,
    pub gap_ms: Option<f64>,
    /// Time of the whole iteration ÷ time of a steady one of the same process.
    pub ratio: Option<f64>,
}

/// The result of a benchmark that generates 5 tokens to warm up and then times 15 tokens of the same prompt,
/// compared with the same 15 tokens in the measured iterations. Medians over processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShortWarmup {
    /// Number of tokens of warm-up.
    pub warmup_tokens: usize,
    /// Number of tokens of the test.
    pub test_tokens: usize,
    /// Throughput of the test, tokens per second.
    pub tokens_per_second: f64,
    /// Throughput of the same tokens in measured iterations, tokens per second.
    pub steady_tokens_per_second: f64,
    /// Difference of the first from the second, as a share of the second; below 0 if the first is too slow.
    pub error: f64,
}

/// The iterations of one process, the first one first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessCurve {
    /// Number of iterations that were warm-up.
    pub warmup: usize,
    pub iterations: Vec<IterationTimes>,
}

/// The times of one iteration: mean time to first token and mean gap between tokens, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IterationTimes {
    pub first_token_ms: Option<f64>,
    pub gap_ms: Option<f64>,
}

const WARMUP_TOKENS: usize = 5;
const TEST_TOKENS: usize = 15;
/// Largest deviation from a steady iteration at which an iteration still counts as steady, as a share.
const SETTLED_WITHIN: f64 = 0.05;

/// The iterations of one process in the order they ran.
struct Series {
    warmup: usize,
    iterations: Vec<Iteration>,
}

impl Series {
    fn new(run: &Run) -> Series {
        Series {
            warmup: run.warmup().map_or(0, |warmup| warmup.iterations.len()),
            iterations: iterations(run),
        }
    }

    /// Time of a steady iteration in nanoseconds: the median of the measured ones.
    fn steady_ns(&self) -> Option<f64> {
        let measured = self.iterations.get(self.warmup..)?;
        median(&measured.iter().map(whole_ns).collect::<Vec<_>>())
    }

    fn ratio(&self, index: usize) -> Option<f64> {
        Some(whole_ns(self.iterations.get(index)?) / self.steady_ns().filter(|&steady| steady > 0.0)?)
    }
}

/// The iterations of warm-up, and the measured ones.
pub fn iterations(run: &Run) -> Vec<Iteration> {
    let warmup = run.warmup().into_iter().flat_map(|warmup| warmup.iterations.iter().cloned());
    warmup.chain(run.iterations()).collect()
}

fn whole_ns(iteration: &Iteration) -> f64 {
    let cases = iteration.cases.iter();
    cases.map(|case| case.marks_ns.end()).sum::<u64>() as f64
}

fn mean_ms(ns: impl Iterator<Item = u64>) -> Option<f64> {
    let (count, sum) = ns.fold((0_u64, 0), |(count, sum), ns| (count + 1, sum + ns));
    (count > 0).then(|| sum as f64 / count as f64 / 1e6)
}

fn times(iteration: &Iteration) -> IterationTimes {
    IterationTimes {
        first_token_ms: mean_ms(iteration.cases.iter().map(|case| case.marks_ns.first())),
        gap_ms: mean_ms(iteration.cases.iter().flat_map(Sample::timed_gaps)),
    }
}

/// The curve of every process that counts and completed its job, by framework.
pub(super) fn by_process(evidence: &Evidence) -> BTreeMap<String, Vec<ProcessCurve>> {
    let mut curves: BTreeMap<String, Vec<ProcessCurve>> = BTreeMap::new();
    for run in evidence.runs.iter().filter(|run| run.is_complete()) {
        let Series { warmup, iterations } = Series::new(run);
        let curve = ProcessCurve { warmup, iterations: iterations.iter().map(times).collect() };
        curves.entry(run.framework.clone()).or_default().push(curve);
    }
    curves
}

/// Times of iterations 1, 2, 3 …, medians over processes.
pub fn curve(runs: &[&Run]) -> Vec<Point> {
    let series: Vec<Series> = runs.iter().map(|run| Series::new(run)).collect();
    let longest = series.iter().map(|series| series.iterations.len()).max().unwrap_or(0);
    let point = |index: usize| {
        let there = || series.iter().filter_map(|series| series.iterations.get(index));
        let first = there().filter_map(|iteration| times(iteration).first_token_ms);
        let gaps = there().filter_map(|iteration| times(iteration).gap_ms);
        let ratios = series.iter().filter_map(|series| series.ratio(index));
        Some(Point {
            iteration: index + 1,
            processes: there().count(),
            warmup: series.iter().filter(|series| index < series.warmup).count(),
            first_token_ms: median(&first.collect::<Vec<_>>())?,
            gap_ms: median(&gaps.collect::<Vec<_>>()),
            ratio: median(&ratios.collect::<Vec<_>>()),
        })
    };
    (0..longest).filter_map(point).collect()
}

/// The first iteration from which all are within 5 % of a steady one; `None` if the last is not.
pub fn settled_at(curve: &[Point]) -> Option<usize> {
    let settled = |point: &&Point| point.ratio.is_some_and(|ratio| (ratio - 1.0).abs() <= SETTLED_WITHIN);
    Some(curve.iter().rev().take_while(settled).last()?.iteration)
}

/// Extra time of the first request after loading over a steady one of the same prompt, in milliseconds; median over
/// processes.
pub fn first_request_cost_ms(runs: &[&Run]) -> Option<f64> {
    let cost = |run: &&Run| {
        let first = run.cold_start().filter(|cold| cold.marks_ns.len() > 1)?.marks_ns.end() as f64;
        let steady = run.requests().filter(|(case, _)| *case == 0);
        let steady: Vec<f64> = steady.map(|(_, sample)| sample.marks_ns.end() as f64).collect();
        Some((first - median(&steady)?) / 1e6)
    };
    median(&runs.iter().filter_map(cost).collect::<Vec<_>>())
}

/// Figures of a short warm-up. The warm-up computes the first 5 gaps of the first request after loading, so
/// the test's first 5 gaps are those of the second request of that prompt: everything that they need was
/// compiled. Its other 10 are the first request's. `batch` is the number of sequences that each step
/// continues. `None` for requests of fewer than 16 tokens, because prefill computes the first.
pub fn short_warmup(runs: &[&Run], batch: usize) -> Option<ShortWarmup> {
    // From one mark to another.
    let sum =
        |marks: &Marks, from: usize, to: usize| Some(marks.0.get(to)?.saturating_sub(*marks.0.get(from)?));
    let speeds = |run: &&Run| {
        let warmup = run.warmup()?;
        let mut warm = warmup.iterations.iter().skip(usize::from(warmup.from_cold));
        let second = match warm.next() {
            Some(iteration) => &iteration.cases.first()?.marks_ns,
            None => &run.requests().find(|(case, _)| *case == 0)?.1.marks_ns,
        };
        let first =
            sum(second, 0, WARMUP_TOKENS)? + sum(&run.cold_start()?.marks_ns, WARMUP_TOKENS, TEST_TOKENS)?;
        let measured = run.requests().filter(|(case, _)| *case == 0);
        let measured: Vec<u64> =
            measured.filter_map(|(_, sample)| sum(&sample.marks_ns, 0, TEST_TOKENS)).collect();
        let speed = |ns: u64, times: usize| {
            (ns > 0).then(|| (batch * TEST_TOKENS * times) as f64 / (ns as f64 / 1e9))
        };
        Some((speed(first, 1)?, speed(measured.iter().sum(), measured.len())?))
    };
    let speeds: Vec<(f64, f64)> = runs.iter().filter_map(speeds).collect();
    let over = |of: fn(&(f64, f64)) -> f64| median(&speeds.iter().map(of).collect::<Vec<_>>());
    let (short, steady) = (over(|(short, _)| *short)?, over(|(_, steady)| *steady)?);
    Some(ShortWarmup {
        warmup_tokens: WARMUP_TOKENS,
        test_tokens: TEST_TOKENS,
        tokens_per_second: short,
        steady_tokens_per_second: steady,
        // Computed from the two figures above.
        error: short / steady - 1.0,
    })
}

#[cfg(test)]
mod tests {
    use protocol::{ColdStart, Event, WarmupDone};

    use super::*;
    use facts::testing;

    /// A first token of 5 ms, then gaps of so many microseconds.
    fn iteration(gaps_us: &[u64]) -> Iteration {
        let gaps_ns = gaps_us.iter().map(|us| us * 1000);
        Iteration {
            index: 0,
            cases: vec![Sample { marks_ns: Marks::new(5_000_000, gaps_ns), ..Sample::default() }],
        }
    }

    fn process(cold: &[Iteration], warmup: &[Iteration], measured: &[Iteration]) -> Run {
        let cold = cold.first().map(|iteration| {
            let Sample { marks_ns, .. } = iteration.cases[0].clone();
            Event::ColdStart(ColdStart { marks_ns, ..ColdStart::default() })
        });
        let done = WarmupDone { iterations: warmup.to_vec(), settled: true, ..WarmupDone::default() };
        let measured = measured.iter().map(|iteration| iteration.cases.clone()).collect();
        testing::measured("a", 0, cold.into_iter().chain([Event::Warmup(done)]).collect(), measured)
    }

    #[test]
    fn the_curve_tells_every_iteration_from_the_first() {
        let even = |us: u64| iteration(&[us; 20]);
        let runs = [
            process(&[], &[even(2000), even(1000)], &[even(1000)]),
            process(&[], &[even(3000)], &[even(1000)]),
        ];
        let curve = curve(&runs.iter().collect::<Vec<_>>());
        let counts: Vec<_> = curve.iter().map(|p| (p.iteration, p.processes, p.warmup)).collect();
        assert_eq!(counts, [(1, 2, 2), (2, 2, 1), (3, 1, 0)]);
        assert_eq!(curve[0].gap_ms, Some(2.5));
        // 45 and 65 ms against 25 ms.
        assert_eq!(curve[0].ratio, Some((45.0 / 25.0 + 65.0 / 25.0) / 2.0));
        assert_eq!(settled_at(&curve), Some(2));
    }

    #[test]
    fn every_process_has_a_curve_that_ends_where_it_ended() {
        let even = |us: u64| iteration(&[us; 20]);
        let runs = vec![
            process(&[], &[even(2000), even(1000)], &[even(1000)]),
            process(&[], &[even(3000)], &[even(1000)]),
        ];
        let curves = by_process(&Evidence { runs, ..Evidence::default() });
        let told = |curve: &ProcessCurve| {
            (curve.warmup, curve.iterations.iter().filter_map(|times| times.gap_ms).collect::<Vec<_>>())
        };
        let told: Vec<_> = curves["a"].iter().map(told).collect();
        assert_eq!(told, [(2, vec![2.0, 1.0, 1.0]), (1, vec![3.0, 1.0])]);
        assert_eq!(curves["a"][0].iterations[0].first_token_ms, Some(5.0));
    }

    #[test]
    fn the_first_request_is_compared_with_the_median_of_the_measured() {
        let even = |us: u64| iteration(&[us; 10]);
        let measured = [even(1000), even(1000), even(9000)];
        let one = process(&[even(4000)], &[even(1000)], &measured);
        assert_eq!(first_request_cost_ms(&[&one]), Some(30.0));
        let without_cold_start = process(&[], &[even(1000)], &measured);
        assert_eq!(first_request_cost_ms(&[&without_cold_start]), None);
    }

    #[test]
    fn what_never_settles_has_no_iteration_at_which_it_did() {
        let slowing =
            process(&[], &[iteration(&[1000; 20])], &[iteration(&[1000; 20]), iteration(&[2000; 20])]);
        assert_eq!(settled_at(&curve(&[&slowing])), None);
    }

    #[test]
    fn a_short_warm_up_has_compiled_what_the_test_computes_first() {
        // Ten gaps of the first request count, the sixth to the fifteenth, and five of the second.
        let first: Vec<u64> = [vec![90_000; 5], vec![3000; 10], vec![70_000]].concat();
        let later: Vec<u64> = [vec![2000; 5], vec![1000; 10], vec![70_000]].concat();
        let measured = [iteration(&later), iteration(&later)];
        let one = process(&[iteration(&first)], &[iteration(&later)], &measured);
        let found = short_warmup(&[&one], 2).unwrap();
        assert_eq!(found.tokens_per_second, 2.0 * 15.0 / 0.04);
        assert_eq!(found.steady_tokens_per_second, 2.0 * 15.0 / 0.02);
        assert!((found.error + 0.5).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn sixteen_tokens_are_the_fewest() {
        let of = |gaps: usize| {
            let same = iteration(&vec![1000; gaps]);
            let same = std::slice::from_ref(&same);
            short_warmup(&[&process(same, same, same)], 1)
        };
        assert_eq!(of(14), None);
        assert_eq!(of(15).map(|found| found.error), Some(0.0));
    }
}
