//! Whether, and when, each process reached a steady state.
//!
//! The classified series is that of the decode steps of one process in the order they ran, from the first of
//! warm-up to the last that was measured. A step's time grows with its position in the sequence, whatever the
//! framework, so each is divided by the median time of its own position over all iterations.

use protocol::{Iteration, Sample};
use serde::{Deserialize, Serialize};
use statistics::steady::{SteadyState, classify};
use statistics::{Moments, median};

use crate::facts::evidence::Probe;
use crate::facts::run::{LIMITS, Noise, Run};
use crate::judge::report::generate::{self, FirstRuns, Point, ShortWarmup, first_runs};
use crate::plan::Plan;

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
    pub first_runs: Option<FirstRuns>,
}

pub fn steadiness(runs: &[&Run], plan: &Plan) -> Steadiness {
    let curve = generate::curve(runs);
    let mut steadiness = Steadiness {
        settled_at: generate::settled_at(&curve),
        curve,
        first_request_cost_ms: generate::first_request_cost_ms(runs),
        short_warmup: generate::short_warmup(runs, plan.work.batch()),
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
        for iteration in generate::iterations(run) {
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

// Measures how much one framework's speed varies from process to process, and lists likely causes.

/// Coefficient of variation above which a warning is given.
pub const LIMIT: f64 = 0.10;

/// Time of decoding in an iteration, below which one tick of the kernel or one migration is visible.
const SHORT_S: f64 = 0.1;

/// Change of the memory's read bandwidth, as a share, that shows another user of the memory.
const BANDWIDTH: f64 = 0.10;

/// Throughput of short timed decodes, over all iterations of all processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variation {
    pub processes: usize,
    /// Number of iterations, over all processes.
    pub iterations: usize,
    /// Mean, tokens per second.
    pub throughput: f64,
    /// Coefficient of variation: standard deviation (n − 1) ÷ mean, of all iterations.
    pub cv: f64,
    /// Coefficient of variation of the processes' means.
    pub cv_between_processes: f64,
    /// Observations that are the likely cause; empty unless the variation exceeds the limit.
    pub causes: Vec<String>,
}

impl Variation {
    /// The variation over complete measuring processes of one framework. `probes` are those of the machine in
    /// the same run. `None` with fewer than two iterations, or without gaps between tokens.
    pub fn new(runs: &[&Run], batch: usize, probes: &[Probe], governor: Option<&str>) -> Option<Variation> {
        let by_process: Vec<Vec<f64>> = runs.iter().map(|run| throughputs(run, batch)).collect();
        let all: Vec<f64> = by_process.iter().flatten().copied().collect();
        let moments = Moments::new(&all).filter(|_| all.len() > 1)?;
        let means: Vec<f64> = by_process.iter().filter_map(|one| Some(Moments::new(one)?.mean)).collect();
        let between = Moments::new(&means).and_then(Moments::coefficient_of_variation);
        let mut variation = Variation {
            processes: runs.len(),
            iterations: all.len(),
            throughput: moments.mean,
            cv: moments.coefficient_of_variation()?,
            cv_between_processes: between.unwrap_or(0.0),
            causes: Vec::new(),
        };
        if variation.is_wide() {
            variation.causes = causes(runs, probes, governor);
        }
        Some(variation)
    }

    /// Whether the variation is large enough for a warning.
    pub fn is_wide(&self) -> bool {
        self.cv > LIMIT
    }
}

/// Decoded tokens per second of each iteration.
fn throughputs(run: &Run, batch: usize) -> Vec<f64> {
    let of = |(tokens, seconds): (usize, f64)| {
        (tokens > 0 && seconds > 0.0).then(|| (tokens * batch) as f64 / seconds)
    };
    decoded(run).into_iter().filter_map(of).collect()
}

/// Gaps and their sum in seconds, of each iteration.
fn decoded(run: &Run) -> Vec<(usize, f64)> {
    let of = |iteration: &Iteration| {
        let gaps = || iteration.cases.iter().flat_map(Sample::timed_gaps);
        (gaps().count(), gaps().sum::<u64>() as f64 / 1e9)
    };
    run.iterations().iter().map(of).collect()
}

/// The largest value of each kind of noise, so that each is reported once.
fn worst<'a>(noises: impl Iterator<Item = &'a Noise>) -> Noise {
    let more = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
    noises.fold(Noise::default(), |worst, noise| Noise {
        foreign: more(worst.foreign, noise.foreign),
        stolen: more(worst.stolen, noise.stolen),
        throttled: more(worst.throttled, noise.throttled),
        thermal_events: worst.thermal_events.max(noise.thermal_events),
        foreign_gpu_processes: worst.foreign_gpu_processes.max(noise.foreign_gpu_processes),
        ..Noise::default()
    })
}

fn causes(runs: &[&Run], probes: &[Probe], governor: Option<&str>) -> Vec<String> {
    let mut causes = worst(runs.iter().filter_map(|run| run.noise.as_ref())).complaints();
    let drift = probes.iter().map(|probe| probe.drift).fold(0.0, f64::max);
    if drift > LIMITS.drift {
        let percent = drift * 100.0;
        causes.push(format!("the CPU was up to {percent:.0} % slower than at its best (frequency scaling)"));
    }
    if let Some(governor) = governor.filter(|governor| *governor != "performance") {
        causes.push(format!("the frequency governor is {governor}"));
    }
    let bandwidths = || probes.iter().map(|probe| probe.read_bandwidth / 1e9);
    let (least, most) = bandwidths().fold((f64::INFINITY, 0.0), |(a, b), x| (x.min(a), x.max(b)));
    if most > 0.0 && (most - least) / most > BANDWIDTH {
        causes.push(format!(
            "memory was read at {least:.0} to {most:.0} GB/s (bandwidth shared with other processes or virtual machines)"
        ));
    }
    let unsettled = runs.iter().filter(|run| run.warmup().is_some_and(|warmup| !warmup.settled)).count();
    if unsettled > 0 {
        causes.push(format!("{unsettled} of {} processes had not settled after warm-up", runs.len()));
    }
    let seconds: Vec<f64> = runs.iter().flat_map(|run| decoded(run)).map(|(_, seconds)| seconds).collect();
    if let Some(mean) = Moments::new(&seconds).map(|of| of.mean).filter(|seconds| *seconds < SHORT_S) {
        let ms = mean * 1e3;
        causes.push(format!("an iteration decoded for only {ms:.1} ms (raise --new-tokens)"));
    }
    causes
}

#[cfg(test)]
mod tests {
    use crate::facts::testing;
    use protocol::{Event, Iteration, Marks, Sample, WarmupDone};

    use super::*;

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

    /// A process with iterations that decode one token in so many milliseconds.
    fn run(gaps_ms: &[u64]) -> Run {
        let sample = |ms: &u64| Sample { marks_ns: Marks::new(1, [ms * 1_000_000]), ..Sample::default() };
        testing::measured("x", 0, Vec::new(), gaps_ms.iter().map(|ms| vec![sample(ms)]).collect())
    }

    fn variation(runs: &[Run], probes: &[Probe], governor: Option<&str>) -> Option<Variation> {
        Variation::new(&runs.iter().collect::<Vec<_>>(), 1, probes, governor)
    }

    #[test]
    fn variation_is_over_all_iterations_and_between_processes() {
        // 4 and 2 tokens per second in each process: mean 3, deviations ±1, their means equal.
        let found = variation(&[run(&[250, 500]), run(&[250, 500])], &[], None).unwrap();
        assert_eq!((found.processes, found.iterations, found.throughput), (2, 4, 3.0));
        assert!((found.cv - (4.0 / 3.0f64).sqrt() / 3.0).abs() < 1e-12, "{found:?}");
        assert_eq!(found.cv_between_processes, 0.0);
    }

    #[test]
    fn steady_figures_are_not_warned_of() {
        let found = variation(&[run(&[500, 510]), run(&[500, 505])], &[], Some("powersave")).unwrap();
        assert_eq!((found.is_wide(), found.causes.len()), (false, 0));
    }

    #[test]
    fn what_was_observed_is_named_as_the_likely_cause() {
        let noisy = |stolen| Run {
            noise: Some(Noise { stolen: Some(stolen), ..Noise::default() }),
            ..run(&[20, 40])
        };
        let probes = [testing::probe(60e9, 1.0), testing::probe(36e9, 1.0)];
        let found = variation(&[noisy(0.1), noisy(0.3)], &probes, Some("powersave")).unwrap();
        let causes = found.causes.join("; ");
        for cause in ["hypervisor took 30 %", "governor is powersave", "36 to 60 GB/s", "only 30.0 ms"] {
            assert!(causes.contains(cause), "{cause:?} is not in: {causes}");
        }
        assert!(!causes.contains("took 10 %"), "each kind is told once, at its worst: {causes}");
    }

    #[test]
    fn a_single_figure_has_no_variation() {
        assert_eq!(variation(&[run(&[250])], &[], None), None);
        assert_eq!(variation(&[], &[], None), None);
    }
}
