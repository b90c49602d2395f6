//! The figures of one process, from its samples. `docs/measures.md` defines them for people.

use protocol::CaseSample;
use serde::{Deserialize, Serialize};
use statistics::{median, quantile};

use crate::evidence::Evidence;
use crate::run::Run;
use plan::Plan;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Load begins → weights resident, seconds.
    Load,
    /// First request after load → its first token, milliseconds.
    ColdStart,
    /// Median gap between successive tokens after warm-up, milliseconds.
    Latency,
    /// Decoded tokens ÷ decode time, tokens per second.
    Throughput,
    /// Highest resident set up to the last sample, gigabytes (10⁹ bytes).
    PeakMemory,
    /// Spawn → runtime initialised, milliseconds.
    Startup,
    /// Spawn → first token, milliseconds.
    SpawnToFirstToken,
    /// Warm request → first token, milliseconds.
    FirstToken,
    /// Prompt tokens ÷ time to first token, tokens per second.
    PrefillThroughput,
    /// 90th and 99th percentile of the gaps, milliseconds.
    LatencyP90,
    LatencyP99,
    /// Warm request → last token, milliseconds.
    Total,
}

impl Metric {
    pub const ALL: [Metric; 12] = [
        Metric::Load,
        Metric::ColdStart,
        Metric::Latency,
        Metric::Throughput,
        Metric::PeakMemory,
        Metric::Startup,
        Metric::SpawnToFirstToken,
        Metric::FirstToken,
        Metric::PrefillThroughput,
        Metric::LatencyP90,
        Metric::LatencyP99,
        Metric::Total,
    ];

    /// Those of the table, in its order; they are also those that are tested for difference.
    pub const TABLE: [Metric; 5] =
        [Metric::Load, Metric::ColdStart, Metric::Latency, Metric::Throughput, Metric::PeakMemory];

    pub fn title(self) -> &'static str {
        match self {
            Metric::Load => "Model Load (s)",
            Metric::ColdStart => "Cold Start (ms)",
            Metric::Latency => "Steady-State Latency (ms)",
            Metric::Throughput => "Average Throughput (tok/s)",
            Metric::PeakMemory => "Peak Memory (GB)",
            Metric::Startup => "Start-up (ms)",
            Metric::SpawnToFirstToken => "Spawn to First Token (ms)",
            Metric::FirstToken => "Time to First Token (ms)",
            Metric::PrefillThroughput => "Prefill Throughput (tok/s)",
            Metric::LatencyP90 => "Latency p90 (ms)",
            Metric::LatencyP99 => "Latency p99 (ms)",
            Metric::Total => "Total Time (ms)",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Metric::Load => "load",
            Metric::ColdStart => "cold_start",
            Metric::Latency => "latency",
            Metric::Throughput => "throughput",
            Metric::PeakMemory => "peak_memory",
            Metric::Startup => "startup",
            Metric::SpawnToFirstToken => "spawn_to_first_token",
            Metric::FirstToken => "first_token",
            Metric::PrefillThroughput => "prefill_throughput",
            Metric::LatencyP90 => "latency_p90",
            Metric::LatencyP99 => "latency_p99",
            Metric::Total => "total",
        }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Metric::Load => "s",
            Metric::Throughput | Metric::PrefillThroughput => "tok/s",
            Metric::PeakMemory => "GB",
            _ => "ms",
        }
    }

    pub fn higher_is_better(self) -> bool {
        matches!(self, Metric::Throughput | Metric::PrefillThroughput)
    }

    /// The figure of one process. `None` where the run did not get so far or the system does not tell.
    pub fn of_process(self, run: &Run, work: Work) -> Option<f64> {
        let samples = || run.iterations().flat_map(|iteration| &iteration.cases);
        let gaps = || -> Vec<u64> { samples().flat_map(|case| case.gaps_ns.iter().copied()).collect() };
        let ms = |ns: u64| ns as f64 / 1e6;
        let gap_ms = |share: f64| quantile(&gaps().into_iter().map(ms).collect::<Vec<_>>(), share);
        match self {
            Metric::Load => run.loaded().map(|loaded| loaded.load_ns as f64 / 1e9),
            Metric::ColdStart => run.cold_start().map(|cold| ms(cold.first_token_ns)),
            Metric::Latency => gap_ms(0.5),
            Metric::LatencyP90 => gap_ms(0.9),
            Metric::LatencyP99 => gap_ms(0.99),
            Metric::Throughput => {
                let gaps = gaps();
                let seconds = gaps.iter().sum::<u64>() as f64 / 1e9;
                (!gaps.is_empty()).then(|| (gaps.len() * work.batch) as f64 / seconds)
            }
            Metric::PeakMemory => Some(run.usage()?.peak_bytes? as f64 / 1e9),
            Metric::Startup => run.started()?.startup_ns.map(ms),
            Metric::SpawnToFirstToken => run.cold_start()?.since_spawn_ns.map(ms),
            Metric::FirstToken => median(&samples().map(|case| ms(case.first_token_ns)).collect::<Vec<_>>()),
            Metric::Total => {
                let total = |case: &CaseSample| ms(case.first_token_ns + case.gaps_ns.iter().sum::<u64>());
                median(&samples().map(total).collect::<Vec<_>>())
            }
            Metric::PrefillThroughput => {
                let first: Vec<&CaseSample> = samples().collect();
                let seconds = first.iter().map(|case| case.first_token_ns).sum::<u64>() as f64 / 1e9;
                let iterations = run.iterations().count();
                (iterations > 0).then(|| (work.prompt_tokens * iterations) as f64 / seconds)
            }
        }
    }
}

