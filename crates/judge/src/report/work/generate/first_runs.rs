//! The extra cost of a process's first work over the same work later: filling caches, packing weights, and,
//! if a framework compiles, compiling. `docs/reference/measures.md` defines each figure.

use plan::Plan;
use protocol::{ColdStart, Iteration, WarmupDone};
use serde::{Deserialize, Serialize};
use statistics::median;

use facts::run::Run;

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

/// The prefill of one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FirstOfPrompt {
    /// Length of the prompt in tokens.
    pub tokens: usize,
    /// Time to first token of its first request in a process, and of a measured one, in milliseconds.
    pub first_ms: f64,
    pub steady_ms: f64,
}

/// A point in time since loading.
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
        let steady = median(&self.measured.iter().map(whole).collect::<Vec<_>>())?;
        let warmup: f64 = self.warmup.iterations.iter().map(|iteration| whole(iteration) - steady).sum();
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
            at = (at.0 + tokens, at.1 + whole(iteration));
            at
        });
        std::iter::once(cold).chain(after.collect::<Vec<_>>()).collect()
    }
}

fn whole(iteration: &Iteration) -> f64 {
    iteration.cases.iter().map(|case| case.marks_ns.end()).sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use protocol::{ColdStart, Event, Marks, Sample};

    use super::*;
    use facts::testing;

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
