//! Whether, and when, each process reached a steady state.
//!
//! The classified series is that of the decode steps of one process in the order they ran, from the first of
//! warm-up to the last that was measured. A step's time grows with its position in the sequence, whatever the
//! framework, so each is divided by the median time of its own position over all iterations.

use plan::Plan;
use serde::{Deserialize, Serialize};
use statistics::median;
use statistics::steady::{SteadyState, classify};

use crate::report::work::generate::curve::{self, Point, ShortWarmup};
use crate::report::work::generate::first_runs::{FirstRuns, first_runs};
use facts::run::Run;

/// The steadiness of one contender's processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Steadiness {
    /// Number of processes of each kind.
    pub flat: usize,
    pub warm_up: usize,
    pub slowdown: usize,
    pub no_steady_state: usize,
    /// Too few steps to say.
    pub unclassified: usize,
    /// From the first request after loading to the start of the last steady stretch, counting only
    /// computation; median over the processes that reached one. Milliseconds.
    pub time_to_steady_ms: Option<f64>,
    /// Iteration 1, 2, 3 … of each process, medians over processes.
    pub curve: Vec<Point>,
    /// Extra time of iteration 1 over a steady one.
    pub first_request_cost_ms: Option<f64>,
    /// The first iteration from which all are like a steady one; `None` if the last is not.
    pub settled_at: Option<usize>,
    pub short_warmup: Option<ShortWarmup>,
    /// The cost of the first runs; `None` in results of older versions.
    #[serde(default)]
    pub first_runs: Option<FirstRuns>,
}

/// The steadiness of one contender's complete processes.
pub fn steadiness(runs: &[&Run], plan: &Plan) -> Steadiness {
    let curve = curve::curve(runs);
    let mut steadiness = Steadiness {
        settled_at: curve::settled_at(&curve),
        curve,
        first_request_cost_ms: curve::first_request_cost_ms(runs),
        short_warmup: curve::short_warmup(runs, plan.work.batch()),
        first_runs: first_runs(runs, plan),
        ..Steadiness::default()
    };
    let mut times = Vec::new();
    for run in runs {
        let series = Steps::new(run);
        let Some(class) = classify(&series.relative()) else {
            steadiness.unclassified += 1;
            continue;
        };
        match class.state {
            SteadyState::Flat => steadiness.flat += 1,
            SteadyState::WarmUp => steadiness.warm_up += 1,
            SteadyState::Slowdown => steadiness.slowdown += 1,
            SteadyState::NoSteadyState => steadiness.no_steady_state += 1,
        }
        let cold = run.cold_start().map_or(0, |cold| cold.marks_ns.end());
        times.extend(class.steady_from.map(|from| (cold + series.begins_at(from)) as f64 / 1e6));
    }
    steadiness.time_to_steady_ms = median(&times);
    steadiness
}

/// Decode steps of one process, in order.
struct Steps {
    gaps_ns: Vec<u64>,
    /// Place within an iteration: the same for the same case and step.
    positions: Vec<usize>,
    /// Computing time before each, first tokens included.
    before_ns: Vec<u64>,
}

impl Steps {
    fn new(run: &Run) -> Steps {
        let mut steps = Steps { gaps_ns: Vec::new(), positions: Vec::new(), before_ns: Vec::new() };
        let mut elapsed = 0;
        for iteration in curve::iterations(run) {
            let mut position = 0;
            for case in &iteration.cases {
                elapsed += case.marks_ns.first();
                for (place, gap) in case.marks_ns.gaps().enumerate() {
                    if !case.lead_in.contains(&place) {
                        steps.before_ns.push(elapsed);
                        steps.gaps_ns.push(gap);
                        steps.positions.push(position);
                    }
                    position += 1;
                    elapsed += gap;
                }
            }
        }
        steps
    }

    /// Each step's time as a multiple of the median of its position.
    fn relative(&self) -> Vec<f64> {
        let count = self.positions.iter().max().map_or(0, |last| last + 1);
        let mut of_position = vec![Vec::new(); count];
        for (&position, &gap) in self.positions.iter().zip(&self.gaps_ns) {
            of_position[position].push(gap as f64);
        }
        let medians: Vec<f64> = of_position.iter().map(|gaps| median(gaps).unwrap_or(1.0).max(1.0)).collect();
        let steps = self.positions.iter().zip(&self.gaps_ns);
        steps.map(|(&position, &gap)| gap as f64 / medians[position]).collect()
    }

    fn begins_at(&self, step: usize) -> u64 {
        self.before_ns.get(step).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Event, Iteration, Marks, Sample, WarmupDone};

    use super::*;
    use facts::testing;

    fn iteration(index: usize, factor: f64) -> Iteration {
        // Gaps that grow with the position, as attention over more tokens does.
        let gaps_ns = (0..20).map(|step| ((1000 + 30 * step) as f64 * factor) as u64);
        Iteration { index, cases: vec![Sample { marks_ns: Marks::new(5000, gaps_ns), ..Sample::default() }] }
    }

    fn process(warmup: &[f64], measured: &[f64]) -> Run {
        let of = |factors: &[f64]| -> Vec<Iteration> {
            factors.iter().enumerate().map(|(index, &factor)| iteration(index, factor)).collect()
        };
        let done = WarmupDone { iterations: of(warmup), settled: true, ..WarmupDone::default() };
        let measured = of(measured).into_iter().map(|iteration| iteration.cases).collect();
        testing::measured("a", 0, vec![Event::Warmup(done)], measured)
    }

    #[test]
    fn growth_with_the_position_is_no_change_of_state() {
        let steady = process(&[1.0], &[1.0, 1.0]);
        let found = steadiness(&[&steady], &testing::plan(&["a"]));
        // The one token before the first step.
        assert_eq!((found.flat, found.time_to_steady_ms), (1, Some(0.005)));
    }

    #[test]
    fn slow_first_iterations_are_a_warm_up_of_known_length() {
        let warming = process(&[2.0], &[1.0, 1.0, 1.0, 1.0]);
        let found = steadiness(&[&warming], &testing::plan(&["a"]));
        assert_eq!(found.warm_up, 1, "{found:?}");
        // One iteration: 5 µs to the first token, then gaps that sum to 51.4 µs; and the next first token.
        let expected = (5000.0 + 2.0 * 25_700.0 + 5000.0) / 1e6;
        assert!((found.time_to_steady_ms.unwrap() - expected).abs() < 0.2 * expected, "{found:?}");
    }
}
