//! The report's parts for requests that go token by token.

use std::collections::BTreeMap;

use protocol::{ColdStart, Iteration, Marks, Sample, WarmupDone};
use serde::{Deserialize, Serialize};
use statistics::median;

use crate::facts::evidence::Evidence;
use crate::facts::run::Run;
use crate::plan::Plan;

/// The times of single requests: reports hold only their medians.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times {
    /// Every time between two tokens, in milliseconds, by framework.
    pub gaps_ms: BTreeMap<String, Vec<f64>>,
    /// The iterations of every process, by framework.
    pub curves: BTreeMap<String, Vec<ProcessCurve>>,
}

impl Times {
    pub fn new(evidence: &Evidence) -> Times {
        Times { gaps_ms: gaps_ms(evidence), curves: by_process(evidence) }
    }
}

// The times of a process's iterations from the first: the cost of the first, the iteration from which times
// are steady, and the result that too short a warm-up would give. `docs/reference/measures.md` defines each.

/// Figures of one iteration, medians over processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of the iteration from 1, through warm-up and measurement; the first has the first request after loading.
    pub iteration: usize,
    /// Number of processes that reached it, and of those for which it was warm-up.
    pub processes: usize,
    pub warmup: usize,
    /// Mean time to first token, and mean gap between tokens, milliseconds.
    pub first_token_ms: f64,
    pub gap_ms: Option<f64>,
    /// Time of the whole iteration ÷ time of the same requests in a steady one of the same process.
    pub ratio: Option<f64>,
}

/// The result of a benchmark that generates 5 tokens to warm up and then times 15 tokens of the same prompt,
/// compared with the same 15 tokens in the measured iterations. Medians over processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShortWarmup {
    pub warmup_tokens: usize,
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

/// The iterations of one process in the order they ran. The request of the cold start is the first of them, alone
/// where warm-up did not begin with it.
struct Series {
    warmup: usize,
    iterations: Vec<Iteration>,
}

impl Series {
    fn new(run: &Run) -> Series {
        let is_included = run.warmup().is_some_and(|warmup| warmup.from_cold);
        let cold = run.cold_start().filter(|cold| !is_included && !cold.marks_ns.0.is_empty());
        let cold = cold.map(|cold| {
            let first = Sample { marks_ns: cold.marks_ns.clone(), ..Sample::default() };
            Iteration { index: 0, cases: vec![first] }
        });
        let warmup = run.warmup().map_or(0, |warmup| warmup.iterations.len());
        Series {
            warmup: warmup + usize::from(cold.is_some()),
            iterations: cold.into_iter().chain(iterations(run)).collect(),
        }
    }

    /// Time of the requests of an iteration ÷ that of the same marks in the measured ones, their median.
    fn ratio(&self, index: usize) -> Option<f64> {
        let own = self.iterations.get(index)?;
        let same = |measured: &Iteration| {
            let pairs = measured.cases.iter().zip(&own.cases);
            let ends =
                pairs.filter_map(|(of, own)| of.marks_ns.0.iter().take(own.marks_ns.len()).next_back());
            ends.sum::<u64>() as f64
        };
        let steady = self.iterations.get(self.warmup..)?.iter().map(same);
        Some(whole_ns(own) / median(&steady.collect::<Vec<_>>()).filter(|&steady| steady > 0.0)?)
    }
}

/// The iterations of warm-up, and the measured ones.
pub fn iterations(run: &Run) -> Vec<Iteration> {
    let warmup = run.warmup().into_iter().flat_map(|warmup| warmup.iterations.iter().cloned());
    warmup.chain(run.iterations()).collect()
}