/// What one iteration does, for the figures that are work per time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub batch: usize,
    /// Over all cases and sequences.
    pub prompt_tokens: usize,
}

impl Work {
    /// The work of a plan's iteration.
    pub fn new(plan: &Plan) -> Work {
        let prompt_tokens = plan.prompts.iter().map(|prompt| prompt.tokens.len()).sum::<usize>();
        Work { batch: plan.batch, prompt_tokens: prompt_tokens * plan.batch }
    }
}

/// The figures of one contender, by round; `None` for a round that has none. The last may be one that the
/// user interrupted.
pub fn by_round(metric: Metric, plan: &Plan, evidence: &Evidence, label: &str) -> Vec<Option<f64>> {
    let work = Work::new(plan);
    let runs = || evidence.runs.iter().filter(|run| run.framework == label && run.is_complete());
    let of_round =
        |round: usize| runs().find(|run| run.round == round).and_then(|run| metric.of_process(run, work));
    let rounds = evidence.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    (0..rounds).map(of_round).collect()
}

#[cfg(test)]
mod tests {
    use protocol::{Event, Iteration};

    use super::*;
    use crate::testing;

    fn run(cases: Vec<CaseSample>) -> Run {
        testing::run("x", 0, vec![Event::Iteration(Iteration { index: 0, cases })])
    }

    fn case(first_ms: u64, gaps_ms: &[u64]) -> CaseSample {
        let gaps_ns = gaps_ms.iter().map(|ms| ms * 1_000_000).collect();
        CaseSample { first_token_ns: first_ms * 1_000_000, gaps_ns, tokens: Vec::new() }
    }

    #[test]
    fn throughput_is_work_over_time_and_latency_a_median() {
        let run = run(vec![case(50, &[10, 10, 10]), case(30, &[10, 50, 10])]);
        let work = Work { batch: 2, prompt_tokens: 40 };
        assert_eq!(Metric::Latency.of_process(&run, work), Some(10.0));
        assert_eq!(Metric::Throughput.of_process(&run, work), Some(6.0 * 2.0 / 0.1));
        assert_eq!(Metric::FirstToken.of_process(&run, work), Some(40.0));
        assert_eq!(Metric::PrefillThroughput.of_process(&run, work), Some(40.0 / 0.08));
    }

    #[test]
    fn what_was_not_measured_is_absent_and_not_zero() {
        let run = run(vec![case(50, &[])]);
        let work = Work { batch: 1, prompt_tokens: 4 };
        assert_eq!(Metric::Throughput.of_process(&run, work), None);
        assert_eq!(Metric::PeakMemory.of_process(&run, work), None);
        assert_eq!(Metric::Load.of_process(&run, work), None);
    }

    #[test]
    fn a_round_that_was_interrupted_keeps_what_it_had() {
        let loaded = || vec![Event::Loaded(testing::loaded(1))];
        let runs = vec![
            testing::run("a", 0, loaded()),
            testing::run("b", 0, loaded()),
            testing::run("b", 1, loaded()),
        ];
        let evidence = Evidence { runs, rounds: 1, ..Evidence::default() };
        let plan = testing::plan(&["a", "b"]);
        assert_eq!(by_round(Metric::Load, &plan, &evidence, "a"), [Some(0.001), None]);
        assert_eq!(by_round(Metric::Load, &plan, &evidence, "b"), [Some(0.001), Some(0.001)]);
    }
}
