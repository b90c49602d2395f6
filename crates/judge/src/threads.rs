//! Counts the threads that really computed (rule R5).

use serde::{Deserialize, Serialize};
use statistics::median;

use crate::evidence::Evidence;
use crate::run::Run;
use plan::Plan;

/// Threads of one contender: its budget and the observations, medians over processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Threads {
    /// Number of threads that the contender may use.
    pub budget: usize,
    /// Number of threads that the framework uses, as the engine reports it.
    pub reported: Option<usize>,
    /// CPU seconds ÷ wall seconds of the measured iterations.
    pub busy: Option<f64>,
    /// Threads that ran or waited for a CPU, on average: (CPU time + time on a run queue) ÷ wall time.
    pub runnable: Option<f64>,
    /// CPUs that the process may use.
    pub cpus: Option<Vec<usize>>,
    /// Number of threads of the process, including idle ones.
    pub alive: Option<usize>,
}

/// Excess over the budget above which there were too many threads. A framework's own timers, and a pool that hands work
/// to another, account for less.
const SLACK: f64 = 0.5;
/// Share of the budget below which a framework left threads unused.
const UNUSED: f64 = 0.75;

/// Shortest time over which threads that wanted to run can be counted: the kernel updates a thread's times only every
/// few milliseconds.
const SHORTEST_NS: u64 = 100_000_000;

impl Threads {
    /// Over the complete processes of `label`.
    pub fn new(plan: &Plan, evidence: &Evidence, label: &str) -> Threads {
        let runs = || evidence.runs.iter().filter(|run| run.framework == label && run.is_complete());
        let over = |figure: fn(&Run) -> Option<f64>| median(&runs().filter_map(figure).collect::<Vec<_>>());
        Threads {
            budget: plan.threads,
            reported: runs().find_map(|run| Some(run.loaded()?.in_effect.threads)),
            busy: over(|run| {
                let usage = run.usage()?;
                Some(usage.cpu_ns? as f64 / usage.wall_ns.max(1) as f64)
            }),
            runnable: over(|run| {
                let usage = run.usage().filter(|usage| usage.wall_ns >= SHORTEST_NS)?;
                Some((usage.cpu_ns? + usage.run_queue_ns?) as f64 / usage.wall_ns.max(1) as f64)
            }),
            cpus: runs().find_map(|run| run.usage()?.cpus.clone()),
            alive: runs().filter_map(|run| run.usage()?.threads).max(),
        }
    }

    /// The reason why the observed threads exceed the budget, if they do: an advantage, or a handicap that the
    /// framework made itself.
    pub fn excess(&self, given: Option<&[usize]>) -> Option<String> {
        let budget = self.budget;
        let limit = budget as f64 + SLACK;
        let beyond = |value: Option<f64>| value.filter(|&value| value > limit);
        if let Some(reported) = self.reported.filter(|&reported| reported > budget) {
            return Some(format!("it uses {reported} threads, the budget is {budget}"));
        }
        if let Some(runnable) = beyond(self.runnable) {
            return Some(format!("{runnable:.1} threads ran or wanted to, the budget is {budget}"));
        }
        if let Some(busy) = beyond(self.busy) {
            return Some(format!("it kept {busy:.1} CPUs busy; the budget is {budget}"));
        }
        match (given, &self.cpus) {
            (Some(given), Some(cpus)) if given != cpus.as_slice() => {
                Some(format!("it could use CPUs {cpus:?}, it was given {given:?}"))
            }
            _ => None,
        }
    }

    /// The reason why the observed threads fall below the budget, if they do. This gives nobody an advantage.
    pub fn shortfall(&self) -> Option<String> {
        let budget = self.budget;
        if let Some(reported) = self.reported.filter(|&reported| reported < budget) {
            return Some(format!("it uses {reported} of {budget} threads"));
        }
        let busy = self.busy.filter(|&busy| busy < UNUSED * budget as f64)?;
        Some(format!("it kept {busy:.1} of {budget} CPUs busy"))
    }

    /// The value that the system did not tell, in words.
    pub fn unknown(&self) -> Option<&'static str> {
        match (self.busy, self.runnable) {
            (None, _) => Some("the system does not tell CPU time"),
            (_, None) => Some(
                "how long threads waited for a CPU is not told, or the measured iterations are too short to tell it",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(reported: usize, busy: f64, runnable: f64) -> Threads {
        Threads {
            budget: 2,
            reported: Some(reported),
            busy: Some(busy),
            runnable: Some(runnable),
            cpus: Some(vec![0, 1]),
            alive: Some(4),
        }
    }

    #[test]
    fn twice_the_threads_on_as_many_cpus_show_on_the_run_queue() {
        let finding = threads(2, 1.99, 3.9).excess(Some(&[0, 1])).unwrap();
        assert_eq!(finding, "3.9 threads ran or wanted to, the budget is 2");
        assert_eq!(threads(2, 1.99, 2.2).excess(Some(&[0, 1])), None);
    }

    #[test]
    fn more_than_the_budget_is_found_wherever_it_shows() {
        assert!(threads(4, 1.9, 1.9).excess(None).unwrap().contains("uses 4 threads"));
        assert!(threads(2, 3.8, 2.0).excess(None).unwrap().contains("3.8 CPUs busy"));
        assert!(threads(2, 1.9, 1.9).excess(Some(&[0])).unwrap().contains("CPUs [0, 1]"));
    }

    #[test]
    fn fewer_are_a_shortfall_and_no_excess() {
        assert_eq!(threads(1, 1.0, 1.0).excess(None), None);
        assert_eq!(threads(1, 1.0, 1.0).shortfall().unwrap(), "it uses 1 of 2 threads");
        assert_eq!(threads(2, 1.0, 1.0).shortfall().unwrap(), "it kept 1.0 of 2 CPUs busy");
        assert_eq!(threads(2, 1.9, 1.9).shortfall(), None);
    }
}