fn whole_ns(iteration: &Iteration) -> f64 {
    iteration.cases.iter().map(|case| case.marks_ns.end()).sum::<u64>() as f64
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

// The extra cost of a process's first work over the same work later: filling caches, packing weights, and,
// if a framework compiles, compiling. `docs/reference/measures.md` defines each figure.

/// Medians over processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FirstRuns {
    /// Time of the cold start and of warm-up, less that of the same work in a steady process, in milliseconds.
    pub cost_ms: f64,
    /// The first time that each prompt was computed, compared with later ones.
    pub prompts: Vec<FirstOfPrompt>,
    /// Tokens computed since loading, and the time for that, after each iteration.
    pub elapsed: Vec<Elapsed>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FirstOfPrompt {
    pub tokens: usize,
    /// Time to first token of its first request in a process, and of a measured one, in milliseconds.
    pub first_ms: f64,
    pub steady_ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Elapsed {
    /// New tokens of one sequence of the batch.
    pub tokens: usize,
    pub ms: f64,
}

/// Figures of processes that did their job. `None` if none was measured.
pub fn first_runs(runs: &[&Run], plan: &Plan) -> Option<FirstRuns> {
    let processes: Vec<Process> = runs.iter().filter_map(|run| Process::new(run)).collect();
    let over =
        |of: &dyn Fn(&Process) -> Option<f64>| median(&processes.iter().filter_map(of).collect::<Vec<_>>());
    let prompt = |case: usize| {
        Some(FirstOfPrompt {
            tokens: plan.work.case_tokens(case),
            first_ms: over(&|process| process.first_of(case))? / 1e6,
            steady_ms: over(&|process| process.steady_prompt(case))? / 1e6,
        })
    };
    let elapsed: Vec<Vec<(usize, f64)>> = processes.iter().map(Process::elapsed).collect();
    let longest = elapsed.iter().map(Vec::len).max()?;
    let point = |index: usize| {
        let at: Vec<(usize, f64)> = elapsed.iter().filter_map(|points| points.get(index).copied()).collect();
        let ms = median(&at.iter().map(|(_, ns)| ns / 1e6).collect::<Vec<_>>())?;
        Some(Elapsed { tokens: at.first()?.0, ms })
    };
    Some(FirstRuns {
        cost_ms: over(&Process::cost)? / 1e6,
        prompts: (0..plan.work.cases()).filter_map(prompt).collect(),
        elapsed: (0..longest).filter_map(point).collect(),
    })
}

/// The requests of a process: the cold start's, those of warm-up, and the measured ones. Times are in nanoseconds.
struct Process {
    cold: ColdStart,
    warmup: WarmupDone,
    measured: Vec<Iteration>,
}

impl Process {
    fn new(run: &Run) -> Option<Process> {
        let measured = run.iterations();
        Some(Process {
            cold: run.cold_start()?.clone(),
            warmup: run.warmup()?.clone(),
            measured: Some(measured).filter(|measured| !measured.is_empty())?,
        })
    }

    /// Median time to first token of a case in the measured requests.
    fn steady_prompt(&self, case: usize) -> Option<f64> {
        let times = self.measured.iter().filter_map(|iteration| iteration.cases.get(case));
        median(&times.map(|sample| sample.marks_ns.first() as f64).collect::<Vec<_>>())
    }

    /// Median time of measured requests of the first case, up to the cold start's last mark.
    fn steady_request(&self) -> Option<f64> {
        let marks = self.cold.marks_ns.len();
        let first = self.measured.iter().filter_map(|iteration| iteration.cases.first());
        let times = first.filter_map(|sample| sample.marks_ns.0.iter().take(marks).next_back());
        median(&times.map(|&ns| ns as f64).collect::<Vec<_>>())
    }

    /// Time to first token of the first request of a case. The cold start computes only the first case.
    fn first_of(&self, case: usize) -> Option<f64> {
        let first = self.warmup.iterations.first().and_then(|iteration| iteration.cases.get(case));
        if case == 0 {
            Some(self.cold.marks_ns.first() as f64)
        } else {
            first.map(|sample| sample.marks_ns.first() as f64)
        }
    }

    fn cost(&self) -> Option<f64> {
        let steady = median(&self.measured.iter().map(whole_ns).collect::<Vec<_>>())?;
        let warmup: f64 = self.warmup.iterations.iter().map(|iteration| whole_ns(iteration) - steady).sum();
        if self.warmup.from_cold {
            return Some(warmup);
        }
        Some(self.cold.marks_ns.end() as f64 - self.steady_request()? + warmup)
    }

    /// New tokens and nanoseconds since loading, after the cold start and after each iteration.
    fn elapsed(&self) -> Vec<(usize, f64)> {
        let cold = (self.cold.marks_ns.len(), self.cold.marks_ns.end() as f64);
        // The first iteration may include the cold start.
        let mut at = if self.warmup.from_cold { (0, 0.0) } else { cold };
        let after = self.warmup.iterations.iter().chain(&self.measured).map(|iteration| {
            let tokens: usize = iteration.cases.iter().map(|case| case.marks_ns.len()).sum();
            at = (at.0 + tokens, at.1 + whole_ns(iteration));
            at
        });
        std::iter::once(cold).chain(after.collect::<Vec<_>>()).collect()
    }
}

// Every gap between two tokens. Reports hold only their medians.

/// Gaps by framework in milliseconds, from the measured requests of processes that count and completed their job.
pub(super) fn gaps_ms(evidence: &Evidence) -> BTreeMap<String, Vec<f64>> {
    let mut gaps: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in evidence.runs.iter().filter(|run| run.is_complete()) {
        let each = run.requests().flat_map(|(_, case)| case.timed_gaps()).map(|ns| ns as f64 / 1e6);
        gaps.entry(run.framework.clone()).or_default().extend(each);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use crate::facts::testing;
    use protocol::{ColdStart, Event, WarmupDone};

    use super::*;

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
    fn the_first_request_is_iteration_1_once() {
        let even = |us: u64| iteration(&[us; 20]);
        let alone = process(&[even(9000)], &[even(2000)], &[even(1000)]);
        let found = curve(&[&alone]);
        let told: Vec<_> = found.iter().map(|point| (point.warmup, point.gap_ms, point.ratio)).collect();
        assert_eq!(told[0], (1, Some(9.0), Some(185.0 / 25.0)));
        assert_eq!((told[1].0, told[2]), (1, (0, Some(1.0), Some(1.0))));
        assert_eq!((settled_at(&found), found.len()), (Some(3), 3));
        let mut included = alone.clone();
        for event in &mut included.events {
            if let Event::Warmup(done) = event {
                done.from_cold = true;
            }
        }
        assert_eq!(curve(&[&included]).len(), 2);
        // A first request of fewer tokens and prompts than an iteration has.
        let mut two = even(1000);
        two.cases.push(two.cases[0].clone());
        let shorter = process(&[iteration(&[4000; 5])], &[two.clone()], &[two]);
        assert_eq!(curve(&[&shorter])[0].ratio, Some(25.0 / 10.0));
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

#[cfg(test)]
mod first_runs_tests {
    use super::*;
    use crate::facts::testing;
    use protocol::{ColdStart, Event, Marks, Sample};

    /// Two cases of a first token and two gaps each, in milliseconds.
    fn iteration(first: [u64; 2], gap: u64) -> Iteration {
        let case = |first: u64| Sample {
            marks_ns: Marks::new(first * 1_000_000, [gap * 1_000_000; 2]),
            ..Sample::default()
        };
        Iteration { index: 0, cases: first.map(case).to_vec() }
    }

    fn found(cold: ColdStart, warmup: Vec<Iteration>, from_cold: bool) -> FirstRuns {
        let events = vec![
            Event::ColdStart(cold),
            Event::Warmup(WarmupDone {
                iterations: warmup,
                settled: true,
                from_cold,
                ..WarmupDone::default()
            }),
        ];
        let run = testing::measured("a", 0, events, vec![iteration([20, 30], 10).cases]);
        let mut plan = testing::plan(&["a"]);
        let prompts = &mut testing::prompted(&mut plan).prompts;
        *prompts = vec![prompts[0].clone(); 2];
        first_runs(&[&run], &plan).unwrap()
    }

    fn elapsed(found: &FirstRuns) -> Vec<(usize, f64)> {
        found.elapsed.iter().map(|point| (point.tokens, point.ms)).collect()
    }

    #[test]
    fn compiling_is_what_the_first_runs_took_longer_than_later_ones() {
        let cold = ColdStart { marks_ns: Marks(vec![500_000_000]), ..ColdStart::default() };
        let found = found(cold, vec![iteration([20, 400], 100), iteration([20, 30], 10)], false);
        // 480 ms in the cold start, 370 in the second prompt's prefill, 360 in the four gaps.
        assert_eq!(found.cost_ms, 480.0 + 370.0 + 360.0);
        let prompts: Vec<_> =
            found.prompts.iter().map(|prompt| (prompt.first_ms, prompt.steady_ms)).collect();
        assert_eq!(prompts, [(500.0, 20.0), (400.0, 30.0)]);
        assert_eq!(elapsed(&found), [(1, 500.0), (7, 1320.0), (13, 1410.0), (19, 1500.0)]);
    }

    #[test]
    fn a_cold_start_that_warm_up_begins_with_counts_once() {
        let warmup = iteration([500, 400], 10);
        let cold = ColdStart { marks_ns: warmup.cases[0].marks_ns.clone(), ..ColdStart::default() };
        let found = found(cold, vec![warmup], true);
        assert_eq!(found.cost_ms, 480.0 + 370.0);
        assert_eq!(elapsed(&found), [(3, 520.0), (6, 940.0), (12, 1030.0)]);
    }
}
