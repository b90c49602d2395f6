//! Measures how much one framework's speed varies from process to process, and lists likely causes.

use protocol::{Iteration, Sample};
use serde::{Deserialize, Serialize};

use facts::evidence::Probe;
use facts::noise::{LIMITS, Noise};
use facts::run::Run;

/// Coefficient of variation above which a warning is given.
pub const LIMIT: f64 = 0.10;
/// Time of decoding in an iteration, below which one tick of the kernel or one migration is visible.
const SHORT_S: f64 = 0.1;
/// Change of the memory's read bandwidth, as a share, that shows another user of the memory.
const BANDWIDTH: f64 = 0.10;

/// Throughput of short timed decodes, over all iterations of all processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variation {
    /// Number of processes.
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
        let means: Vec<f64> = by_process.iter().filter_map(|process| mean(process)).collect();
        let cv = coefficient_of_variation(&all)?;
        let mut variation = Variation {
            processes: runs.len(),
            iterations: all.len(),
            throughput: mean(&all)?,
            cv,
            cv_between_processes: coefficient_of_variation(&means).unwrap_or(0.0),
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

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// `None` for fewer than two values.
fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let centre = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt() / centre)
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
    if let Some(seconds) = mean(&seconds).filter(|seconds| *seconds < SHORT_S) {
        let ms = seconds * 1e3;
        causes.push(format!("an iteration decoded for only {ms:.1} ms (raise --new-tokens)"));
    }
    causes
}

#[cfg(test)]
mod tests {
    use protocol::Marks;

    use super::*;
    use facts::testing;

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
