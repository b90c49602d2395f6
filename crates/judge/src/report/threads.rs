//! Counts the threads that really computed (rule R5).

use serde::{Deserialize, Serialize};
use statistics::median;

use facts::evidence::Evidence;
use facts::run::Run;
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
    /// The time over which these were counted, in nanoseconds.
    #[serde(default)]
    pub over_ns: Option<u64>,
    /// CPUs that the process may use.
    pub cpus: Option<Vec<usize>>,
    /// Number of threads of the process, including idle ones.
    pub alive: Option<usize>,
}

/// Excess over the budget above which there were too many threads. A framework's own timers, and a pool that
/// hands work to another, explain less.
const SLACK: f64 = 0.5;
/// Multiple of the budget from which runnable threads count as a second set. Pools that spin for a moment
/// next to one another reach 1.6 on short requests, and gain no CPU time by it.
const SECOND_SET: f64 = 1.75;
/// Multiple of the budget that not even two pools spinning at the same time explain.
const THIRD_SET: f64 = 2.5;
/// Shortest time over which a second set of threads can be distinguished from pools that have not gone to
/// sleep yet.
const SUSTAINED_NS: u64 = 1_000_000_000;
/// Share of the budget below which a framework left threads unused.
const UNUSED: f64 = 0.75;

/// Shortest time over which threads that wanted to run can be counted: the kernel updates a thread's times
/// only every few milliseconds.
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
            over_ns: runs().filter_map(|run| Some(run.usage()?.wall_ns)).min(),
            cpus: runs().find_map(|run| run.usage()?.cpus.clone()),
            alive: runs().filter_map(|run| run.usage()?.threads).max(),
        }
    }

    /// The reason why the observed threads exceed the budget, if they do: an advantage, or a handicap that
    /// the framework caused itself.
    pub fn excess(&self, given: Option<&[usize]>) -> Option<String> {
        let budget = self.budget;
        let limit = budget as f64 + SLACK;
        let beyond = |value: Option<f64>| value.filter(|&value| value > limit);
        if let Some(reported) = self.reported.filter(|&reported| reported > budget) {
            return Some(format!("it uses {reported} threads, the budget is {budget}"));
        }
        if let Some(busy) = beyond(self.busy) {
            return Some(format!("it kept {busy:.1} CPUs busy; the budget is {budget}"));
        }
        let is_sustained = self.over_ns.is_none_or(|ns| ns >= SUSTAINED_NS);
        let most = if is_sustained { SECOND_SET } else { THIRD_SET } * budget as f64;
        if let Some(runnable) = self.runnable.filter(|&runnable| runnable > most.max(limit)) {
            return Some(format!("{runnable:.1} threads ran or wanted to, the budget is {budget}"));
        }
        match (given, &self.cpus) {
            (Some(given), Some(cpus)) if given != cpus.as_slice() => {
                Some(format!("it could use CPUs {cpus:?}, it was given {given:?}"))
            }
            _ => None,
        }
    }

    /// The reason why the observed threads fall below the budget, if they do. This gives no contender an advantage.
    pub fn shortfall(&self) -> Option<String> {
        let budget = self.budget;
        if let Some(reported) = self.reported.filter(|&reported| reported < budget) {
            return Some(format!("it uses {reported} of {budget} threads"));
        }
        let busy = self.busy.filter(|&busy| busy < UNUSED * budget as f64)?;
        Some(format!("it kept {busy:.1} of {budget} CPUs busy"))
    }

    /// Threads that hindered one another, within the budget of CPU time: no advantage, only a loss.
    pub fn crowding(&self) -> Option<String> {
        let (budget, busy) = (self.budget, self.busy?);
        let runnable = self.runnable.filter(|&runnable| runnable > budget as f64 + SLACK)?;
        Some(format!(
            "{runnable:.1} threads ran or wanted to, within {busy:.1} of {budget} CPUs: its own pools get in one another's way"
        ))
    }

    /// The value that the system did not report, in words.
    pub fn unknown(&self) -> Option<&'static str> {
        match (self.busy, self.runnable) {
            (None, _) => Some("the system does not report CPU time"),
            (_, None) => Some(
                "how long threads waited for a CPU is not known, or the measured iterations are too short to measure it",
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
            over_ns: Some(2_000_000_000),
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
    fn pools_that_spin_within_the_budget_of_cpu_time_are_no_excess() {
        let spinning = threads(2, 1.99, 3.1);
        assert_eq!(spinning.excess(Some(&[0, 1])), None);
        assert!(spinning.crowding().unwrap().contains("3.1 threads ran or wanted to, within 2.0 of 2 CPUs"));
        let short = Threads { over_ns: Some(200_000_000), ..threads(2, 1.99, 3.9) };
        assert_eq!(short.excess(Some(&[0, 1])), None, "a short-lived contender has no time to calm down");
        let crowd = Threads { runnable: Some(6.1), ..short };
        assert!(crowd.excess(Some(&[0, 1])).unwrap().contains("6.1 threads ran or wanted to"));
        assert_eq!(threads(2, 1.99, 2.2).crowding(), None);
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
